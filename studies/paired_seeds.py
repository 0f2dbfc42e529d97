"""What result pages share: means over seeds with Student's intervals, and differences paired by seed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats


def half_width(values: np.ndarray) -> float:
    """Half of the 95 % interval of the mean of values (m,), by Student's t; NaN for fewer than two."""
    if len(values) < 2:
        return float("nan")
    return float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))


def mean_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean of values (m,) and the ends of its 95 % interval, NaN where there is none."""
    if not len(values):
        return (float("nan"),) * 3
    mean, half = float(values.mean()), half_width(values)
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class PairedTest:
    """A difference of two cells, seed by seed, and its paired t-test.

    Attributes:
        seeds: how many both have.
        mean: of the differences.
        low: lower end of its 95 % interval.
        high: upper end.
        p: two-sided.
        corrected: the same after Holm's correction over its family.
    """

    seeds: int
    mean: float
    low: float
    high: float
    p: float
    corrected: float = float("nan")


def paired_t(first: Mapping[Any, float], second: Mapping[Any, float]) -> PairedTest | None:
    """Compare what two cells have, seed to value; None where they share fewer than two seeds."""
    differences = paired_differences(first, second)
    if len(differences) < 2:
        return None
    if np.ptp(differences) == 0:
        p = 1.0 if differences[0] == 0 else 0.0
    else:
        p = float(stats.ttest_1samp(differences, 0.0).pvalue)
    return PairedTest(len(differences), *mean_interval(differences), p)


def paired_differences(first: Mapping[Any, float], second: Mapping[Any, float]) -> np.ndarray:
    """The first minus the second (m,) of every seed that both have, in the order of the seeds."""
    shared: list[Hashable] = sorted(first.keys() & second.keys())
    return np.array([first[seed] - second[seed] for seed in shared])
