"""Metrics of several methods, one panel a metric: what pictures against epochs and against a setting share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from nearkin.errors import DataError
from nearkin.report._canvas import WIDTH, percent_axis
from nearkin.report._lines import fit_text, legend_height, legend_labels, plain_parts
from nearkin.report._panels import share_limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pairs: TypeAlias = Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]
"""Metric to method to two arrays (m,)."""

_PANEL, _RIM = 210, 40  # CSS pixels: the height of a panel, and of what the axis below adds
_TITLE_SIZE, _TITLE_WIDTH = 11, WIDTH - 75  # points; CSS pixels


@dataclass(frozen=True, eq=False)
class MetricLine:
    """The values of a method: finite points `x` and `y` (m,), ascending in x, and their interval, NaN without one."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray


def metric_lines(series: Pairs, intervals: Pairs | None) -> dict[str, dict[str, MetricLine]]:
    """Metric to method to its line; metrics and methods without a point are left out.

    Args:
        series: metric to method to x (m,) and y (m,).
        intervals: metric to method to the lower and upper ends (m,) of intervals, for those that have some.

    Raises:
        DataError: unless arrays fit together and every interval has its line.
    """
    for metric, methods in (intervals or {}).items():
        for method in methods:
            if method not in series.get(metric, {}):
                raise DataError(f"There is an interval of '{method}' in '{metric}' but no line: give both or neither.")
    lines = {
        metric: {
            method: line
            for method, points in methods.items()
            if len((line := _line(method, points, (intervals or {}).get(metric, {}).get(method))).x)
        }
        for metric, methods in series.items()
    }
    return {metric: methods for metric, methods in lines.items() if methods}


def method_names(lines: Mapping[str, Mapping[str, MetricLine]]) -> list[str]:
    """The methods of all panels; a name's place decides how its line looks."""
    return list(dict.fromkeys(name for methods in lines.values() for name in methods))


def picture_height(panels: int, labels: Sequence[str]) -> int:
    """The height of a picture with its legend, in CSS pixels."""
    return _RIM + _PANEL * panels + legend_height(legend_labels(labels))


def metric_panels(
    figure: Figure,
    lines: Mapping[str, Mapping[str, MetricLine]],
    across: str,
    beside: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, Axes]:
    """Metric to its empty panel, of a height that holds all of its values, shares of 1.

    Args:
        figure: what the panels fill.
        lines: metric to method to its line.
        across: the name of what the lines run against.
        beside: metric to values that shall be in sight too.
    """
    grid = dict(zip(lines, figure.subplots(len(lines), 1, sharex=True, squeeze=False)[:, 0], strict=True))
    for metric, axes in grid.items():
        parts = [part for line in lines[metric].values() for part in (line.y, line.low, line.high)]
        values = np.concatenate([*parts, (beside or {}).get(metric, ())])
        values = values[np.isfinite(values)]
        axes.set_ylim(*share_limits(float(values.min()), float(values.max())))
        axes.margins(x=0.02)
        percent_axis(axes, "y")
    grid[next(reversed(grid))].set_xlabel(across)
    return grid


def write_title(axes: Axes, title: str) -> None:
    """A panel's title, cut to the width of the picture."""
    axes.set_title(fit_text(title, _TITLE_WIDTH, _TITLE_SIZE, "bold"), fontsize=_TITLE_SIZE)


def _line(name: str, points: Sequence[Sequence[float]], interval: Sequence[Sequence[float]] | None) -> MetricLine:
    x, y = plain_parts(name, points, "place", "value")
    low, high = (np.full(y.shape, np.nan),) * 2 if interval is None else plain_parts(name, interval, "low", "high")
    if x.ndim != 1 or not x.shape == y.shape == low.shape == high.shape:
        shapes = ", ".join(str(part.shape) for part in ((x, y) if interval is None else (x, y, low, high)))
        raise DataError(f"The line of '{name}' needs flat arrays of one length, but got {shapes}.")
    if (low > high).any():
        raise DataError(f"An interval of '{name}' ends below its beginning: give the lower ends first.")
    order = np.argsort(x, kind="stable")
    order = order[np.isfinite(x[order]) & np.isfinite(y[order])]
    return MetricLine(x[order], y[order], low[order], high[order])
