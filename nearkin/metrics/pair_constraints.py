"""Chance constraints on pairs: how likely a pair is to be violated, and Markov's bound from the contrastive loss.

With iota = 1 for two items of a class and -1 for two of different ones, a pair at distance d is violated where
`iota (d - beta) >= 0`, and `P(violated) <= E[(iota (d - beta) + alpha)_+] / alpha`: the loss that training minimises
bounds the probability that it is about. Derivation: docs/methods/chance-constrained.md. Reference: Gürbüz 2022, section
3.2.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nearkin.checks import check_whole, is_real
from nearkin.errors import DataError
from nearkin.metrics.checks import as_plain
from nearkin.metrics.labels import label_pair
from nearkin.metrics.pairs import Pairs, sample_notes
from nearkin.search.scorers import Scorer, as_scorer
from nearkin.spaces import Sphere

VIOLATION, BOUND = "violation", "violation bound"
_KINDS = ("same class", "other classes")
_SPHERE = Sphere()


@dataclass(frozen=True)
class ViolationResult:
    """How often pairs are violated, and the bound on it; lower is better.

    Attributes:
        values: "violation" and "violation bound", of all pairs, and of those of the "same class" and of "other
            classes" ("violation, same class"). A bound may exceed 1.
        beta: the distance that parts pairs of one class from others.
        alpha: half the width of the gap that the loss wants between them.
        genuine: how many pairs of one class were compared.
        impostors: how many pairs of two classes were compared.
        notes: which pairs are a sample.
    """

    values: dict[str, float]
    beta: float
    alpha: float
    genuine: int
    impostors: int
    notes: tuple[str, ...] = ()

    primary = VIOLATION
    higher_is_better = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return as_plain(vars(self))


@torch.no_grad()
def pair_violations(
    embeddings: Any,
    labels: Any,
    *,
    pos_margin: float = 0.0,
    neg_margin: float = 1.0,
    gallery: Any | None = None,
    gallery_labels: Any | None = None,
    space: Scorer | str = _SPHERE,
    pairs: int | None = None,
    seed: int = 0,
    memory_mb: int = 512,
) -> ViolationResult:
    """The share of violated pairs, and Markov's bound on it: the mean generalised contrastive loss over alpha.

    `beta = (m+ + m-) / 2` and `alpha = (m- - m+) / 2` for the margins of the contrastive loss, whose terms are then
    `(d - m+)_+` for two items of a class and `(m- - d)_+` for others. Of all pairs nearly all are of two classes, so
    each kind has values of its own. The bound holds for the very pairs that are measured, not only in expectation.

    Example:
        >>> import numpy as np
        >>> points = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
        >>> found = pair_violations(points, ["a", "a", "b", "b"], neg_margin=2.0)
        >>> round(found.values["violation"], 3)  # of six pairs, that of (0.8, 0.6) and (0, 1)
        0.167

    Args:
        embeddings: points of the space (n, d).
        labels: n labels of any hashable kind.
        pos_margin: m+, the distance below which two items of a class cost nothing.
        neg_margin: m-, the distance beyond which two items of different classes cost nothing.
        gallery: points (m, d) to compare with instead of the other embeddings; needs `gallery_labels`.
        gallery_labels: m labels.
        space: whose distance counts.
        pairs: compare at most so many pairs of each kind, drawn without replacement; None compares all.
        seed: of the draw.
        memory_mb: megabytes to work in.
    """
    for name, value in (("pos_margin", pos_margin), ("neg_margin", neg_margin)):
        if not (is_real(value) and math.isfinite(value)):
            raise DataError(f"{name} must be a finite number, not {value!r}.")
    if not 0 <= pos_margin < neg_margin:
        raise DataError(
            f"Chance constraints need 0 <= pos_margin < neg_margin, and {pos_margin:g} and {neg_margin:g} are not so: "
            "raise neg_margin."
        )
    if pairs is not None:
        check_whole(pairs, "pairs", 1)
    points, others, _, codes, gallery_codes = label_pair(embeddings, labels, gallery, gallery_labels)
    population = Pairs(points, codes, others, gallery_codes, as_scorer(space), int(memory_mb))
    totals = population.totals
    if not all(totals):
        raise DataError("Chance constraints need pairs of one class and of two: pass more items, or other labels.")
    blocks = population.all() if pairs is None else population.sample(pairs, np.random.default_rng(seed))
    counts = totals if pairs is None else (min(pairs, totals[0]), min(pairs, totals[1]))
    beta, alpha = (pos_margin + neg_margin) / 2, (neg_margin - pos_margin) / 2
    sums = np.zeros((2, 2))
    for block in blocks:
        for kind, (distances, sign) in enumerate(zip(block, (1, -1), strict=True)):
            beyond = sign * (distances.astype(np.float64) - beta)
            sums[kind] += (beyond >= 0).sum(), np.maximum(beyond + alpha, 0).sum() / alpha
    means = sums / np.array(counts)[:, None]
    whole = np.array(totals) @ means / sum(totals)
    values = {}
    for place, name in enumerate((VIOLATION, BOUND)):
        values[name] = float(whole[place])
        values |= {f"{name}, {kind}": float(means[row, place]) for row, kind in enumerate(_KINDS)}
    return ViolationResult(values, beta, alpha, *counts, tuple(sample_notes(counts, totals)))
