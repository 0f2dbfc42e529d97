"""Calibration: does a confidence of 0.8 mean that 80 % of such answers are right?

Measured from what a classifier said of every query, whichever classifier it was: the confidence of its answer, whether
the answer was right, and for the likelihoods what it gave to the true class.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.metrics.columns import as_array, flag_column, number_column
from nearkin.metrics.intervals import Interval, draw_queries
from nearkin.metrics.labels import label_array, label_codes
from nearkin.metrics.reliability import ReliabilityCurve, bin_edges, equal_count, equal_width
from nearkin.metrics.selective import expected_risk, risk_coverage

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
        return {
            "values": dict(self.values),
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "reliability": self.reliability.to_dict(),
            "adaptive": self.adaptive.to_dict(),
            "risk_coverage": {"coverage": coverage.tolist(), "risk": risk.tolist()},
            "queries": self.queries,
        }


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
    _check_settings(bins, resamples, level, seed)
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
    answers = _Answers(shares[order], right[order].astype(np.int64), losses, edges)
    found = answers.measure(np.ones(n, np.int64))
    if not resamples:
        return found
    draws = draw_queries(codes[order], resamples, seed)
    measured = [answers.measure(np.bincount(drawn, minlength=n)).values for drawn in draws]
    intervals = {}
    for name, value in found.values.items():
        drawn = np.array([values[name] for values in measured])
        if name in _BIASED:
            drawn = np.clip(drawn + (value - drawn.mean()), 0, 1)
        low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
        intervals[name] = (float(low), float(high))
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
    true = _targets(targets, *table.shape)
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


@dataclass(frozen=True, eq=False)
class _Answers:
    """Queries in order of their confidence (n,), ascending; the losses are what is averaged as it is."""

    confidence: np.ndarray
    right: np.ndarray
    losses: dict[str, np.ndarray]
    edges: np.ndarray

    def measure(self, times: np.ndarray) -> CalibrationResult:
        """The result without intervals when query i is there times[i] times, int64 (n,)."""
        starts = np.flatnonzero(np.diff(self.confidence, prepend=-1.0))
        counts = np.add.reduceat(times, starts)
        drawn = counts > 0
        levels, counts = self.confidence[starts][drawn], counts[drawn]
        hits = np.add.reduceat(times * self.right, starts)[drawn]
        queries = int(counts.sum())
        reliability = equal_width(levels, counts, hits, self.edges)
        adaptive = equal_count(levels, counts, hits, len(self.edges) - 1)
        risk = expected_risk(counts[::-1], (counts - hits)[::-1])
        values = {
            "accuracy": int(hits.sum()) / queries,
            "ECE": reliability.expected_error(),
            "adaptive ECE": adaptive.expected_error(),
            "MCE": reliability.largest_error(),
            **{name: float(np.dot(times, loss)) / queries for name, loss in self.losses.items()},
            "AURC": float(risk.mean()),
        }
        return CalibrationResult(values, {}, reliability, adaptive, risk_coverage(risk), queries)


def _losses(truth: Any | None, squares: Any | None, n: int) -> dict[str, np.ndarray]:
    """NLL and Brier score of each query (n,), as far as they can be computed."""
    losses: dict[str, np.ndarray] = {}
    if truth is not None:
        likelihood = _probabilities(number_column(truth, "probabilities of the true classes", n), "true probabilities")
        losses["NLL"] = -np.log(np.maximum(likelihood, FLOOR))
    if squares is not None:
        sums = _probabilities(number_column(squares, "sums of squares", n), "sums of squares")
        if truth is not None:
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
    table = as_array(probabilities, "probabilities")
    if table.ndim != 2 or 0 in table.shape:
        raise DataError(f"The probabilities must be a table, a row a query and a column a class, not {table.shape}.")
    sums = table.sum(axis=1, dtype=np.float64)
    bad = ~(np.abs(sums - 1) <= _ROW_SUM) | ~(table.min(axis=1) >= 0)
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"Each row of the probabilities must be non-negative and sum to 1; row {row} sums to {sums[row]:g} and its "
            f"least value is {table[row].min():g}."
        )
    return table if table.dtype.kind == "f" else table.astype(np.float64)


def _targets(targets: Any, queries: int, classes: int) -> np.ndarray:
    """True classes int64 (n,)."""
    given = as_array(targets, "targets")
    column = number_column(given, "targets", queries)
    bad = (column != np.floor(column)) | (column < 0) | (column >= classes)
    if given.dtype.kind == "b" or bad.any():
        what = "True or False" if given.dtype.kind == "b" else f"{column[bad][0]:g}"
        raise DataError(f"The targets must be whole numbers from 0 to {classes - 1}, the columns, not {what}.")
    return column.astype(np.int64)


def _check_settings(bins: int, resamples: int, level: float, seed: int) -> None:
    whole = (("bins", bins, 1), ("resamples", resamples, 0), ("seed", seed, 0))
    for name, value, least in whole:
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise DataError(f"`{name}` must be a whole number from {least} on, not {value!r}.")
    if not (isinstance(level, Real) and 0 < level < 1):
        raise DataError(f"The level of an interval must lie between 0 and 1, not {level!r}.")
