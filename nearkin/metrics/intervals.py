"""How sure a mean over queries is, when both the classes and their queries are a sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.metrics.labels import label_array, label_codes


def class_bootstrap(
    values: Any, labels: Any, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval (low, high) of the mean of values (n,), drawing classes and then queries inside each.

    Each resample draws, with replacement, as many classes as there are and from every drawn class as many queries as it
    has; its statistic is the mean over all drawn queries. Drawing queries alone gives intervals that are too narrow for
    classes not seen yet; with a single class there is nothing else to draw.

    Args:
        values: one number for each query, such as `result.per_query["MAP@R"]`.
        labels: the queries' labels (n,).
        resamples: how many resamples to draw.
        level: share of the resampled means inside the interval.
        seed: the same seed gives the same interval.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) == 0 or not np.isfinite(numbers).all():
        raise DataError("An interval needs a flat, non-empty list of finite values, one for each query.")
    if resamples < 1 or not 0 < level < 1:
        raise DataError(f"An interval needs resamples >= 1 and a level between 0 and 1, not {resamples} and {level}.")
    (codes,) = label_codes(label_array(labels, len(numbers)))
    grouped = numbers[np.argsort(codes, kind="stable")]
    sizes = np.bincount(codes)
    starts = np.cumsum(sizes) - sizes
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    for resample in range(resamples):
        classes = rng.integers(len(sizes), size=len(sizes))
        size = np.repeat(sizes[classes], sizes[classes])
        start = np.repeat(starts[classes], sizes[classes])
        means[resample] = grouped[start + (rng.random(len(size)) * size).astype(np.int64)].mean()
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
