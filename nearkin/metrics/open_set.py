"""Open-set recognition: is a query of a class we know at all? One threshold on a score accepts or rejects it.

With K known and U unknown queries, a threshold t accepts scores from t on: `TPR(t) = accepted known / K`,
`FPR(t) = accepted unknown / U`, `CCR(t) = accepted known that are also named rightly / K`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nearkin.checks import is_real
from nearkin.errors import DataError
from nearkin.metrics.checks import as_plain, flag_column, number_column
from nearkin.metrics.intervals import Interval, draw_queries, percentile_interval
from nearkin.metrics.labels import label_array, label_codes
from nearkin.metrics.trade_off import TradeOff

_POINTS = 1000


@dataclass(frozen=True, eq=False)
class OpenSetResult:
    """Open-set metrics of a set of queries, all in [0, 1].

    Attributes:
        values: "AUROC" (higher is better) and "FPR@95TPR" (lower is better, named after the TPR asked for); if it was
            said which answers are right, also "OSCR" and "closed accuracy" (higher is better).
        threshold: the score of that TPR; a query that scores at least as much is accepted.
        known: how many queries are of a known class.
        unknown: how many are not.
        intervals: value name to (low, high); empty without resamples.
        curve: "FPR", "TPR" and, if there is an OSCR, "CCR" (m,) of at most 1000 thresholds; all ascend from 0, FPR and
            TPR to 1.
    """

    values: dict[str, float]
    threshold: float
    known: int
    unknown: int
    curve: dict[str, np.ndarray] = field(repr=False)
    intervals: dict[str, Interval] = field(default_factory=dict)

    primary = "AUROC"
    higher_is_better = True

    @property
    def lower_is_better(self) -> tuple[str, ...]:
        """The values of which less is better."""
        return tuple(name for name in self.values if name.startswith("FPR@"))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return as_plain(vars(self))


def open_set_metrics(
    scores: Any,
    known: Any,
    correct: Any | None = None,
    *,
    tpr: float = 0.95,
    labels: Any | None = None,
    resamples: int = 0,
    level: float = 0.95,
    seed: int = 0,
) -> OpenSetResult:
    """AUROC, FPR at a TPR, OSCR and closed accuracy of scores that should be high for known classes.

    AUROC is the probability that a known query scores above an unknown one, a tie counting half. FPR@95TPR is the share
    of unknown queries accepted at the largest threshold that accepts 95 % of the known ones or more; nothing is
    interpolated. OSCR is the area under CCR against FPR by the trapezoid rule between neighbouring thresholds, which
    makes it the probability that a known query is named rightly and scores above an unknown one, a tie counting half.
    It exceeds neither AUROC nor the closed accuracy.

    Reference: Dhamija et al. 2018 (CCR against FPR), Vaze et al. 2022 (its area).

    Example:
        >>> from nearkin.metrics.open_set import open_set_metrics
        >>> open_set_metrics([0.9, 0.8, 0.4, 0.6, 0.2], [1, 1, 1, 0, 0], [1, 0, 1, 0, 0], tpr=0.5).values
        {'AUROC': 0.8333333333333334, 'FPR@50TPR': 0.0, 'OSCR': 0.5, 'closed accuracy': 0.6666666666666666}

    Args:
        scores: one number a query (n,), higher is more likely known; give distances with a minus sign.
        known: whether the query is of a known class (n,), True or False, 1 or 0.
        correct: whether the class predicted for the query is right (n,); looked at only where the query is known.
        tpr: the share of known queries to accept, above 0 and at most 1.
        labels: the queries' true labels (n,): resamples draw classes and then queries, as `class_bootstrap` does. None
            draws queries alone.
        resamples: how many to draw for percentile intervals; 0 for none. Draws without a query of either kind are
            passed over.
        level: share of the resampled values inside an interval.
        seed: the same seed gives the same intervals.

    Raises:
        DataError: if there are only known or only unknown queries, lengths differ, or a score is not finite.
    """
    if not (is_real(tpr) and 0 < tpr <= 1):
        raise DataError(f"The TPR must be above 0 and at most 1, not {tpr!r}.")
    distances = -number_column(scores, "scores").astype(np.float64)
    inside = flag_column(known, "known", len(distances))
    named = None if correct is None else flag_column(correct, "correct", len(distances), where=inside)
    for flags, kind in ((inside, "known"), (~inside, "unknown")):
        if not flags.any():
            raise DataError(f"There are no {kind} queries, and open-set metrics need both known and unknown ones.")
    found = _measure(distances, inside, named, tpr)
    if not resamples:
        return found
    n = len(distances)
    codes = np.zeros(n, np.int64) if labels is None else label_codes(label_array(labels, n, of="scores"))[0]
    drawn = []
    for rows in draw_queries(codes, resamples, seed):
        if inside[rows].any() and not inside[rows].all():
            part = _measure(distances[rows], inside[rows], None if named is None else named[rows], tpr)
            drawn.append(list(part.values.values()))
    columns = zip(*drawn or [list(found.values.values())], strict=True)
    intervals = {name: percentile_interval(column, level) for name, column in zip(found.values, columns, strict=True)}
    return replace(found, intervals=intervals)


def _measure(distances: np.ndarray, inside: np.ndarray, named: np.ndarray | None, tpr: float) -> OpenSetResult:
    """The result without intervals, of distances (n,), low for known queries."""
    friends, strangers = int(inside.sum()), int((~inside).sum())
    trade_off = TradeOff.of_sorted(np.sort(distances[inside]), np.sort(distances[~inside]))
    rates = {"FPR": trade_off.impostors / strangers, "TPR": trade_off.genuine / friends}
    point = int(np.searchsorted(rates["TPR"], tpr))
    values = {"AUROC": trade_off.auc(), f"FPR@{100 * tpr:g}TPR": float(rates["FPR"][point])}
    if named is not None:
        right = np.searchsorted(np.sort(distances[named]), trade_off.thresholds, side="right")
        rates["CCR"] = right / friends
        # Twice the area under the counts from (0, 0) on: whole numbers, so it is exact.
        twice = int(np.dot(np.diff(trade_off.impostors, prepend=0), right + np.concatenate([[0], right[:-1]])))
        values["OSCR"] = twice / 2 / friends / strangers
        values["closed accuracy"] = int(named.sum()) / friends
    length = rates["FPR"] + rates["TPR"]  # of the curve up to each threshold: too many are spread evenly over it
    chosen = np.arange(len(length))
    if len(length) >= _POINTS:
        chosen = np.unique(np.searchsorted(length, np.linspace(0, length[-1], _POINTS - 1)))
    curve = {name: np.concatenate([[0.0], rate[chosen]]) for name, rate in rates.items()}
    return OpenSetResult(values, -float(trade_off.thresholds[point]), friends, strangers, curve)
