"""Metrics as curves, against training steps, epochs, a setting, the number of dimensions, or sizes of attacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError
from nearkin.report import canvas
from nearkin.report.canvas import BLUE, DASHES, FAINT, INK, MARKERS, MUTED, SERIES, WIDTH
from nearkin.report.lines import (
    MetricLine,
    Pairs,
    Series,
    chart,
    curve_points,
    draw_curve,
    draw_noisy,
    fit_shares,
    legend_labels,
    line_style,
    mark_places,
    method_names,
    metric_lines,
    metric_picture,
    stacked_panels,
    step_series,
    tick_whole_numbers,
    write_title,
)
from nearkin.report.values import shorten, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_PREFIX = "val_"
_USUAL = ("val_accuracy", "val_MAP@R", "val_P@1")
"""What selects the weights comes first: the accuracy of episodes where there are some, else MAP@R."""
_LENGTHS = ("val_covering_radius", "val_violation", "val_violation_bound")
"""Lower is better; drawn elsewhere."""


def draw_curves(
    history: Sequence[Mapping[str, float]],
    *,
    loss: str = "loss",
    metrics: Sequence[str] | None = None,
    percent: bool = True,
) -> bytes:
    """Draw the loss, raw and smoothed, above the validation metrics, with the best step marked.

    By default accuracy, MAP@R and P@1 have one panel, and what a recipe asked for besides
    (`training.validation_metrics`) the next: NMI would press curves of a few percent flat.

    Args:
        history: rows such as `{"step": 10, "loss": 1.2}` or `{"step": 50, "val_MAP@R": 0.3}`; a step that occurs
            twice, as after a resumed run, counts with its last row.
        loss: key of the loss.
        metrics: keys of the metrics, higher is better, the first decides the best step; by default accuracy, MAP@R and
            P@1 on the validation classes, then every other `val_` key that is a metric.
        percent: whether the metrics are shares of 1.

    Returns:
        PNG bytes, or empty bytes when there is nothing to draw.
    """
    groups = [list(metrics)] if metrics is not None else _usual_groups(history)
    losses = step_series(history, loss)
    drawn = [{key: series for key in keys if len((series := step_series(history, key))[0])} for keys in groups]
    drawn = [curves for curves in drawn if curves]
    panels = int(len(losses[0]) > 0) + len(drawn)
    if not panels:
        return b""
    with canvas.drawing(WIDTH, 40 + 210 * panels) as figure:
        grid = list(stacked_panels(figure, map(str, range(panels))).values())
        if len(losses[0]):
            draw_noisy(grid[0], losses, BLUE)
            grid[0].set_title("Training loss")
        for axes, curves in zip(grid[panels - len(drawn) :], drawn, strict=True):
            _draw_metrics(axes, curves, percent)
        if drawn:
            axes, (first, (steps, values)) = grid[panels - len(drawn)], next(iter(drawn[0].items()))
            best = int(np.argmax(values))
            star: Any = {"marker": "*", "markersize": 13, "color": "white", "markeredgecolor": INK}
            axes.plot(steps[best], values[best], zorder=5, **star)
            told = f"{_name(first)} {value_text(values[best], percent)} at step {steps[best]:,.0f}"
            axes.set_title(f"Validation: best {told}")
            mark_places(grid, float(steps[best]))
        grid[-1].set_xlabel("step")
        return canvas.to_png(figure)


def _draw_metrics(axes: Axes, curves: Mapping[str, Series], percent: bool) -> None:
    """Draw every metric of a panel."""
    for place, (key, (steps, values)) in enumerate(curves.items()):
        marker = MARKERS[place % len(MARKERS)] if len(steps) <= 40 else ""
        look: Any = {"linestyle": DASHES[place % len(DASHES)], "marker": marker, "markersize": 3.5, "linewidth": 1.6}
        axes.plot(steps, values, color=SERIES[(place + 1) % len(SERIES)], label=_name(key).lstrip("_"), **look)
    axes.set_title(f"Validation: {_name(next(iter(curves)))}" if len(curves) == 1 else "Validation: further metrics")
    if len(curves) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.margins(x=0.02, y=0.15)
    if percent:
        fit_shares(axes, *(line for _, line in curves.values()))


def _usual_groups(history: Sequence[Mapping[str, float]]) -> list[list[str]]:
    """What to draw when nobody says, a list for each panel: accuracy, MAP@R and P@1, then all else validated."""
    found = dict.fromkeys(key for row in history for key in row if key.startswith(_PREFIX))
    usual = [key for key in _USUAL if key in found]
    return [usual, [key for key in found if key not in (*_USUAL, *_LENGTHS)]]


def _name(key: str) -> str:
    return shorten(key.removeprefix(_PREFIX), 28)


_MARKED = 12
"""Points of a line, up to which each has its marker."""


def draw_metric_curves(
    series: Pairs,
    *,
    intervals: Pairs | None = None,
    of: str = "unseen classes",
    across: str = "epoch",
    plain: Collection[str] = (),
    alike: Mapping[str, int] | None = None,
) -> bytes:
    """Draw one panel a metric, such as NMI above Recall@1, with one line a method.

    Up to twenty lines are told apart without their colours; more than six are hard to read.

    Args:
        series: metric to method to epochs (m,) and shares of 1 (m,); methods need not have the same epochs. Points
            that are not finite are left out.
        intervals: metric to method to the lower and upper ends (m,) of intervals, drawn as bands.
        of: what was measured, for the titles.
        across: what the lines run against.
        plain: the metrics that are no shares, such as correlations, whose axis has plain numbers.
        alike: method to the place of its colour among those of all pictures, for methods that share one or have it in
            another picture too; without it a method's own place counts.

    Returns:
        PNG bytes, or empty bytes when there is no point.
    """
    lines = metric_lines(series, intervals)
    if not lines:
        return b""
    names = method_names(lines)
    colours = [SERIES[(alike or {}).get(name, place) % len(SERIES)] for place, name in enumerate(names)]
    with metric_picture(lines, across, colours=colours) as (figure, grid):
        for metric, axes in grid.items():
            _draw_bands(axes, lines[metric], names, colours)
            write_title(axes, f"{metric} on {of}")
            if metric in plain:
                canvas.plain_axis(axes, "y")
        tick_whole_numbers(axes, across)
        return canvas.to_png(figure)


def _draw_bands(axes: Axes, lines: Mapping[str, MetricLine], names: Sequence[str], colours: Sequence[str]) -> None:
    """Draw each line with its intervals as a band."""
    for name, line in lines.items():
        place = names.index(name)
        colour = colours[place % len(colours)]
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.16, linewidth=0, zorder=2)
        if len(line.x) <= _MARKED:
            axes.plot(line.x, line.y, **line_style(place, colour))
        else:
            draw_curve(axes, place, line.x, line.y, colour=colour)


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
        PNG bytes, or empty bytes when there is no point.
    """
    lines = metric_lines(series, intervals)
    if not lines:
        return b""
    told = best_at or (lambda value: f"at {across} {value:g}")
    names = method_names(lines)
    levels = {metric: level for metric, level in _levels(base or {}, series).items() if metric in lines}
    more = [canvas.mark(_BASE, **_LEVEL)] if levels else []
    with metric_picture(lines, across, *more, beside=levels) as (figure, grid):
        for metric, axes in grid.items():
            _draw_lines(axes, names, lines[metric])
            best = max(lines[metric].values(), key=lambda line: float(line.y.max()))
            place = int(np.argmax(best.y))
            words = f"{metric} on {of}: best {value_text(best.y[place], True)} {told(float(best.x[place]))}"
            if metric in levels:
                value, low, high = levels[metric]
                axes.axhspan(low, high, color=MUTED, alpha=0.14, linewidth=0, zorder=1)
                axes.axhline(value, zorder=2, **_LEVEL)
                words += f", {_BASE} {value_text(value, True)}"
            write_title(axes, words)
        places = _places(lines)
        # Just the values that were tried, if they are few and not too near to each other.
        if len(places) <= _TICKS and (np.diff(places) >= _TICK_GAP * np.ptp(places)).all():
            axes.set_xticks(places, [f"{place:g}" for place in places])
        return canvas.to_png(figure)


def _places(lines: Mapping[str, Mapping[str, MetricLine]]) -> np.ndarray:
    """All places of all lines, ascending (m,)."""
    return np.unique(np.concatenate([line.x for methods in lines.values() for line in methods.values()]))


def _levels(base: Mapping[str, tuple[float, float, float]], series: Pairs) -> dict[str, tuple[float, float, float]]:
    """Metric to the value and the interval without the setting, where there is a value."""
    for metric in base:
        if metric not in series:
            raise DataError(f"'{metric}' has a base but no line: give both or neither.")
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
        axes.plot(x, line.y, **style)


_SIZE_TICK_GAP = 0.06  # of the axis


def draw_sizes(series: Pairs, *, intervals: Pairs | None = None, of: str = "unseen classes") -> bytes:
    """Draw one panel a metric, with one line a way of cutting, on an axis where halves are equally far apart.

    Args:
        series: metric to way to sizes (m,), from 1, and shares of 1 (m,). Points that are not finite are left out.
        intervals: metric to way to the lower and upper ends (m,) of intervals, drawn as bands.
        of: what was measured, for the titles.

    Returns:
        PNG bytes, or empty bytes when there is no point.
    """
    lines = metric_lines(series, intervals)
    if not lines:
        return b""
    names = method_names(lines)
    with metric_picture(lines, "dimensions") as (figure, grid):
        for metric, axes in grid.items():
            axes.set_xscale("log", base=2)
            _draw_bands(axes, lines[metric], names, SERIES)
            write_title(axes, f"{metric} on {of}")
        ticks = _apart(_places(lines))
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        return canvas.to_png(figure)


def _apart(places: np.ndarray) -> np.ndarray:
    """Those of ascending places (m,) whose ticks do not touch, the last one among them."""
    logs = np.log2(places)
    kept = [len(places) - 1]
    for place in range(len(places) - 2, -1, -1):
        if logs[kept[-1]] - logs[place] >= _SIZE_TICK_GAP * np.ptp(logs):
            kept.append(place)
    return places[kept[::-1]]


def draw_robustness(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    label: str,
    *,
    marks: Mapping[str, float] | None = None,
    steps: bool = False,
) -> bytes:
    """Draw accuracies against sizes of perturbations.

    Args:
        curves: name to sizes (m,) and shares of 1 (m,).
        label: what the sizes are.
        marks: name to a size at which something is worth a line.
        steps: whether curves are known everywhere, and fall where they fall.

    Returns:
        PNG bytes, or empty bytes when there is no point.
    """
    points = {name: curve_points(name, curve, "sizes", "accuracies") for name, curve in curves.items()}
    if not any(len(x) for x, _ in points.values()):
        return b""
    with chart(300, legend_labels(points)) as (figure, axes):
        for place, (x, y) in enumerate(points.values()):
            stairs = {"drawstyle": "steps-post", "marker": ""} if steps else {}
            axes.plot(x, y, **{**line_style(place), "zorder": 3, **stairs})
        for name, size in (marks or {}).items():
            axes.axvline(size, color=FAINT, linewidth=1, zorder=1)
            look = {"rotation": 90, "fontsize": 8, "color": MUTED, "va": "bottom"}
            canvas.note(axes, name, (size, 0.01), (3, 3), ("data", "axes fraction"), **look)
        axes.set(xlabel=label, ylabel="accuracy", ylim=(-0.02, 1.03))
        axes.set_xlim(left=0)
        canvas.percent_axis(axes, "y")
        return canvas.to_png(figure)
