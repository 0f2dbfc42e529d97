"""Metrics against a setting, such as the weight of a regulariser, beside what is reached without it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError
from nearkin.report._canvas import MUTED, WIDTH, drawing, to_png
from nearkin.report._lines import legend_above, legend_labels, line_style
from nearkin.report._metric_panels import (
    MetricLine,
    Pairs,
    method_names,
    metric_lines,
    metric_panels,
    picture_height,
    write_title,
)
from nearkin.report.formatting import value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BASE = "base"
_LEVEL: Any = {"color": MUTED, "linewidth": 1.6, "linestyle": (0, (1, 1.5))}
_APART = 0.012  # of the axis: two methods at one value of the setting
_TICKS, _TICK_GAP = 12, 0.05  # this many values are ticked if they lie this share of the axis apart


def draw_sweep(
    series: Pairs,
    *,
    intervals: Pairs | None = None,
    base: Mapping[str, tuple[float, float, float]] | None = None,
    of: str = "unseen classes",
    across: str = "λ",
    best_at: Callable[[float], str] | None = None,
) -> bytes:
    """Draw one panel a metric, such as NMI above Recall@1, with one line a method and a bar for each interval.

    Args:
        series: metric to method to values of the setting (m,) and shares of 1 (m,). Points that are not finite are
            left out.
        intervals: metric to method to the lower and upper ends (m,) of intervals.
        base: metric to the value without the setting, drawn as a line, and the ends of its interval, NaN for none.
        of: what was measured, for the titles.
        across: the name of the setting.
        best_at: how titles tell the value of the setting that is best; `at λ 0.1` unless given.

    Returns:
        PNG bytes, or none when there is no point.
    """
    lines = metric_lines(series, intervals)
    if not lines:
        return b""
    from matplotlib.lines import Line2D

    told = best_at or (lambda value: f"at {across} {value:g}")
    names = method_names(lines)
    levels = {metric: level for metric, level in _levels(base or {}, series).items() if metric in lines}
    with drawing(WIDTH, picture_height(len(lines), [*names, _BASE])) as figure:
        for metric, axes in metric_panels(figure, lines, across, levels).items():
            _draw_lines(axes, names, lines[metric])
            words = f"{metric} on {of}: best {_best_text(lines[metric], told)}"
            if metric in levels:
                value, low, high = levels[metric]
                axes.axhspan(low, high, color=MUTED, alpha=0.14, linewidth=0, zorder=1)
                axes.axhline(value, zorder=2, **_LEVEL)
                words += f", {_BASE} {value_text(value, True)}"
            write_title(axes, words)
        _tick(axes, np.unique(np.concatenate([line.x for methods in lines.values() for line in methods.values()])))
        more = [Line2D([], [], label=_BASE, **_LEVEL)] if levels else []
        legend_above(figure, legend_labels(names), *more)
        return to_png(figure)


def _levels(base: Mapping[str, tuple[float, float, float]], series: Pairs) -> dict[str, tuple[float, float, float]]:
    """Metric to the value and the interval without the setting, where there is a value."""
    for metric in base:
        if metric not in series:
            raise DataError(f"There is a base of '{metric}' but no line: give both or neither.")
        if np.shape(base[metric]) != (3,):
            raise DataError(f"The base of '{metric}' must be three numbers (value, low, high), but got {base[metric]}.")
    return {metric: level for metric, level in base.items() if math.isfinite(level[0])}


def _draw_lines(axes: Axes, names: Sequence[str], lines: Mapping[str, MetricLine]) -> None:
    """Draw each line with its intervals; those of several methods stand a little apart, not one upon the other."""
    places = np.concatenate([line.x for line in lines.values()])
    apart = _APART * float(np.ptp(places))
    for name, line in lines.items():
        place = names.index(name)
        x = line.x + apart * (place - (len(names) - 1) / 2)
        style = line_style(place)
        middle, half = (line.low + line.high) / 2, (line.high - line.low) / 2
        axes.errorbar(x, middle, half, fmt="none", ecolor=style["color"], elinewidth=1.3, capsize=3.5, zorder=2)
        axes.plot(x, line.y, zorder=4 if place == 0 else 3, **style)


def _best_text(lines: Mapping[str, MetricLine], told: Callable[[float], str]) -> str:
    """The highest value of all methods and where it is reached."""
    best = max(lines.values(), key=lambda line: float(line.y.max()))
    place = int(np.argmax(best.y))
    return f"{value_text(best.y[place], True)} {told(float(best.x[place]))}"


def _tick(axes: Axes, places: np.ndarray) -> None:
    """Tick just the values that were tried, if they are few and not too near to each other."""
    if len(places) <= _TICKS and (np.diff(places) >= _TICK_GAP * np.ptp(places)).all():
        axes.set_xticks(places, [f"{place:g}" for place in places])
