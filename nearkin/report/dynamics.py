"""Training by episodes, run beside run: how updates moved the points, and accuracy while training goes on.

What is logged at a step is noisy: each value is a faint point, and a strong line is their running median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nearkin.errors import DataError
from nearkin.report._canvas import INK, MUTED, WIDTH, drawing, to_png
from nearkin.report._lines import draw_curve, legend_above, legend_labels, line_style
from nearkin.report._metric_panels import (
    MetricLine,
    method_names,
    metric_lines,
    metric_panels,
    picture_height,
    write_title,
)
from nearkin.report._steps import step_series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

Logs: TypeAlias = Mapping[str, Sequence[Mapping[str, Any]]]
"""Run to the rows of its training log."""

_TITLES = {
    "norm_ratio": "Norm ratio: 1, the scale stayed; 0, nothing else changed",
    "con_alpha": "Con-alpha ratio: below 1, queries approach their own class",
    "div_alpha": "Div-alpha ratio: above 1, queries leave the other classes",
    "con_div": "Con-div ratio: below 1, the own class gains on the others",
}
_ACCURACIES = {"accuracy": "Accuracy on training episodes", "val_accuracy": "Accuracy on validation episodes"}
_KEYS = ("single values", "running median")
_ACROSS = "training episode"
_FEW = 10  # points; a shorter line is drawn as it is
_WINDOW = 0.1  # of a line: what a running median is taken over
_SHOWN = 0.005  # of the points at either end, which may lie beyond the panel
_POINT: Any = {"marker": "o", "markersize": 2.6, "linestyle": "", "markeredgewidth": 0}


def draw_dynamics(logs: Logs, *, measures: Sequence[str] = tuple(_TITLES)) -> bytes:
    """Draw how updates moved the points of their episodes, one panel a measure and one line a run.

    The few most extreme points of a panel may lie beyond it. Reference: Kim 2023, article II, figures 4 and 5.

    Args:
        logs: run to its training log. Values that are not finite, and rows without a measure, are left out.
        measures: which of the four to draw.

    Returns:
        PNG bytes, or none when there is no point.
    """
    for measure in measures:
        if measure not in _TITLES:
            raise DataError(f"There is no picture of '{measure}': choose among {', '.join(_TITLES)}.")
    lines = _lines(logs, measures)
    if not lines:
        return b""
    names = method_names(lines)
    with drawing(WIDTH, picture_height(len(lines), [*names, *_key_words(lines)])) as figure:
        grid = dict(zip(lines, figure.subplots(len(lines), 1, sharex=True, squeeze=False)[:, 0], strict=True))
        for measure, axes in grid.items():
            _draw_lines(axes, names, lines[measure])
            axes.axhline(1, color=INK, linewidth=0.9, zorder=2)
            axes.set_ylim(*_limits(lines[measure]))
            axes.ticklabel_format(axis="y", useOffset=False)
            axes.margins(x=0.02)
            write_title(axes, _TITLES[measure])
        _tick_episodes(axes)
        legend_above(figure, legend_labels(names), *_keys(lines))
        return to_png(figure)


def draw_accuracies(logs: Logs) -> bytes:
    """Draw the accuracy on training episodes above that on validation episodes, one line a run.

    Reference: Kim 2023, article II, figure 2.

    Args:
        logs: run to its training log, with `accuracy` and `val_accuracy`, shares of 1. Values that are not finite are
            left out.

    Returns:
        PNG bytes, or none when there is no point.
    """
    lines = _lines(logs, tuple(_ACCURACIES))
    if not lines:
        return b""
    names = method_names(lines)
    with drawing(WIDTH, picture_height(len(lines), [*names, *_key_words(lines)])) as figure:
        for measure, axes in metric_panels(figure, lines, _ACROSS).items():
            _draw_lines(axes, names, lines[measure])
            write_title(axes, _ACCURACIES[measure])
        _tick_episodes(axes)
        legend_above(figure, legend_labels(names), *_keys(lines))
        return to_png(figure)


def running_median(values: np.ndarray) -> np.ndarray:
    """The median (m,) about each of the values (m,), over a tenth of them; near the ends over those that there are."""
    reach = max(1, round(_WINDOW * len(values) / 2))
    padded = np.pad(values, reach, constant_values=np.nan)
    median: np.ndarray = np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1), axis=1)
    return median


def _lines(logs: Logs, keys: Sequence[str]) -> dict[str, dict[str, MetricLine]]:
    """Key to run to its line."""
    return metric_lines({key: {name: _points(log, key) for name, log in logs.items()} for key in keys}, None)


def _points(log: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    steps, values = step_series(log, key)
    return steps.tolist(), values.tolist()


def _course(line: MetricLine) -> np.ndarray:
    """What the strong line shows (m,)."""
    return line.y if len(line.x) < _FEW else running_median(line.y)


def _draw_lines(axes: Axes, names: Sequence[str], lines: Mapping[str, MetricLine]) -> None:
    """Draw faint points below strong lines; a line of few points is drawn as it is, each of them marked."""
    for name, line in lines.items():
        place = names.index(name)
        style = line_style(place)
        if len(line.x) < _FEW:
            axes.plot(line.x, line.y, zorder=4 if place == 0 else 3, **style)
            continue
        axes.plot(line.x, line.y, color=style["color"], alpha=0.22, zorder=1, **_POINT)
        draw_curve(axes, place, line.x, _course(line), travelled=line.x)


def _limits(lines: Mapping[str, MetricLine]) -> tuple[float, float]:
    """A height that holds nearly all points, every line, and 1."""
    points = np.concatenate([line.y for line in lines.values()])
    ends = np.quantile(points, (_SHOWN, 1 - _SHOWN)) if len(points) >= _FEW else points
    seen = np.concatenate([ends, [1.0], *map(_course, lines.values())])
    low, high = float(seen.min()), float(seen.max())
    room = 0.06 * (high - low) or 0.01
    return low - room, high + room


def _tick_episodes(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlabel(_ACROSS)
    axes.xaxis.set_major_locator(MaxNLocator(9, integer=True, min_n_ticks=1, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def _key_words(lines: Mapping[str, Mapping[str, MetricLine]]) -> tuple[str, ...]:
    """What the legend says of points and lines, where there are both."""
    return _KEYS if any(len(line.x) >= _FEW for panel in lines.values() for line in panel.values()) else ()


def _keys(lines: Mapping[str, Mapping[str, MetricLine]]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    looks: Any = ({"alpha": 0.5, **_POINT}, {"linewidth": 1.8})
    return [
        Line2D([], [], label=word, color=MUTED, **look) for word, look in zip(_key_words(lines), looks, strict=False)
    ]
