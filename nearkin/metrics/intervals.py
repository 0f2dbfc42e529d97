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
    rows = {}
    for name, column in (values if isinstance(values, Mapping) else {"": values}).items():
        rows[name] = np.asarray(column, dtype=np.float64)
        if rows[name].ndim != 1 or len(rows[name]) == 0 or not np.isfinite(rows[name]).all():
            raise DataError("An interval needs a non-empty, one-dimensional list of finite values, one per query.")
    if not rows:
        return {}
    if len({len(row) for row in rows.values()}) > 1:
        counts = ", ".join(f"{name}: {len(row)}" for name, row in rows.items())
        raise DataError(f"Metrics that share resamples need the same number of queries, not {counts}.")
    table = np.stack(list(rows.values()))
    (codes,) = label_codes(label_array(labels, table.shape[1]))
    means = np.empty((resamples, len(table)))
    for resample, drawn in enumerate(draw_queries(codes, resamples, seed)):
        # Summed along the memory of each metric, so that its mean does not depend on which others there are.
        means[resample] = table.take(drawn, axis=1).mean(axis=1)
    found = {name: percentile_interval(column, level) for name, column in zip(rows, means.T, strict=True)}
    return found if isinstance(values, Mapping) else found[""]


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
