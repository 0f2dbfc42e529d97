"""Where a scale starts: the root of the stationarity residual when nothing is known but the number of classes.

The other classes are taken to be at 90 degrees and the own one at 45. Derivation: docs/methods/proxy-options.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

LEAST_SCALE, LARGEST_SCALE = 1.0, 100.0
"""Between which every scale that moves is kept."""

_HALVINGS = 100
_GRID = 20_000


def adacos_scale(classes: int) -> float:
    """`sqrt(2) ln(C - 1)`, at least 1: AdaCos's fixed scale."""
    return max(LEAST_SCALE, math.sqrt(2) * math.log(classes - 1))


def ratio_scale(classes: int, share: float) -> float:
    """The s with `(C - 1)(s + 1) share^s = s - 1`: of distance ratios.

    There is exactly one: above s = 1 the logarithm of the left over the right falls from infinity to minus infinity.

    Args:
        classes: C, at least 2.
        share: distance of the own class over that of the others, within (0, 1).
    """

    def excess(s: float) -> float:
        return math.log(classes - 1) + math.log((s + 1) / (s - 1)) + s * math.log(share)

    high = 2.0
    while excess(high) > 0:
        high *= 2
    return _root(excess, 1 + 1e-12, high)


def cosine_scale(classes: int) -> float:
    """The larger s with `cos t (e^{s cos t} + B) + s sin^2 t (e^{s cos t} - B) = 0`, t = 45 degrees, B = C - 1.

    Up to 22 classes there is none: then it is AdaCos's.
    """
    others = classes - 1
    cosine = math.sqrt(0.5)

    def residual(s: np.ndarray | float) -> np.ndarray:
        share = others * np.exp(-np.asarray(s) * cosine)  # divided by e^{s cos t}, which has no root and could overflow
        return cosine * (1 + share) + 0.5 * s * (1 - share)

    # At AdaCos's scale the residual is positive, and beyond it grows: the roots are below.
    grid = np.linspace(0, adacos_scale(classes), _GRID)
    negative = np.flatnonzero(residual(grid) < 0)
    if not len(negative):
        return adacos_scale(classes)
    last = int(negative[-1])
    return _root(lambda s: -float(residual(s)), grid[last], grid[last + 1])


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that is positive at `low` and not at `high` passes zero."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return float((low + high) / 2)
