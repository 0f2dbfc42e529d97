"""Verification: do two items belong together? One threshold on the distance decides every pair.

A genuine pair is of one class, an impostor pair of two. Any threshold accepts some impostors (FPR) and refuses some
genuine pairs (FNR); the numbers here say how well both can be kept low at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from nearkin.checks import check_whole, is_real
from nearkin.errors import DataError
from nearkin.metrics.checks import as_plain, flag_column, number_column
from nearkin.metrics.labels import label_pair
from nearkin.metrics.pairs import Pairs, sample_notes
from nearkin.metrics.trade_off import BinnedDistances, HeldDistances, TradeOff
from nearkin.search.scorers import Scorer, as_scorer
from nearkin.spaces import Sphere

_SPHERE = Sphere()
_USUAL_FPR = (1e-3, 1e-2, 1e-1)
_HELD_PAIRS = 20_000_000
_HELD_BYTES = 24  # a pair, while the trade-off is made


@dataclass(frozen=True, eq=False)
class VerificationResult:
    """Verification metrics of a set of pairs, all in [0, 1].

    Attributes:
        values: "ROC-AUC" and "TPR@FPR=x" (higher is better), "EER" and "minDCF" (lower is better).
        threshold: where both errors are equal: a distance, or a score when scores were given.
        genuine: how many pairs of one class were compared.
        impostors: how many pairs of two classes were compared.
        det: FPR (m,) and FNR (m,) of at most 1000 operating points, FPR ascending.
        sampled: whether some pairs were left out at random.
        notes: what a reader must know.
    """

    values: dict[str, float]
    threshold: float
    genuine: int
    impostors: int
    det: tuple[np.ndarray, np.ndarray] = field(repr=False)
    sampled: bool = False
    notes: tuple[str, ...] = ()

    primary = "EER"
    higher_is_better = False
    lower_is_better = ("EER", "minDCF")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return as_plain(vars(self) | {"det": {"fpr": self.det[0], "fnr": self.det[1]}})


@torch.no_grad()
def verification_metrics(
    embeddings: Any,
    labels: Any,
    *,
    gallery: Any | None = None,
    gallery_labels: Any | None = None,
    space: Scorer | str = _SPHERE,
    pairs: int | None = None,
    fpr: Sequence[float] = _USUAL_FPR,
    p_target: float = 0.01,
    cost_miss: float = 1.0,
    cost_false: float = 1.0,
    seed: int = 0,
    memory_mb: float = 512,
) -> VerificationResult:
    """ROC-AUC, EER, TPR at given FPRs, minDCF and the DET curve of pairs of embeddings.

    Without a gallery the pairs are all unordered pairs of two different items, exact copies among them; with one, every
    query with every gallery item. No matrix of all pairs is made. Up to 20 million pairs (fewer if `memory_mb` does not
    hold 24 bytes for each) the values are exact. Beyond, distances are counted in 2^19 bins or more over their range:
    a value is then off by at most the largest share of genuine or of impostor pairs in one bin that holds both, the
    threshold by a bin's width; the result's notes give both numbers. The bins add 32 MB.

    Args:
        embeddings: points of the space (n, d), array or tensor.
        labels: n labels of any hashable kind.
        gallery: points (m, d) to compare with instead of the other embeddings; needs `gallery_labels`.
        gallery_labels: m labels.
        space: whose distance decides: a space, another object with a `distance`, or a name such as "cosine". With
            `pairs`, the distance must take leading batch dimensions, as those of all spaces do.
        pairs: compare at most this many genuine and this many impostor pairs, each kind drawn uniformly and without
            replacement from its own; None compares all. Drawn together, the rare genuine pairs would be too few.
        fpr: the FPRs x of TPR@FPR=x. Asking for one below 1 / impostors is an error; a default one is left out.
        p_target: in minDCF, how likely a pair is genuine where the model is used.
        cost_miss: in minDCF, the cost of refusing a genuine pair.
        cost_false: in minDCF, the cost of accepting an impostor pair.
        seed: of the sample.
        memory_mb: megabytes to work in.
    """
    settings = _Settings(fpr, p_target, cost_miss, cost_false)
    if not (is_real(memory_mb) and memory_mb >= 1):
        raise DataError(f"memory_mb must be a number of at least 1, not {memory_mb!r}.")
    if pairs is not None:
        pairs = int(pairs) if is_real(pairs) and pairs % 1 == 0 else pairs
        check_whole(pairs, "pairs", 1)
    memory_mb = int(memory_mb)
    points, others, _, codes, gallery_codes = label_pair(embeddings, labels, gallery, gallery_labels)
    population = Pairs(points, codes, others, gallery_codes, as_scorer(space), memory_mb)
    advice = "give two classes or more, one of them with two items or more"
    if others is not None:
        advice = "give a gallery that has items of the queries' classes and of others"
    _refuse_one_kind(*population.totals, advice)
    counts, blocks = population.totals, population.all()
    sampled = pairs is not None and pairs < max(counts)
    if pairs is not None and sampled:
        blocks = population.sample(pairs, np.random.default_rng(seed))
        counts = min(pairs, counts[0]), min(pairs, counts[1])
    settings.check(counts[1])
    held = sum(counts) <= min(_HELD_PAIRS, memory_mb * 2**20 // _HELD_BYTES)
    tally: HeldDistances | BinnedDistances = HeldDistances(*counts) if held else BinnedDistances()
    for block in blocks:
        tally.add(*block)
    notes = [*sample_notes(counts, population.totals), *tally.notes()]
    return settings.result(tally.trade_off(), sampled, notes)


def verification_from_scores(
    scores: Any,
    same: Any,
    *,
    fpr: Sequence[float] = _USUAL_FPR,
    p_target: float = 0.01,
    cost_miss: float = 1.0,
    cost_false: float = 1.0,
) -> VerificationResult:
    """The same metrics of pairs that were scored already, such as a published list of trials.

    The threshold of the result is a score: pairs that score at least as much are accepted.

    Args:
        scores: one number a pair (n,), higher is more alike; give distances with a minus sign.
        same: whether each pair is genuine (n,), True or False, 1 or 0.
        fpr: as in `verification_metrics`, and so are the others.
        p_target: how likely a pair is genuine where the model is used.
        cost_miss: the cost of refusing a genuine pair.
        cost_false: the cost of accepting an impostor pair.
    """
    settings = _Settings(fpr, p_target, cost_miss, cost_false)
    distances = -number_column(scores, "scores").astype(np.float64)
    truth = flag_column(same, "same", len(distances))
    _refuse_one_kind(int(truth.sum()), int((~truth).sum()), "give scores of both")
    settings.check(int((~truth).sum()))
    result = settings.result(TradeOff.of_sorted(np.sort(distances[truth]), np.sort(distances[~truth])), False, [])
    return replace(result, threshold=-result.threshold)


@dataclass(frozen=True)
class _Settings:
    """What to read from a trade-off."""

    fpr: Sequence[float]
    p_target: float
    cost_miss: float
    cost_false: float

    def __post_init__(self) -> None:
        if not all(0 < rate <= 1 for rate in self.fpr):
            raise DataError(f"An FPR must be above 0 and at most 1, not {', '.join(f'{x:g}' for x in self.fpr)}.")
        if not 0 < self.p_target < 1:
            raise DataError(f"The probability of a genuine pair must lie between 0 and 1, not {self.p_target:g}.")
        if not (0 < self.cost_miss < math.inf and 0 < self.cost_false < math.inf):
            raise DataError("The costs of both errors must be positive numbers.")

    def check(self, impostors: int) -> None:
        """Refuse an FPR that somebody asked for and these pairs cannot tell from zero."""
        unresolved = self._unresolved(impostors)
        if unresolved and self.fpr is not _USUAL_FPR:
            raise DataError(
                f"TPR@FPR={min(unresolved):g} cannot be measured with {impostors:,} impostor pairs, of which one is "
                f"{1 / impostors:.2g} already: ask for a larger FPR, or give more pairs."
            )

    def result(self, trade_off: TradeOff, sampled: bool, notes: list[str]) -> VerificationResult:
        """The values, in the order in which they are shown."""
        genuine, impostors = int(trade_off.genuine[-1]), int(trade_off.impostors[-1])
        unresolved = self._unresolved(impostors)
        equal_error, threshold = trade_off.equal_error()
        values = {"ROC-AUC": trade_off.auc(), "EER": equal_error}
        for rate in self.fpr:
            if rate not in unresolved:
                values[f"TPR@FPR={rate:g}"] = trade_off.tpr_at(rate)
        values["minDCF"] = trade_off.min_dcf(self.p_target, self.cost_miss, self.cost_false)
        if unresolved:
            names = " and ".join(f"TPR@FPR={rate:g}" for rate in unresolved)
            verb = "is" if len(unresolved) == 1 else "are"
            notes = [*notes, f"{names} cannot be measured with {impostors:,} impostor pairs and {verb} left out."]
        return VerificationResult(values, threshold, genuine, impostors, trade_off.det(), sampled, tuple(notes))

    def _unresolved(self, impostors: int) -> list[float]:
        return [rate for rate in self.fpr if rate < 1 / impostors]


def _refuse_one_kind(genuine: int, impostors: int, advice: str) -> None:
    for count, kind in ((genuine, "genuine pair (of one class)"), (impostors, "impostor pair (of two classes)")):
        if count == 0:
            raise DataError(f"There is no {kind}, and verification needs both kinds: {advice}.")
