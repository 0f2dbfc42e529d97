"""Line charts: line styles, legends, series from a training log, and panels that share an axis.

A name's place decides its colour, dash and marker, so it looks the same in every picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nearkin.errors import DataError
from nearkin.report import canvas
from nearkin.report.canvas import DASHES, MARKERS, MUTED, SERIES, WIDTH
from nearkin.report.values import MISSING, plain_parts, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


_LEGEND_SIZE, _LEGEND_ROW = 9, 21  # type in points, a row in CSS pixels
_NAME_WIDTH, _HANDLE_WIDTH = 185, 64  # of a name, and of its line with the gaps around: two always fit side by side
_MARKS = 6  # on a curve of many points


def curve_points(name: str, curve: Sequence[Any], *words: str) -> tuple[np.ndarray, np.ndarray]:
    """The finite points of a curve: two arrays (m,)."""
    x, y = plain_parts(name, curve, *words)
    if x.ndim != 1 or x.shape != y.shape:
        raise DataError(f"The curve of '{name}' needs two flat arrays of one length, but got {x.shape} and {y.shape}.")
    finite = np.isfinite(x) & np.isfinite(y)
    return x[finite], y[finite]


def line_style(place: int, colour: str = "") -> dict[str, Any]:
    """Colour, dash and marker of the line at a place; dash and marker alone distinguish twenty lines."""
    return {
        "color": colour or SERIES[place % len(SERIES)],
        "linestyle": DASHES[place % len(DASHES)],
        "linewidth": 2.0 if place == 0 else 1.6,
        "marker": MARKERS[place % len(MARKERS)],
        "markersize": 5.5,
        "markerfacecolor": "white",
        "markeredgewidth": 1.4,
        "zorder": 4 if place == 0 else 3,
    }


def draw_curve(
    axes: Axes, place: int, x: np.ndarray, y: np.ndarray, *, travelled: np.ndarray | None = None, colour: str = ""
) -> None:
    """A line through points (m,), with a few markers spread evenly over the way `travelled` (m,), ascending; else x.

    Each place begins its markers elsewhere, so that those of equal curves do not hide one another.
    """
    if not len(x):
        return
    way = x if travelled is None else travelled
    shares = (np.arange(_MARKS) + (place % len(MARKERS) + 0.5) / len(MARKERS)) / _MARKS
    marked = np.searchsorted(way, way[0] + shares * (way[-1] - way[0]))
    axes.plot(x, y, markevery=np.unique(np.minimum(marked, len(x) - 1)).tolist(), **line_style(place, colour))


def legend_labels(names: Iterable[str], areas: Mapping[str, float] | None = None, what: str = "area") -> list[str]:
    """Names as a legend tells them, with the areas of those that have one."""
    labels = []
    for name in names:
        # Matplotlib leaves a label that is empty or begins with an underscore out of the legend.
        label = canvas.fit_text(name.lstrip("_"), _NAME_WIDTH, _LEGEND_SIZE) or MISSING
        labels.append(f"{label}: {what} {value_text(float(areas[name]), True)}" if areas and name in areas else label)
    return labels


def legend_height(labels: Sequence[str]) -> int:
    """Height of a legend in CSS pixels."""
    return 14 + _LEGEND_ROW * -(-len(labels) // _columns(labels))


def legend_above(figure: Figure, labels: Sequence[str], *more: Line2D, colours: Sequence[str] = ()) -> None:
    """A legend over the whole width, each label in the style of its place, in as many columns as fit."""
    looks = [line_style(place, colours[place] if colours else "") for place in range(len(labels))]
    handles = [*(canvas.mark(label, **look) for label, look in zip(labels, looks, strict=True)), *more]
    columns = _columns([str(handle.get_label()) for handle in handles])
    canvas.draw_legend(
        figure, handles, columns, fontsize=_LEGEND_SIZE, handlelength=2.8, columnspacing=1.2, borderpad=0.2
    )


@contextmanager
def chart(height: int, labels: Sequence[str], *more: Line2D) -> Iterator[tuple[Figure, Axes]]:
    """A figure and its axes of a height, below a legend in the styles of lines."""
    with canvas.drawing(WIDTH, height + legend_height([*labels, *(str(line.get_label()) for line in more)])) as figure:
        axes = figure.add_subplot()
        legend_above(figure, labels, *more)
        yield figure, axes


def _columns(labels: Sequence[str]) -> int:
    widest = max(canvas.text_width(label, _LEGEND_SIZE) for label in labels)
    return max(1, min(4, int(WIDTH // (widest + _HANDLE_WIDTH))))


def stacked_panels(figure: Figure, names: Iterable[str]) -> dict[str, Axes]:
    """Name to its panel, one below the other, with one axis below them all."""
    names = list(names)
    return dict(zip(names, figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0], strict=True))


def mark_places(panels: Iterable[Axes], *places: float) -> None:
    """A thin dashed line at each place through every panel."""
    for axes in panels:
        for place in places:
            axes.axvline(place, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)


def tick_whole_numbers(axes: Axes, label: str) -> None:
    """Name the axis below, and tick whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(9, integer=True, min_n_ticks=1, steps=[1, 2, 2.5, 5, 10]))


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
    """A Gaussian average over about a twentieth of the curve, without lag and unbiased at both ends."""
    sigma = max(1.0, len(values) / 50)
    reach = min(int(3 * sigma), len(values) - 1)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weight = np.convolve(np.ones(len(values)), kernel)[reach : reach + len(values)]
    return np.convolve(values, kernel)[reach : reach + len(values)] / weight


_NARROWEST = 0.04  # range of accuracies


def share_limits(low: float, high: float) -> tuple[float, float]:
    """Limits close to the values, but not so close that noise looks large, nor far beyond 0 or 100 %."""
    room = max(0.1 * (high - low), (_NARROWEST - (high - low)) / 2)
    bottom, top = low - room, high + room
    rim = 0.03 * (top - bottom)
    return (bottom if bottom >= 0 else min(low, 0.0) - rim), max(high, min(top, 1.0)) + rim


Pairs: TypeAlias = Mapping[str, Mapping[str, tuple[Sequence[float] | np.ndarray, Sequence[float] | np.ndarray]]]
"""Metric to method to two arrays (m,)."""

_METRIC_PANEL, _METRIC_RIM = 210, 40  # CSS pixels: the height of a panel, and of what the axis below adds
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
                raise DataError(f"'{method}' has an interval of '{metric}' but no line: give both or neither.")
    lines = {
        metric: {
            method: line
            for method, points in methods.items()
            if len((line := _metric_line(method, points, (intervals or {}).get(metric, {}).get(method))).x)
        }
        for metric, methods in series.items()
    }
    return {metric: methods for metric, methods in lines.items() if methods}


def method_names(lines: Mapping[str, Mapping[str, MetricLine]]) -> list[str]:
    """The methods of all panels; a name's place decides how its line looks."""
    return list(dict.fromkeys(name for methods in lines.values() for name in methods))


@contextmanager
def metric_picture(
    lines: Mapping[str, Mapping[str, MetricLine]],
    across: str,
    *more: Line2D,
    beside: Mapping[str, Sequence[float]] | None = None,
    colours: Sequence[str] = (),
) -> Iterator[tuple[Figure, dict[str, Axes]]]:
    """A figure with a legend of methods and, by metric, its empty panels, each as high as its values, shares of 1.

    Args:
        lines: metric to method to its line.
        across: the name of what the lines run against.
        more: what the legend explains besides.
        beside: metric to values that shall be in sight too.
        colours: of the methods, in place of those of their places.
    """
    labels = legend_labels(method_names(lines))
    height = legend_height([*labels, *(str(line.get_label()) for line in more)])
    with canvas.drawing(WIDTH, _METRIC_RIM + _METRIC_PANEL * len(lines) + height) as figure:
        grid = stacked_panels(figure, lines)
        for metric, axes in grid.items():
            parts = [part for line in lines[metric].values() for part in (line.y, line.low, line.high)]
            fit_shares(axes, *parts, (beside or {}).get(metric, ()))
            axes.margins(x=0.02)
        axes.set_xlabel(across)
        legend_above(figure, labels, *more, colours=colours)
        yield figure, grid


def fit_shares(axes: Axes, *parts: Any) -> None:
    """Let an axis upwards, in percent, hold the finite of some shares of 1, and not much more; all if there is none."""
    values = np.concatenate([np.zeros(0), *parts])
    values = values[np.isfinite(values)] if np.isfinite(values).any() else np.array([0.0, 1.0])
    axes.set_ylim(*share_limits(float(values.min()), float(values.max())))
    canvas.percent_axis(axes, "y")


def write_title(axes: Axes, title: str) -> None:
    """A panel's title, cut to the width of the picture."""
    axes.set_title(canvas.fit_text(title, _TITLE_WIDTH, _TITLE_SIZE, "bold"), fontsize=_TITLE_SIZE)


def _metric_line(name: str, points: Sequence[Any], interval: Sequence[Any] | None) -> MetricLine:
    x, y = plain_parts(name, points, "place", "value")
    low, high = (np.full(y.shape, np.nan),) * 2 if interval is None else plain_parts(name, interval, "low", "high")
    if x.ndim != 1 or not x.shape == y.shape == low.shape == high.shape:
        shapes = ", ".join(str(part.shape) for part in ((x, y) if interval is None else (x, y, low, high)))
        raise DataError(f"The line of '{name}' needs flat arrays of one length, but got {shapes}.")
    if (low > high).any():
        raise DataError(f"An interval of '{name}' ends below its start: give the lower ends first.")
    order = np.argsort(x, kind="stable")
    order = order[np.isfinite(x[order]) & np.isfinite(y[order])]
    return MetricLine(x[order], y[order], low[order], high[order])
