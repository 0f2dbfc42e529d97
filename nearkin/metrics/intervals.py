"""How sure a mean over queries is, when both the classes and their queries are a sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, overload

import numpy as np

from nearkin.checks import check_between, check_whole
from nearkin.errors import DataError
from nearkin.metrics.labels import label_array, label_codes

Interval = tuple[float, float]


@overload
def class_bootstrap(
    values: Mapping[str, Any], labels: Any, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]: ...


@overload
def class_bootstrap(
    values: Any, labels: Any, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval: ...


def class_bootstrap(
    values: Any, labels: Any, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval | dict[str, Interval]:
    """Percentile interval (low, high) of the mean of values (n,), drawing classes and then queries inside each.

    Each resample draws, with replacement, as many classes as there are and from every drawn class as many queries as it
    has; its statistic is the mean over all drawn queries. Drawing queries alone gives intervals that are too narrow for
    classes not seen yet; with a single class there is nothing else to draw. Drawing queries as well as classes counts
    the noise inside classes twice, which errs on the wide side; fewer than about ten classes err on the narrow side.

    Several metrics of the same queries share one resampling, and each gets the interval it would have alone. Memory is
    a few numbers for each value.

    Args:
        values: one number for each query, such as `result.per_query["MAP@R"]`; or a mapping of names to these, such as
            `result.per_query`, for a mapping of names to intervals.
        labels: the queries' labels (n,).
        resamples: how many resamples to draw.
        level: share of the resampled means inside the interval.
        seed: the same seed gives the same interval.
    """
    check_resampling(resamples, level)
    if not isinstance(values, Mapping):
        return _intervals(_flat(values)[None], labels, resamples, level, seed)[0]
    if not values:
        return {}
    rows = [_flat(row) for row in values.values()]
    if len({len(row) for row in rows}) > 1:
        counts = ", ".join(f"{name}: {len(row)}" for name, row in zip(values, rows, strict=True))
        raise DataError(f"Metrics that share resamples need the same number of queries, not {counts}.")
    return dict(zip(values, _intervals(np.stack(rows), labels, resamples, level, seed), strict=True))


def _flat(values: Any) -> np.ndarray:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) == 0 or not np.isfinite(numbers).all():
        raise DataError("An interval needs a non-empty, one-dimensional list of finite values, one per query.")
    return numbers


def _intervals(table: np.ndarray, labels: Any, resamples: int, level: float, seed: int) -> list[Interval]:
    """The interval of each row of a table (metrics, n)."""
    (codes,) = label_codes(label_array(labels, table.shape[1]))
    means = np.empty((resamples, len(table)))
    for resample, drawn in enumerate(draw_queries(codes, resamples, seed)):
        # Summed along the memory of each metric, so that its mean does not depend on which others there are.
        means[resample] = table.take(drawn, axis=1).mean(axis=1)
    return [percentile_interval(column, level) for column in means.T]


def check_resampling(resamples: int, level: float) -> None:
    """Refuse fewer than one resample, and a level that is no share."""
    check_whole(resamples, "resamples", 1)
    check_between(level, "level")


def percentile_interval(drawn: Any, level: float = 0.95) -> Interval:
    """The ends of the middle share of resampled values (b,); NaN are left out."""
    low, high = np.nanquantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def draw_queries(codes: np.ndarray, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """The queries of each resample, int64: as many classes as there are, then from each as many queries as it has.

    Args:
        codes: class of each query (n,), whole numbers from 0, none left out.
        resamples: how many to draw.
        seed: of the draws.
    """
    grouped = np.argsort(codes, kind="stable")
    sizes = np.bincount(codes)
    starts = np.cumsum(sizes) - sizes
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        classes = rng.integers(len(sizes), size=len(sizes))
        size = np.repeat(sizes[classes], sizes[classes])
        start = np.repeat(starts[classes], sizes[classes])
        yield grouped[start + (rng.random(len(size)) * size).astype(np.int64)]
