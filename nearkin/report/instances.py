"""Chance-constrained training against its instances: MAP@R, covering radius, the proxies' spread, steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nearkin.report._canvas import BLUE, FAINT, GREEN, INK, MUTED, VERMILION, WIDTH, drawing, percent_axis, to_png
from nearkin.report.formatting import LOWER, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL, _RIM = 150, 40  # CSS pixels: the height of a panel, and of what the axis below adds
_MOST_MARKED = 60  # of more instances only the line is drawn
_LINES = (
    ("instance_MAP@R", BLUE, "o"),
    ("instance_covering_radius", VERMILION, "s"),
    ("instance_spread", GREEN, "^"),
)
_STEPS = "instance_steps"


def draw_instances(history: Sequence[Mapping[str, float]]) -> bytes:
    """Draw what each instance reached, one panel a measure: MAP@R, covering radius, spread of the proxies, steps.

    Args:
        history: rows of the training log; those with an `instance` count, and of an instance that occurs twice, as
            after a resumed run, the last row. A measure without a finite value has no panel.

    Returns:
        PNG bytes, or none when there is nothing to draw.
    """
    rows = {int(row["instance"]): row for row in history if row.get("instance") is not None}
    instances = np.array(sorted(rows))
    values = {
        key: np.array([_number(rows[instance].get(key)) for instance in instances])
        for key in (*(key for key, _, _ in _LINES), _STEPS)
    }
    keys = [key for key, line in values.items() if np.isfinite(line).any()]
    if not keys:
        return b""
    from matplotlib.ticker import MaxNLocator

    with drawing(WIDTH, _RIM + _PANEL * len(keys)) as figure:
        grid = dict(zip(keys, figure.subplots(len(keys), 1, sharex=True, squeeze=False)[:, 0], strict=True))
        for key, colour, marker in _LINES:
            if key in grid:
                _draw_line(grid[key], instances, values[key], colour, marker)
        _write_titles(grid, instances, values)
        if _STEPS in grid:
            grid[_STEPS].bar(instances, np.nan_to_num(values[_STEPS]), width=0.7, color=FAINT)
        last = grid[keys[-1]]
        last.set_xlabel("instance")
        last.set_xlim(instances[0] - 0.6, instances[-1] + 0.6)
        last.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True, min_n_ticks=1))
        return to_png(figure)


def _number(value: float | None) -> float:
    """A finite number, or NaN."""
    return float(value) if value is not None and math.isfinite(value) else math.nan


def _draw_line(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str, marker: str) -> None:
    axes.plot(
        x,
        y,
        color=colour,
        linewidth=1.6,
        marker=marker if len(x) <= _MOST_MARKED else "",
        markersize=4,
        zorder=3,
    )
    axes.margins(y=0.15)


def _write_titles(grid: Mapping[str, Axes], instances: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
    """Name each measure and say in its title what the line shows; mark the instance that validated best."""
    quality, radius, spread = (key for key, _, _ in _LINES)
    if quality in grid:
        best = int(np.nanargmax(values[quality]))
        text = value_text(values[quality][best], True)
        grid[quality].set_title(f"Validation MAP@R: best {text} in instance {instances[best]:,}")
        grid[quality].plot(
            instances[best],
            values[quality][best],
            marker="*",
            markersize=13,
            color="white",
            markeredgecolor=INK,
            zorder=5,
        )
        percent_axis(grid[quality], "y")
        for axes in grid.values():
            axes.axvline(instances[best], color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    if radius in grid:
        grid[radius].set_title(f"Covering radius {LOWER}{_course(values[radius])}")
    if spread in grid:
        grid[spread].set_title(f"Spread of the proxies of one class{_course(values[spread])}")
        top = max(float(np.nanmax(values[spread])), 1e-3)
        grid[spread].set_ylim(-0.06 * top, 1.15 * top)  # from 0 on: collapsed proxies shall look so
    if _STEPS in grid:
        total = float(np.nansum(values[_STEPS]))
        grid[_STEPS].set_title(f"Steps: {total:,.0f} in all")


def _course(values: np.ndarray) -> str:
    """From the first to the last value, in words; nothing for a single one."""
    known = values[np.isfinite(values)]
    return f": from {value_text(known[0], False)} to {value_text(known[-1], False)}" if len(known) > 1 else ""
