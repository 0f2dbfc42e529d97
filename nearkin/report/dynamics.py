"""Training dynamics: how updates moved points, and how class clusters shrink, drift and separate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nearkin.errors import DataError
from nearkin.report.canvas import BLUE, GREEN, INK, MUTED, VERMILION, WIDTH, drawing, percent_axis, to_png
from nearkin.report.lines import (
    MetricLine,
    draw_curve,
    fit_text,
    legend_above,
    legend_labels,
    line_style,
    mark_places,
    method_names,
    metric_lines,
    metric_panels,
    picture_height,
    plain_numbers,
    share_limits,
    stacked_panels,
    step_series,
    text_width,
    tick_whole_numbers,
    write_title,
)
from nearkin.report.values import LOWER, course_text, value_text

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
        PNG bytes, or empty bytes when there is no point.
    """
    for measure in measures:
        if measure not in _TITLES:
            raise DataError(f"Unknown measure '{measure}': choose from {', '.join(_TITLES)}.")
    lines = _lines(logs, measures)
    if not lines:
        return b""
    names = method_names(lines)
    with drawing(WIDTH, picture_height(len(lines), [*names, *_key_words(lines)])) as figure:
        grid = stacked_panels(figure, lines)
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
        PNG bytes, or empty bytes when there is no point.
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


def _running_course(line: MetricLine) -> np.ndarray:
    """What the strong line shows (m,)."""
    return line.y if len(line.x) < _FEW else running_median(line.y)


def _draw_lines(axes: Axes, names: Sequence[str], lines: Mapping[str, MetricLine]) -> None:
    """Draw faint points below strong lines; a line of few points is drawn as it is, each of them marked."""
    for name, line in lines.items():
        place = names.index(name)
        style = line_style(place)
        if len(line.x) < _FEW:
            axes.plot(line.x, line.y, **style)
            continue
        axes.plot(line.x, line.y, color=style["color"], alpha=0.22, zorder=1, **_POINT)
        draw_curve(axes, place, line.x, _running_course(line), travelled=line.x)


def _limits(lines: Mapping[str, MetricLine]) -> tuple[float, float]:
    """A height that holds nearly all points, every line, and 1."""
    points = np.concatenate([line.y for line in lines.values()])
    ends = np.quantile(points, (_SHOWN, 1 - _SHOWN)) if len(points) >= _FEW else points
    seen = np.concatenate([ends, [1.0], *map(_running_course, lines.values())])
    low, high = float(seen.min()), float(seen.max())
    room = 0.06 * (high - low) or 0.01
    return low - room, high + room


def _tick_episodes(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    tick_whole_numbers(axes, _ACROSS)
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


_PANEL, _RIM = 175, 40  # CSS pixels: the height of a panel, and of what the axis below adds
_MOST_MARKED = 40  # of more steps only the line is drawn
_FAINTEST, _INK_OF_ALL = 0.12, 14.0  # opacity of a class's line, at least, and that of all of them together
_HEADROOM = 1.3  # of the largest value: what lies beyond it is free for the words of the marks
_LATE = 0.8  # of the way: the words of a mark beyond it stand before their line
_LEVELS = 2  # heights that the words of neighbouring marks may take
_TEXT = 9  # points
_WORDS_WIDTH, _NAME_WIDTH = 190, 400  # CSS pixels: of a mark's words, and of a class's name
_INNER = WIDTH - 90  # CSS pixels: a panel without its numbers, or a little less
_GAP = 10  # CSS pixels between words of one height
_PAPER: Any = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
"""Behind words, so that lines do not cross them."""


def draw_clusters(
    steps: Any,
    radii: Any,
    drift: Any,
    accuracy: Any,
    *,
    class_names: Sequence[str] = (),
    marks: Mapping[int, str] | None = None,
) -> bytes:
    """Draw cluster radii above centroid drifts above the accuracy of the nearest centroid, against steps.

    Args:
        steps: at which training looked, ascending, (T,).
        radii: mean distance of the items of a class to their centroid, (T, C).
        drift: how far each centroid was from where the look before had it, (T - 1, C).
        accuracy: share of items nearest to their own class's centroid, (T,).
        class_names: of the C classes, to name the widest; none: it is not named.
        marks: steps that are marked in every panel, such as those at which a margin grew, and what to write there.

    Returns:
        PNG bytes, or b"" when there is nothing to draw. After a single look there is no drift, and no panel of it.
    """
    at = plain_numbers(steps, "steps")
    wide, moved = plain_numbers(radii, "radii"), plain_numbers(drift, "drift")
    told = plain_numbers(accuracy, "accuracy")
    _check_shapes(at, wide, moved, told, len(class_names))
    if not wide.size:
        return b""
    panels = 3 if len(at) > 1 else 2
    shown = _marks_within(marks or {}, float(at[-1]))
    with drawing(WIDTH, _RIM + _PANEL * panels) as figure:
        grid = list(figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0])
        _draw_classes(grid[0], at, wide, BLUE, bool(shown))
        grid[0].set_title(f"Cluster radius {LOWER}: mean {course_text(wide.mean(axis=1))}")
        if len(class_names):
            _name_widest(grid[0], wide[-1], class_names)
        if panels == 3:
            _draw_classes(grid[1], at[1:], moved, VERMILION, False)
            grid[1].set_title(f"Centroid drift {LOWER}: mean {course_text(moved.mean(axis=1))}")
        _draw_accuracy(grid[-1], at, told)
        _write_marks(grid, shown, at)
        tick_whole_numbers(grid[-1], "step")
        return to_png(figure)


def _check_shapes(steps: np.ndarray, radii: np.ndarray, drift: np.ndarray, accuracy: np.ndarray, names: int) -> None:
    times = len(steps) if steps.ndim == 1 else -1
    classes = radii.shape[1] if radii.ndim == 2 else -1
    expected = ((times,), (times, classes), (max(times - 1, 0), classes), (times,))
    found = (steps.shape, radii.shape, drift.shape, accuracy.shape)
    if found != expected:
        raise DataError(
            f"Steps (T,), radii (T, C), drift (T - 1, C) and accuracy (T,) must fit together, but their shapes are "
            f"{', '.join(str(shape) for shape in found)}."
        )
    if not all(np.isfinite(values).all() for values in (steps, radii, drift, accuracy)):
        raise DataError("Steps, radii, drift and accuracy of clusters must be finite.")
    if names not in (0, classes):
        raise DataError(f"There are {classes} classes and {names} class names: give one for each class, or none.")


def _marks_within(marks: Mapping[int, str], last: float) -> dict[int, str]:
    """Those of steps after the beginning and before the end, in order; others mark nothing that is drawn."""
    return {step: marks[step] for step in sorted(marks) if 0 < step <= last}


def _draw_classes(axes: Axes, steps: np.ndarray, values: np.ndarray, colour: str, marked: bool) -> None:
    """A thin line for each class, of values (T, C), and a thick one for their mean, from 0 on."""
    from matplotlib.collections import LineCollection

    opacity = max(_FAINTEST, min(0.5, _INK_OF_ALL / values.shape[1]))
    lines = np.stack([np.broadcast_to(steps[:, None], values.shape), values], axis=2).transpose(1, 0, 2)
    axes.add_collection(LineCollection(list(lines), colors=MUTED, linewidths=0.6, alpha=opacity, zorder=2))
    if len(steps) == 1:  # a line of one point is not seen
        axes.plot(np.repeat(steps, values.shape[1]), values[0], "o", color=MUTED, alpha=opacity, markersize=3, zorder=2)
    marker = "o" if len(steps) <= _MOST_MARKED else ""
    axes.plot(steps, values.mean(axis=1), color=colour, linewidth=2.4, marker=marker, markersize=4, zorder=3)
    top = float(values.max()) or 1.0
    axes.set_ylim(-0.03 * top, (_HEADROOM if marked else 1.08) * top)
    axes.margins(x=0.02)


def _draw_accuracy(axes: Axes, steps: np.ndarray, accuracy: np.ndarray) -> None:
    marker = "o" if len(steps) <= _MOST_MARKED else ""
    axes.plot(steps, accuracy, color=GREEN, linewidth=2.0, marker=marker, markersize=4, zorder=3)
    axes.set_ylim(*share_limits(float(accuracy.min()), float(accuracy.max())))
    axes.set_title(f"Items nearest to their own centroid: {course_text(accuracy, percent=True)}")
    axes.margins(x=0.02)
    percent_axis(axes, "y")


def _write_marks(grid: Sequence[Axes], marks: Mapping[int, str], steps: np.ndarray) -> None:
    """A line through every panel at each mark, and its words in the first where there is room for them."""
    mark_places(grid, *marks)
    for step, words, level, after in _placed(marks, float(steps[0]), float(steps[-1])):
        grid[0].annotate(
            words,
            (step, 0.96 - 0.13 * level),
            xycoords=("data", "axes fraction"),
            xytext=(4 if after else -4, 0),
            textcoords="offset points",
            ha="left" if after else "right",
            va="top",
            fontsize=_TEXT,
            color=MUTED,
            bbox=_PAPER,
        )


def _placed(marks: Mapping[int, str], first: float, last: float) -> list[tuple[int, str, int, bool]]:
    """Step, words, height and whether they stand after their line, of the marks whose words cover no others.

    Args:
        marks: steps in ascending order, and what to write there.
        first: where the picture begins.
        last: where it ends.
    """
    first = min(first, *marks) if marks else first
    scale = _INNER / max(last - first, 1.0)
    taken: list[list[tuple[float, float]]] = [[] for _ in range(_LEVELS)]
    placed = []
    for step, given in marks.items():
        words = fit_text(given, _WORDS_WIDTH, _TEXT)
        width, at = text_width(words, _TEXT) + _GAP, (step - first) * scale
        after = at <= _LATE * _INNER and at + width <= _INNER
        low, high = (at, at + width) if after else (at - width, at)
        for level, spans in enumerate(taken):
            if all(high <= begins or low >= ends for begins, ends in spans):
                spans.append((low, high))
                placed.append((step, words, level, after))
                break
    return placed


def _name_widest(axes: Axes, radii: np.ndarray, names: Sequence[str]) -> None:
    """Say below a panel which class is widest, of radii (C,): inside it words would cover lines."""
    widest = int(np.argmax(radii))
    name, radius = fit_text(names[widest], _NAME_WIDTH, _TEXT), value_text(float(radii[widest]), False)
    axes.set_xlabel(f"widest at the end: {name}, {radius}", loc="right", fontsize=_TEXT)
