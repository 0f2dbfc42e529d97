"""Measures of runs against one metric, one panel a measure and one point a run: do they go together?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nearkin.report._canvas import BLUE, MARKERS, SERIES, WIDTH, drawing, percent_axis, to_png
from nearkin.report._lines import fit_text, legend_height, legend_labels, plain_numbers
from nearkin.report.formatting import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS, _PANEL = 3, 210
_NAMED = 10  # runs up to which each has a colour and a marker of its own
_TITLE = 11


def draw_measures(
    rows: Sequence[Mapping[str, float]],
    names: Sequence[str],
    of: Mapping[str, str],
    against: str,
    *,
    percent: bool = True,
) -> bytes:
    """Draw one panel a measure, its values to the right and those of the metric upwards, a point for each run.

    Args:
        rows: name to value for each run; what is missing or not finite is left out.
        names: of the runs.
        of: measure to what its title adds, such as its correlation.
        against: the metric.
        percent: whether that is a share of 1.

    Returns:
        PNG bytes, or none when no run has both.
    """
    panels = {}
    for measure in of:
        x, y = (
            plain_numbers([row.get(key, np.nan) for row in rows], f"values of '{key}'") for key in (measure, against)
        )
        if (np.isfinite(x) & np.isfinite(y)).any():
            panels[measure] = (x, y)
    if not panels:
        return b""
    lines = -(-len(panels) // _COLUMNS)
    labels = legend_labels(names) if len(names) <= _NAMED else []
    with drawing(WIDTH, 40 + _PANEL * lines + (legend_height(labels) if labels else 0)) as figure:
        grid = figure.subplots(lines, _COLUMNS, squeeze=False, sharey=True).ravel()
        for axes, (measure, (x, y)) in zip(grid, panels.items(), strict=False):
            _draw_points(axes, x, y, bool(labels))
            axes.set_title(fit_text(of[measure] or measure, WIDTH / _COLUMNS - 45, _TITLE, "bold"))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
            axes.locator_params(axis="x", nbins=4)
            axes.margins(0.12)
            if percent:
                percent_axis(axes, "y")
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        for axes in grid[::_COLUMNS]:
            axes.set_ylabel(clean(against))
        if labels:
            handles = [grid[0].scatter([], [], s=34, **_look(place)) for place in range(len(labels))]
            figure.legend(handles, labels, loc="outside upper left", ncols=min(4, len(labels)), fontsize=9)
        return to_png(figure)


def _draw_points(axes: Axes, x: np.ndarray, y: np.ndarray, named: bool) -> None:
    for place in np.flatnonzero(np.isfinite(x) & np.isfinite(y)).tolist():
        look = _look(place) if named else {"color": BLUE, "marker": "o", "alpha": 0.6}
        axes.scatter(x[place], y[place], s=34, zorder=3, **look)


def _look(place: int) -> dict[str, str]:
    return {"color": SERIES[place % len(SERIES)], "marker": MARKERS[place % len(MARKERS)]}
