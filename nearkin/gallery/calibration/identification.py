"""Which class, and how probable: NED with a sharpness, fitted to the gallery's own items, each left out in turn.

`S_c = 1/n_c sum_{i in kNN, y_i = c} exp(-d_i^2 / T)` with n_c items of class c, and `p(c) = S_c^a / sum_y S_y^a`. See
docs/methods/ned.md. Without the division by n_c a class would be likelier the more items it has, and one that was
enrolled from a handful would hardly ever be named; with it every class is as likely as any other before it is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from nearkin.confidence.energies import squarable
from nearkin.confidence.grouping import sum_by_class
from nearkin.confidence.probabilities import ClassProbabilities
from nearkin.confidence.sharpened import fit_sharpened, powered
from nearkin.confidence.temperature import fit_temperature
from nearkin.gallery.calibration.left_out import LeftOut, present
from nearkin.metrics.calibration import calibration_metrics

LEAST_CLASSES = 2
"""Classes with two items or more without which nothing is fitted."""

LEAST_ITEMS = 30
"""Items of such classes without which nothing is fitted."""

_BINS = 15
_LEAST_EXPONENT = -700.0  # of float64
_NO_NAMES = np.empty(0, object)


@dataclass(frozen=True)
class Identification:
    """How probabilities are made from neighbours, and how well that went on the gallery itself.

    Attributes:
        temperature: T; None where there was too little to fit it to.
        sharpness: a; None with T.
        items: how many were left out, all of classes with two items or more.
        lonely: how many of these have no item of their class among their neighbours: nothing could name them rightly.
        accuracy: the share of the left-out items whose likeliest class is theirs; None with T.
        ece: the mean gap between confidence and accuracy over bins; None with T.
        bins: of equal width in confidence, those that are not empty: "low", "high", "confidence", "accuracy", "count".
        reason: why there is no T; empty if there is one.
        notes: what a reader must know.
        similarity: whether distances are minus a similarity S, so that S takes the place of `-d^2`.
    """

    temperature: float | None = None
    sharpness: float | None = None
    items: int = 0
    lonely: int = 0
    accuracy: float | None = None
    ece: float | None = None
    bins: tuple[dict[str, Any], ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()
    similarity: bool = False

    @property
    def ceiling(self) -> float:
        """The largest probability that is ever given: n items that were all named rightly show no more than this."""
        return (self.items + 1) / (self.items + 2)

    def probabilities(self, distances: np.ndarray, codes: np.ndarray, shares: np.ndarray) -> ClassProbabilities:
        """Class probabilities by code from neighbours (q, k), nearest first, one at least of each query labelled.

        Only codes are known here: the result has no names.

        Args:
            distances: of the neighbours (q, k).
            codes: their classes (q, k).
            shares: one over the size of each one's class (q, k).
        """
        assert self.temperature is not None
        assert self.sharpness is not None
        there = present(distances, codes)
        energies = np.where(there, _energies(np.where(there, distances, 0), self.similarity), np.inf)
        gaps = energies - energies.min(axis=1, keepdims=True)
        weights = np.exp(np.maximum(gaps / -self.temperature, _LEAST_EXPONENT))
        found = sum_by_class(np.where(there, codes, -1), np.where(there, weights * shares, 0.0))
        kept = found.codes >= 0
        rows = np.repeat(np.arange(len(codes)), np.diff(found.offsets))[kept]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(codes)))])
        shares = powered(found.sums[kept], offsets, self.sharpness)
        values = np.minimum(shares, self.ceiling)
        return ClassProbabilities(_NO_NAMES, offsets, found.codes[kept], values, found.best)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain = {**asdict(self), "bins": [dict(part) for part in self.bins], "notes": list(self.notes)}
        if not self.similarity:  # what was kept before there could be one stays the same
            del plain["similarity"]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Identification:
        """The inverse of `to_dict`; keys of a newer version are left alone."""
        known = {part: plain[part] for part in cls.__dataclass_fields__ if part in plain}
        return cls(**{**known, "bins": tuple(plain.get("bins", ())), "notes": tuple(plain.get("notes", ()))})


def too_little(classes: int, items: int) -> str:
    """Why so many classes with two items or more, and so many items of these, are too few; empty if they are not."""
    if classes >= LEAST_CLASSES and items >= LEAST_ITEMS:
        return ""
    return (
        f"A probability takes at least {LEAST_CLASSES} classes with two items or more and {LEAST_ITEMS} items in such "
        f"classes, and the gallery has {classes:,} and {items:,}: add more items to the classes."
    )


def fit_identification(left_out: LeftOut, similarity: bool = False) -> Identification:
    """Fit T and a to the items that have others of their class, and measure how sure and how right they are.

    Args:
        left_out: the items.
        similarity: whether distances are minus a similarity.
    """
    tried = left_out.with_mates()
    filled = tried.filled()
    positive = filled.codes == filled.own[:, None]
    reached = int(positive.any(axis=1).sum())
    if reached < LEAST_ITEMS:
        return Identification(
            items=len(tried.own),
            similarity=similarity,
            reason=(
                f"A probability takes {LEAST_ITEMS} items that have one of their class among their neighbours, and "
                f"only {reached:,} have: these vectors hardly tell the classes apart, or classes need more items."
            ),
        )
    energies = _energies(filled.distances, similarity)
    plain = fit_temperature(energies, positive, lost="have no item of their class among their neighbours")
    sharp = fit_sharpened(energies, filled.codes, filled.own, plain.temperature, filled.shares)
    lonely = int((~(tried.codes == tried.own[:, None]).any(axis=1)).sum())
    fitted = Identification(sharp.temperature, sharp.sharpness, len(tried.own), lonely, similarity=similarity)
    return _measured(fitted, tried, (*(note.replace("support points", "items") for note in plain.notes), *sharp.notes))


def _measured(fitted: Identification, tried: LeftOut, notes: tuple[str, ...]) -> Identification:
    some = present(tried.distances, tried.codes).any(axis=1)
    found = fitted.probabilities(tried.distances[some], tried.codes[some], tried.shares[some])
    result = calibration_metrics(found.confidence, found.best == tried.own[some], bins=_BINS)
    curve = result.reliability
    bins = tuple(
        {
            "low": place / _BINS,
            "high": (place + 1) / _BINS,
            "confidence": float(curve.confidence[place]),
            "accuracy": float(curve.accuracy[place]),
            "count": int(curve.counts[place]),
        }
        for place in np.flatnonzero(curve.counts).tolist()
    )
    return Identification(
        fitted.temperature,
        fitted.sharpness,
        fitted.items,
        fitted.lonely,
        result.values["accuracy"],
        result.values["ECE"],
        bins,
        notes=notes,
        similarity=fitted.similarity,
    )


def _energies(distances: np.ndarray, similarity: bool) -> np.ndarray:
    """Squares (q, k) of distances (q, k), in float64 where float32 cannot hold them; `-S` as it is."""
    if similarity:
        return np.array(distances)
    return squarable(torch.from_numpy(np.ascontiguousarray(distances))).square().numpy()
