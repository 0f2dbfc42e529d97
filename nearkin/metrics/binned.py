"""ECE of many sets of answers at once, resampled by class: everything it needs is a small table for each class."""

from __future__ import annotations

import numpy as np

from nearkin.metrics.intervals import Interval
from nearkin.metrics.reliability import bin_edges


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
    low, high = np.quantile(np.clip(means, 0, 1), [(1 - level) / 2, (1 + level) / 2], axis=1)
    return {
        name: (float(value), (float(first), float(last)))
        for name, value, first, last in zip(("accuracy", "ECE"), values, low, high, strict=True)
    }
