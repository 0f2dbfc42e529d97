"""What pictures of a training log share: the values of one key against steps, and a noisy line made readable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series: TypeAlias = tuple[np.ndarray, np.ndarray]
_FEW = 10  # points; a shorter line is drawn as it is


def step_series(history: Sequence[Mapping[str, float]], key: str) -> Series:
    """Steps (m,) and finite values (m,) of one key, in order of steps; a repeated step counts with its last row."""
    found = {float(row["step"]): float(row[key]) for row in history if "step" in row and row.get(key) is not None}
    steps = sorted(step for step, value in found.items() if math.isfinite(value))
    return np.array(steps), np.array([found[step] for step in steps])


def draw_noisy(axes: Axes, series: Series, colour: str) -> None:
    """Draw a line as it is and, where there are enough points, its smoothed course above it."""
    steps, values = series
    few = len(steps) < _FEW
    look: Any = {"linewidth": 1.6, "alpha": 1.0} if few else {"linewidth": 1.0, "alpha": 0.35}
    axes.plot(steps, values, color=colour, marker="o" if len(steps) == 1 else "", markersize=3.5, **look)
    if not few:
        smoothed = smooth(values)
        axes.plot(steps, smoothed, color=colour, linewidth=1.8)
        # One spike of the first steps shall not flatten all the rest.
        top = max(float(np.quantile(values, 0.995)), float(smoothed.max()))
        bottom = float(values.min())
        margin = 0.06 * (top - bottom) or 0.5
        axes.set_ylim(bottom - margin, top + margin)
    axes.margins(x=0.02)


def smooth(values: np.ndarray) -> np.ndarray:
    """A Gaussian average over about a twentieth of the curve, without lag and fair at both ends."""
    sigma = max(1.0, len(values) / 50)
    reach = min(int(3 * sigma), len(values) - 1)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weight = np.convolve(np.ones(len(values)), kernel)[reach : reach + len(values)]
    return np.convolve(values, kernel)[reach : reach + len(values)] / weight
