"""Calibration: is a confidence of 0.8 right 80 % of the time? Reliability curves, risk and coverage, ECE by class.

Reliability: in bins of like confidence, how often the answers are right beside how sure they were.
A bin's gap is `|accuracy - mean confidence|`; ECE is the sum over bins of share of the queries times gap, MCE the
largest gap.

Selective answering: answers in order of a score, the surest first, and how wrong the first of them are.
`risk(i) = wrong answers among the i surest / i`, at coverage `i / n`; AURC is its mean over all coverages.

Measured from what a classifier said of every query, whichever classifier it was: the confidence of its answer, whether
the answer was right, and for the likelihoods what it gave to the true class.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from nearkin.checks import check_between, check_whole
from nearkin.errors import DataError
from nearkin.metrics.checks import as_array, as_plain, flag_column, number_column, number_table
from nearkin.metrics.intervals import Interval, draw_queries, percentile_interval
from nearkin.metrics.labels import label_array, label_codes


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """What a reliability diagram draws. Bin j holds confidences in [edges[j], edges[j + 1]), the last one closed.

    Attributes:
        edges: of the bins (m + 1,), ascending.
        counts: queries in each bin, int64 (m,).
        confidence: their mean confidence (m,), NaN where a bin is empty.
        accuracy: the share of them that is right (m,), NaN where a bin is empty.
    """

    edges: np.ndarray = field(repr=False)
    counts: np.ndarray
    confidence: np.ndarray = field(repr=False)
    accuracy: np.ndarray = field(repr=False)

    def expected_error(self) -> float:
        """The mean gap over the queries."""
        filled = self.counts > 0
        gaps = np.abs(self.accuracy - self.confidence)[filled]
        return float(np.dot(self.counts[filled], gaps) / self.counts.sum())

    def largest_error(self) -> float:
        """The largest gap of a bin that is not empty."""
        return float(np.abs(self.accuracy - self.confidence)[self.counts > 0].max())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; NaN is None."""
        return as_plain(vars(self))


def bin_edges(bins: int, kind: np.dtype[Any]) -> np.ndarray:
    """The edges (bins + 1,), rounded as the confidences are: a share of 7/10 in float32 is not below the edge 0.7."""
    return (np.arange(bins + 1) / bins).astype(kind).astype(np.float64)


def equal_width(levels: np.ndarray, counts: np.ndarray, hits: np.ndarray, edges: np.ndarray) -> ReliabilityCurve:
    """Bins between given edges (m + 1,).

    Args:
        levels: distinct confidences (u,), ascending.
        counts: how many queries have each (u,).
        hits: how many of these are right (u,).
        edges: ascending, the first at most the lowest level and the last at least the highest.
    """
    bins = len(edges) - 1
    place = np.searchsorted(edges[1:-1], levels, side="right")
    held = np.bincount(place, weights=counts, minlength=bins)
    means = np.full((2, bins), np.nan)
    for mean, sums in zip(means, (counts * levels, hits), strict=True):
        np.divide(np.bincount(place, weights=sums, minlength=bins), held, out=mean, where=held > 0)
    return ReliabilityCurve(edges, held.astype(np.int64), *means)


def equal_count(levels: np.ndarray, counts: np.ndarray, hits: np.ndarray, bins: int) -> ReliabilityCurve:
    """At most `bins` bins of as equal counts as the levels allow, none of them empty.

    The sorted queries are cut into `bins` equal parts. Queries of equal confidence stay together, in the part where the
    middle of their run lies: a bin then depends on confidences alone, not on the order in which queries came. Without
    equal confidences the counts differ by one at most; with many, bins are merged.

    Args:
        levels: distinct confidences (u,), ascending.
        counts: how many queries have each, int64 (u,), none of them 0.
        hits: how many of these are right (u,).
        bins: how many to aim at.
    """
    last = np.cumsum(counts)
    place = (2 * last - counts) * bins // (2 * last[-1])
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    held = np.add.reduceat(counts, starts)
    return ReliabilityCurve(
        edges=np.concatenate([levels[starts], levels[-1:]]),
        counts=held,
        confidence=np.add.reduceat(counts * levels, starts) / held,
        accuracy=np.add.reduceat(hits, starts) / held,
    )


def expected_risk(counts: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """The error rate (n,) among the i = 1, 2, …, n surest answers.

    Where a coverage cuts through answers of equal confidence, any of them may be the ones answered: the risk is the
    expected one under a random order of them, in which the number of errors grows linearly.

    Args:
        counts: how many answers each level of confidence has (u,), the highest level first, none of them 0.
        errors: how many of them are wrong (u,).
    """
    answered = np.concatenate([[0], np.cumsum(counts)])
    wrong = np.concatenate([[0], np.cumsum(errors)])
    covered = np.arange(1, answered[-1] + 1)
    return np.interp(covered, answered, wrong) / covered


def risk_coverage(risk: np.ndarray, points: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Coverage and risk (p,) of at most `points` of the risks (n,), evenly spread, both ends among them."""
    chosen = np.arange(len(risk))
    if len(chosen) > points:
        chosen = np.linspace(0, len(risk) - 1, points).round().astype(np.int64)
    return (chosen + 1) / len(risk), risk[chosen]


FLOOR = 1e-12
"""The least probability that a likelihood counts with."""

_ROUNDING = 1e-6  # how far a probability computed in float32 may lie outside [0, 1]
_ROW_SUM = 1e-3
_BIASED = ("ECE", "adaptive ECE", "MCE")
"""What noise makes larger, in the data and once more in a resample of it."""


@dataclass(frozen=True, eq=False)
class CalibrationResult:
    """Calibration metrics of a set of queries.

    Attributes:
        values: "accuracy" (higher is better), "ECE", "adaptive ECE", "MCE", "NLL", "Brier" and "AURC" (lower is
            better), as far as they could be computed; all in [0, 1] but NLL and Brier, which lies in [0, 2].
        intervals: value name to (low, high); empty without resamples.
        reliability: in bins of equal width, those of "ECE" and "MCE".
        adaptive: in bins of equal counts, those of "adaptive ECE".
        risk_coverage: coverage (p,) and risk (p,) of at most 1000 points, coverage ascending.
        queries: how many were measured.
    """

    values: dict[str, float]
    intervals: dict[str, Interval]
    reliability: ReliabilityCurve = field(repr=False)
    adaptive: ReliabilityCurve = field(repr=False)
    risk_coverage: tuple[np.ndarray, np.ndarray] = field(repr=False)
    queries: int

    primary = "ECE"
    higher_is_better = False
    lower_is_better = ("ECE", "adaptive ECE", "MCE", "NLL", "Brier", "AURC")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; NaN is None."""
        coverage, risk = self.risk_coverage
        return as_plain(vars(self) | {"risk_coverage": {"coverage": coverage, "risk": risk}})


def calibration_metrics(
    confidence: Any,
    correct: Any,
    *,
    truth: Any | None = None,
    squares: Any | None = None,
    bins: int = 15,
    labels: Any | None = None,
    resamples: int = 0,
    level: float = 0.95,
    seed: int = 0,
) -> CalibrationResult:
    """Accuracy, ECE, adaptive ECE, MCE, NLL, Brier score and AURC of answers with a confidence.

    ECE of a finite sample is biased upwards, since noise in a bin's accuracy counts as a gap: even a perfect model has
    one above 0, and only samples of like size compare. A resample has that noise twice: intervals of ECE, adaptive ECE
    and MCE are moved back by the mean excess of the resamples over the value.

    No value depends on the order of the queries. Equal confidences share a bin of the adaptive ECE, the one where the
    middle of their run lies; AURC takes the expected risk under a random order of them.

    Reference: Guo et al. 2017 (ECE, MCE), Nixon et al. 2019 (adaptive), Geifman and El-Yaniv 2017 (risk and coverage).

    Example:
        >>> from nearkin.metrics.calibration import calibration_metrics
        >>> found = calibration_metrics([0.9, 0.9, 0.6, 0.6], [True, True, True, False])
        >>> {name: round(value, 4) for name, value in found.values.items()}
        {'accuracy': 0.75, 'ECE': 0.1, 'adaptive ECE': 0.1, 'MCE': 0.1, 'AURC': 0.1042}

    Args:
        confidence: the probability given to the predicted class (n,), in [0, 1]; an excess of up to 1e-6 is taken for
            rounding and cut off.
        correct: whether the prediction is right (n,), True or False, 1 or 0.
        truth: the probability given to the true class (n,), for NLL and Brier; NLL takes 1e-12 for less.
        squares: the sum over all classes of their squared probabilities (n,); with `truth` it gives Brier.
        bins: how many. Bin m of ECE is [(m - 1) / bins, m / bins), the last one closed.
        labels: the queries' labels (n,): resamples draw classes and then queries, as `class_bootstrap` does. None draws
            queries alone, which is too narrow for classes not seen yet.
        resamples: how many to draw for percentile intervals; 0 for none.
        level: share of the resampled values inside an interval.
        seed: the same seed gives the same intervals.

    Raises:
        DataError: if lengths differ, there is no query, or a number is not what it is said to be.
    """
    for what, number, least in (("bins", bins, 1), ("resamples", resamples, 0), ("seed", seed, 0)):
        check_whole(number, what, least)
    check_between(level, "level")
    shares = number_column(confidence, "confidences")
    edges = bin_edges(bins, shares.dtype)
    shares = _probabilities(shares, "confidences")
    n = len(shares)
    right = flag_column(correct, "correct", n)
    losses = _losses(truth, squares, n)
    codes = np.zeros(n, np.int64) if labels is None else label_codes(label_array(labels, n))[0]
    # Sorted by all that is measured, so that sums and draws do not depend on the order either.
    order = np.lexsort([codes, *reversed(losses.values()), right, shares])
    losses = {name: loss[order] for name, loss in losses.items()}
    measure = partial(_measure, shares[order], right[order].astype(np.int64), losses, edges)
    found = measure(np.ones(n, np.int64))
    if not resamples:
        return found
    draws = draw_queries(codes[order], resamples, seed)
    measured = [measure(np.bincount(drawn, minlength=n)).values for drawn in draws]
    intervals = {}
    for name, value in found.values.items():
        drawn = np.array([values[name] for values in measured])
        if name in _BIASED:
            drawn = np.clip(drawn + (value - drawn.mean()), 0, 1)
        intervals[name] = percentile_interval(drawn, level)
    return replace(found, intervals=intervals)


def calibration_from_probabilities(
    probabilities: Any,
    targets: Any,
    *,
    bins: int = 15,
    labels: Any | None = None,
    resamples: int = 0,
    level: float = 0.95,
    seed: int = 0,
) -> CalibrationResult:
    """The same metrics from the probabilities of all classes, such as a softmax gives.

    The prediction is the most likely class, the lower one of equals.

    Args:
        probabilities: of every class (n, C), each row summing to 1 within 1e-3; used as they are, not rescaled.
        targets: the true classes (n,), whole numbers from 0 to C - 1.
        bins: as in `calibration_metrics`, and so are the others.
        labels: of the queries (n,), often the targets again: resamples then draw classes first.
        resamples: how many to draw for percentile intervals; 0 for none.
        level: share of the resampled values inside an interval.
        seed: the same seed gives the same intervals.

    Raises:
        DataError: if a row is no distribution, or a target no class.
    """
    table = _distributions(probabilities)
    given = as_array(targets, "targets")
    column, flags = number_column(given, "targets", len(table)), given.dtype.kind == "b"
    bad = (column != np.floor(column)) | (column < 0) | (column >= table.shape[1])
    if flags or bad.any():
        what = "True or False" if flags else f"{column[bad][0]:g}"
        raise DataError(f"The targets must be whole numbers from 0 to {table.shape[1] - 1}, the columns, not {what}.")
    true = column.astype(np.int64)
    rows = np.arange(len(table))
    predicted = table.argmax(axis=1)
    # A row may sum to a little more than 1, and what is taken from it be as much above 1.
    return calibration_metrics(
        np.minimum(table[rows, predicted], 1),
        predicted == true,
        truth=np.minimum(table[rows, true], 1),
        squares=np.minimum(np.einsum("nc,nc->n", table, table, dtype=np.float64, casting="same_kind"), 1),
        bins=bins,
        labels=labels,
        resamples=resamples,
        level=level,
        seed=seed,
    )


def _measure(
    confidence: np.ndarray, right: np.ndarray, losses: dict[str, np.ndarray], edges: np.ndarray, times: np.ndarray
) -> CalibrationResult:
    """The result without intervals of queries (n,) by ascending confidence, of which i is there times[i] times."""
    starts = np.flatnonzero(np.diff(confidence, prepend=-1.0))
    counts = np.add.reduceat(times, starts)
    drawn = counts > 0
    levels, counts = confidence[starts][drawn], counts[drawn]
    hits = np.add.reduceat(times * right, starts)[drawn]
    queries = int(counts.sum())
    reliability = equal_width(levels, counts, hits, edges)
    adaptive = equal_count(levels, counts, hits, len(edges) - 1)
    risk = expected_risk(counts[::-1], (counts - hits)[::-1])
    values = {
        "accuracy": int(hits.sum()) / queries,
        "ECE": reliability.expected_error(),
        "adaptive ECE": adaptive.expected_error(),
        "MCE": reliability.largest_error(),
        **{name: float(np.dot(times, loss)) / queries for name, loss in losses.items()},
        "AURC": float(risk.mean()),
    }
    return CalibrationResult(values, {}, reliability, adaptive, risk_coverage(risk), queries)


def _losses(truth: Any | None, squares: Any | None, n: int) -> dict[str, np.ndarray]:
    """NLL and Brier score of each query (n,), as far as they can be computed."""
    likelihood, sums = (
        None if given is None else _probabilities(number_column(given, what, n), what)
        for given, what in ((truth, "probabilities of the true classes"), (squares, "sums of squares"))
    )
    if likelihood is None:
        return {}
    losses = {"NLL": -np.log(np.maximum(likelihood, FLOOR))}
    if sums is not None:
        below = sums < likelihood**2 - _ROUNDING
        if below.any():
            raise DataError(
                f"The sum of squares in row {np.argmax(below)} is less than the square of the true class's "
                "probability alone: sum the squared probabilities of all classes."
            )
        losses["Brier"] = np.maximum(sums - 2 * likelihood + 1, 0)
    return losses


def _probabilities(values: np.ndarray, what: str) -> np.ndarray:
    """Numbers (n,) that lie in [0, 1] but for rounding, in float64 and inside."""
    outside = (values < -_ROUNDING) | (values > 1 + _ROUNDING)
    if outside.any():
        row = int(np.argmax(outside))
        raise DataError(f"The {what} must lie between 0 and 1, not {values[row]:g} as in row {row}.")
    return np.clip(values.astype(np.float64), 0, 1)


def _distributions(probabilities: Any) -> np.ndarray:
    """Probabilities (n, C) whose rows are distributions."""
    table = number_table(probabilities, "probabilities", "(queries, classes)")
    sums = table.sum(axis=1, dtype=np.float64)
    bad = ~(np.abs(sums - 1) <= _ROW_SUM) | ~(table.min(axis=1) >= 0)
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"Each row of the probabilities must be non-negative and sum to 1; row {row} sums to {sums[row]:g} and its "
            f"least value is {table[row].min():g}."
        )
    return table if table.dtype.kind == "f" else table.astype(np.float64)


def class_table(confidence: np.ndarray, correct: np.ndarray, codes: np.ndarray, bins: int = 15) -> np.ndarray:
    """Counts, sums of confidence and hits by class and bin, float64 (C, bins, 3).

    Args:
        confidence: of each answer (n,), in [0, 1].
        correct: whether it is right (n,).
        codes: class of each query (n,), whole numbers from 0.
        bins: of equal width, the last one closed.
    """
    edges = bin_edges(bins, confidence.dtype)[1:-1]
    place = codes * bins + np.searchsorted(edges, confidence, side="right")
    size = (int(codes.max()) + 1) * bins
    columns = [np.bincount(place, weights=weights, minlength=size) for weights in (None, confidence, correct)]
    return np.stack(columns, axis=-1).reshape(-1, bins, 3)


def accuracy_and_ece(tables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and ECE (...,) of tables (..., bins, 3) summed over classes."""
    total = tables[..., 0].sum(axis=-1)
    gaps = np.abs(tables[..., 2] - tables[..., 1]).sum(axis=-1)
    return tables[..., 2].sum(axis=-1) / total, gaps / total


def resample_means(tables: np.ndarray, *, resamples: int = 1000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and ECE averaged over sets (2,), and the same in resamples of the classes (2, resamples).

    A resample has more noise in its bins than the data, hence a larger ECE: resampled values are moved back by their
    mean excess. Tables over the same classes see the same draws, so their differences can be resampled too.

    Args:
        tables: one of `class_table` for each set, over the same classes, (sets, C, bins, 3).
        resamples: how many draws of classes.
        seed: of the draws.
    """
    sets, classes, bins, _ = tables.shape
    rng = np.random.default_rng(seed)
    times = rng.multinomial(classes, np.full(classes, 1 / classes), size=resamples).astype(np.float64)
    drawn = np.empty((2, resamples, sets))
    for place, table in enumerate(tables):
        drawn[:, :, place] = accuracy_and_ece((times @ table.reshape(classes, -1)).reshape(resamples, bins, 3))
    values = np.mean(accuracy_and_ece(tables.sum(axis=1)), axis=1)
    means = drawn.mean(axis=2)
    return values, means + (values - means.mean(axis=1))[:, None]


def mean_intervals(
    tables: np.ndarray, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, tuple[float, Interval]]:
    """Accuracy and ECE averaged over sets, each with its interval over classes; arguments as of `resample_means`."""
    values, means = resample_means(tables, resamples=resamples, seed=seed)
    named = zip(("accuracy", "ECE"), values, np.clip(means, 0, 1), strict=True)
    return {name: (float(value), percentile_interval(row, level)) for name, value, row in named}
