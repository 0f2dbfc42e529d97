"""What queries are, from the neighbours a search has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nearkin.gallery.calibration.identification import Identification
from nearkin.gallery.calibration.left_out import present, shares_of
from nearkin.gallery.calibration.unknown import Horizon
from nearkin.gallery.store import Found
from nearkin.gallery.values import Candidate

_SHOWN = 5
_NOTHING = "The gallery has no labelled items to compare with: add some."


@dataclass(frozen=True)
class Verdict:
    """What a query is.

    Attributes:
        label: the likeliest class, also where the query counts as unknown; None if no labelled item was found.
        probability: that it is of this class, given that it is of an enrolled one; None if that cannot be said.
        known: whether it counts as of an enrolled class at all; None if that cannot be said.
        candidates: the likeliest classes, five at the most; empty without probabilities.
        reason: why probability or known is None; empty if neither is.
    """

    label: str | None
    probability: float | None
    known: bool | None
    candidates: tuple[Candidate, ...] = ()
    reason: str = ""


def reach_verdicts(
    found: Found, classes: Sequence[str], sizes: np.ndarray, k: int, identification: Identification, horizon: Horizon
) -> list[Verdict]:
    """One verdict for each query, by its k nearest labelled neighbours; sizes (C,) are those of the classes."""
    distances, codes = found.distances[:, :k], found.codes[:, :k]
    there = present(distances, codes) & (codes < len(classes))
    codes = np.where(there, codes, -1)
    some = np.flatnonzero(there.any(axis=1))
    verdicts = [Verdict(None, None, None, reason=_NOTHING)] * len(codes)
    if not len(some):
        return verdicts
    distances, codes, there = distances[some], codes[some], there[some]
    first = there.argmax(axis=1)
    nearest = distances[np.arange(len(some)), first]
    known = [None] * len(some) if horizon.threshold is None else (nearest <= horizon.threshold).tolist()
    if identification.temperature is None:
        labels = codes[np.arange(len(some)), first].tolist()
        listed: list[tuple[Candidate, ...]] = [()] * len(some)
    else:
        top, values = identification.probabilities(distances, codes, shares_of(sizes, codes)).top(_SHOWN)
        labels = top[:, 0].tolist()
        listed = [_candidates(*row, classes) for row in zip(top.tolist(), values.tolist(), strict=True)]
    reason = " ".join(dict.fromkeys(text for text in (identification.reason, horizon.reason) if text))
    for row, code, flag, candidates in zip(some.tolist(), labels, known, listed, strict=True):
        probability = candidates[0].probability if candidates else None
        verdicts[row] = Verdict(classes[code], probability, flag, candidates, reason)
    return verdicts


def _candidates(codes: list[int], values: list[float], classes: Sequence[str]) -> tuple[Candidate, ...]:
    return tuple(Candidate(classes[code], value) for code, value in zip(codes, values, strict=True) if code >= 0)
