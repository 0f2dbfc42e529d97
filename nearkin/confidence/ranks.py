"""Which order statistic of n values a new one stays below, at least so often."""

from __future__ import annotations

import math


def covering_rank(points: int, coverage: float) -> int:
    """`ceil((points + 1) coverage)`: which order statistic of so many a new one stays below at least so often."""
    # 0.55 * 20 is a little more than 11, which must not ask for 12.
    return max(1, math.ceil(round((points + 1) * coverage, 9)))


def needed_points(coverage: float) -> int:
    """The least number of points of which one is a bound for a new one, at this coverage."""
    return max(1, math.ceil(round(1 / (1 - coverage), 6)) - 1)
