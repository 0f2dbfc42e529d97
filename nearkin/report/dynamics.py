"""Training dynamics: how updates moved points, how class clusters shrink and drift, and the class adversary.

The adaptive coefficient of the adversary is `-tanh(loss - threshold) * weight`: below zero the model helps the
classifier, above zero it confuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nearkin.errors import DataError
from nearkin.report import canvas
from nearkin.report.canvas import BLUE, GREEN, INK, MUTED, VERMILION, WIDTH
from nearkin.report.lines import (
    MetricLine,
    Series,
    draw_curve,
    draw_noisy,
    fit_shares,
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
from nearkin.report.values import LOWER, change_text, course_text, plain_numbers, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Logs: TypeAlias = Mapping[str, Sequence[Mapping[str, Any]]]
"""Run to the rows of its training log."""

_TITLES = {
    "norm_ratio": "Norm ratio: 1, the scale stayed; 0, nothing else changed",
    "con_alpha": "Con-alpha ratio: below 1, queries approach their own class",
    "div_alpha": "Div-alpha ratio: above 1, queries leave the other classes",
    "con_div": "Con-div ratio: below 1, the own class gains on the others",
}
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
    from matplotlib.ticker import ScalarFormatter

    def finish(axes: Axes, lines: Mapping[str, MetricLine]) -> None:
        axes.axhline(1, color=INK, linewidth=0.9, zorder=2)
        axes.set_ylim(*_limits(lines))
        axes.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))

    return _draw_logs(logs, {measure: _TITLES[measure] for measure in measures}, finish)


def draw_accuracies(logs: Logs) -> bytes:
    """Draw the accuracy on training episodes above that on validation episodes, one line a run.

    Reference: Kim 2023, article II, figure 2.

    Args:
        logs: run to its training log, with `accuracy` and `val_accuracy`, shares of 1. Values that are not finite are
            left out.

    Returns:
        PNG bytes, or empty bytes when there is no point.
    """
    titles = {"accuracy": "Accuracy on training episodes", "val_accuracy": "Accuracy on validation episodes"}
    return _draw_logs(logs, titles, lambda *_: None)


def _draw_logs(
    logs: Logs, titles: Mapping[str, str], finish: Callable[[Axes, Mapping[str, MetricLine]], None]
) -> bytes:
    """One panel a key of the logs, called by its title; where there are many points, they lie below strong lines."""
    lines = metric_lines({key: {name: step_series(log, key) for name, log in logs.items()} for key in titles}, None)
    if not lines:
        return b""
    many = any(len(line.x) >= _FEW for panel in lines.values() for line in panel.values())
    keys = (("single values", {"alpha": 0.5, **_POINT}), ("running median", {"linewidth": 1.8})) if many else ()
    marks = [canvas.mark(word, color=MUTED, **look) for word, look in keys]
    with metric_picture(lines, "training episode", *marks) as (figure, grid):
        for key, axes in grid.items():
            _draw_lines(axes, method_names(lines), lines[key])
            write_title(axes, titles[key])
            finish(axes, lines[key])
        tick_whole_numbers(axes, "training episode")
        axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
        return canvas.to_png(figure)


def running_median(values: np.ndarray) -> np.ndarray:
    """The median (m,) about each of the values (m,), over a tenth of them; near the ends over those that there are."""
    reach = max(1, round(_WINDOW * len(values) / 2))
    padded = np.pad(values, reach, constant_values=np.nan)
    median: np.ndarray = np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1), axis=1)
    return median


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
        draw_curve(axes, place, line.x, _running_course(line))


def _limits(lines: Mapping[str, MetricLine]) -> tuple[float, float]:
    """A height that holds nearly all points, every line, and 1."""
    points = np.concatenate([line.y for line in lines.values()])
    ends = np.quantile(points, (_SHOWN, 1 - _SHOWN)) if len(points) >= _FEW else points
    seen = np.concatenate([ends, [1.0], *map(_running_course, lines.values())])
    low, high = float(seen.min()), float(seen.max())
    room = 0.06 * (high - low) or 0.01
    return low - room, high + room


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
    # Those at the beginning or beyond the end mark nothing that is drawn.
    shown = {step: words for step, words in sorted((marks or {}).items()) if 0 < step <= at[-1]}
    with canvas.drawing(WIDTH, _RIM + _PANEL * panels) as figure:
        grid = list(stacked_panels(figure, map(str, range(panels))).values())
        _draw_classes(grid[0], at, wide, BLUE, bool(shown))
        grid[0].set_title(f"Cluster radius {LOWER}: mean {course_text(wide.mean(axis=1))}")
        if len(class_names):  # below the panel: inside it words would cover lines
            widest = int(np.argmax(wide[-1]))
            name, radius = (
                canvas.fit_text(class_names[widest], _NAME_WIDTH, _TEXT),
                value_text(float(wide[-1, widest]), False),
            )
            grid[0].set_xlabel(f"widest at the end: {name}, {radius}", loc="right", fontsize=_TEXT)
        if panels == 3:
            _draw_classes(grid[1], at[1:], moved, VERMILION, False)
            grid[1].set_title(f"Centroid drift {LOWER}: mean {course_text(moved.mean(axis=1))}")
        marker = "o" if len(at) <= _MOST_MARKED else ""
        grid[-1].plot(at, told, color=GREEN, linewidth=2.0, marker=marker, markersize=4, zorder=3)
        fit_shares(grid[-1], told)
        grid[-1].set_title(f"Items nearest to their own centroid: {course_text(told, percent=True)}")
        grid[-1].margins(x=0.02)
        mark_places(grid, *shown)
        _write_marks(grid[0], shown, min(at[0], *shown) if shown else at[0], at[-1])
        tick_whole_numbers(grid[-1], "step")
        return canvas.to_png(figure)


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


def _write_marks(axes: Axes, marks: Mapping[int, str], first: float, last: float) -> None:
    """Write the words of marks, in order of steps, beside their lines; those that would cover others are left out."""
    scale = _INNER / max(last - first, 1.0)
    taken: list[list[tuple[float, float]]] = [[] for _ in range(_LEVELS)]
    for step, given in marks.items():
        words = canvas.fit_text(given, _WORDS_WIDTH, _TEXT)
        width, at = canvas.text_width(words, _TEXT) + _GAP, (step - first) * scale
        after = at <= _LATE * _INNER and at + width <= _INNER
        low, high = (at, at + width) if after else (at - width, at)
        for level, spans in enumerate(taken):
            if all(high <= begins or low >= ends for begins, ends in spans):
                spans.append((low, high))
                place, shift = (step, 0.96 - 0.13 * level), (4 if after else -4, 0)
                look: Any = {"va": "top", "fontsize": _TEXT, "color": MUTED, "bbox": _PAPER}
                side = "left" if after else "right"
                canvas.note(axes, words, place, shift, ("data", "axes fraction"), ha=side, **look)
                break


COEFFICIENT = "class-adversary_coefficient"
LOSS = "class-adversary_loss"
ACCURACY = "class-adversary_accuracy"
TURNS, FIRST_TURN, LAST_TURN = (f"class-adversary_{name}" for name in ("turns", "first_turn", "last_turn"))
_CONFUSES, _HELPS = "confuses the classifier", "helps the classifier"
_ADVERSARY_PANEL = 165  # CSS pixels
_SIDES = 1.7  # of the largest coefficient: what lies beyond it is free for the names of the sides
_MOST_TURNS_MARKED = 12  # of more points only the line is drawn


@dataclass(frozen=True)
class SignChanges:
    """How often the coefficient changed its sign: `count` times, first at the first of `steps` and last at the last.

    Attributes:
        count: of changes.
        steps: of the first and the last change; of a single one, its own; none without any.
        counted: whether training counted them; otherwise they are those between rows of the log, which may miss some.
    """

    count: int
    steps: tuple[float, ...]
    counted: bool

    @property
    def words(self) -> str:
        """How many there are."""
        return f"{self.count or 'no'} change{'' if self.count == 1 else 's'} of sign{self._where}"

    @property
    def text(self) -> str:
        """How many there are, and when."""
        at = {0: "", 1: ", at step ", 2: ", from step "}[len(self.steps)]
        return f"{self.count or 'none'}{self._where}{at}" + " to step ".join(f"{step:,.0f}" for step in self.steps)

    @property
    def _where(self) -> str:
        return "" if self.counted else " in the log"


def draw_adversary(history: Sequence[Mapping[str, float]], *, threshold: float | None) -> bytes:
    """Draw a class adversary, one panel a measure: coefficient, loss and accuracy of the classifier.

    Args:
        history: rows of the training log with a `step`; a step that occurs twice, as after a resumed run, counts with
            its last row. A measure without a finite value has no panel.
        threshold: the loss at which an adaptive coefficient changes its sign; None: there is none. A coefficient
            that then never changes is told in words instead of a panel.

    Returns:
        PNG bytes, or empty bytes when there is nothing to draw.
    """
    lines = {key: series for key in (COEFFICIENT, LOSS, ACCURACY) if len((series := step_series(history, key))[0])}
    words = ""
    if threshold is None and LOSS in lines and COEFFICIENT in lines and _is_constant(lines[COEFFICIENT]):
        words = _constant_text(lines.pop(COEFFICIENT)[1][0])
    if not lines:
        return b""
    with canvas.drawing(WIDTH, _RIM + _ADVERSARY_PANEL * len(lines)) as figure:
        grid = stacked_panels(figure, lines)
        if LOSS in grid:
            _draw_loss(grid[LOSS], lines[LOSS], threshold, words)
        if ACCURACY in grid:
            draw_noisy(grid[ACCURACY], lines[ACCURACY], BLUE)
            fit_shares(grid[ACCURACY], lines[ACCURACY][1])
            last = value_text(lines[ACCURACY][1][-1], True)
            grid[ACCURACY].set_title(f"Accuracy of the classifier: {last} at the end")
        if COEFFICIENT in grid:
            turns = counted_sign_changes(history)
            _draw_coefficient(grid[COEFFICIENT], lines[COEFFICIENT], turns)
            mark_places(grid.values(), *turns.steps)
        tick_whole_numbers(grid[next(reversed(grid))], "step")
        return canvas.to_png(figure)


def adversary_facts(history: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """A class adversary in short pairs: coefficient at both ends, where its sign changed, how the classifier ended.

    Args:
        history: as of `draw_adversary`; without a class adversary there is nothing to tell.
    """
    coefficient, loss, accuracy = (step_series(history, key) for key in (COEFFICIENT, LOSS, ACCURACY))
    facts = {}
    if len(coefficient[0]):
        first, last = (change_text(coefficient[1][place], 0.0, False) for place in (0, -1))
        turns, constant = counted_sign_changes(history), _is_constant(coefficient)
        facts["adversary's coefficient"] = f"{first} throughout" if constant else f"{first} at first, {last} at last"
        if turns.counted or not constant:
            facts["coefficient's changes of sign"] = turns.text
    if len(loss[0]):
        facts["classifier's loss"] = f"{value_text(loss[1][-1], False)} at the end"
    if len(accuracy[0]):
        facts["classifier's accuracy"] = f"{value_text(accuracy[1][-1], True)} at the end"
    return facts


def counted_sign_changes(history: Sequence[Mapping[str, float]]) -> SignChanges:
    """The changes of sign that training counted, or, where its log does not tell them, those between its rows."""
    counts = step_series(history, TURNS)[1]
    if not len(counts):
        steps = sign_changes(step_series(history, COEFFICIENT))
        return SignChanges(len(steps), tuple(dict.fromkeys([*steps[:1].tolist(), *steps[-1:].tolist()])), counted=False)
    ends = [step_series(history, key)[1][-1:].tolist() for key in (FIRST_TURN, LAST_TURN)]
    return SignChanges(int(counts[-1]), tuple(dict.fromkeys(ends[0] + ends[1])), counted=True)


def sign_changes(series: Series) -> np.ndarray:
    """Of steps (m,) and values (m,), the steps at which a value has another sign than the last one that was not 0."""
    steps, values = series
    signed = values != 0
    signs = np.sign(values[signed])
    return steps[signed][1:][signs[1:] != signs[:-1]]


def _is_constant(series: Series) -> bool:
    return len(np.unique(series[1])) == 1


def _draw_coefficient(axes: Axes, series: Series, turns: SignChanges) -> None:
    """Draw the coefficient about zero, with what either side means."""
    steps, values = series
    for part, colour in ((np.maximum(values, 0), VERMILION), (np.minimum(values, 0), GREEN)):
        axes.fill_between(steps, part, step="pre", color=colour, alpha=0.22, linewidth=0)
    marker = "o" if len(steps) <= _MOST_TURNS_MARKED else ""
    # A row tells what acted up to its step.
    axes.plot(steps, values, color=BLUE, linewidth=1.6, drawstyle="steps-pre", marker=marker, markersize=3.5)
    axes.axhline(0, color=INK, linewidth=1.0, zorder=2)
    top = _SIDES * float(np.abs(values).max()) or 1.0
    axes.set_ylim(-top, top)
    axes.margins(x=0.02)
    for side, height, edge in ((f"above 0: {_CONFUSES}", 0.95, "top"), (f"below 0: {_HELPS}", 0.05, "bottom")):
        axes.text(0.012, height, side, transform=axes.transAxes, va=edge, fontsize=_TEXT, bbox={**_PAPER, "pad": 1.5})
    axes.set_title(f"Coefficient: {_coefficient_course(values, turns)}")


def _coefficient_course(values: np.ndarray, turns: SignChanges) -> str:
    """From the first to the last value and how often the sign changes, in words."""
    first, last = (change_text(values[place], 0.0, False) for place in (0, -1))
    course = last if len(values) == 1 else f"from {first} to {last}"
    if turns.counted and len(turns.steps) == 1:
        return f"{course}, changes its sign at step {turns.steps[0]:,.0f}"
    return f"{course}, {turns.words}" if turns.counted or len(values) > 1 else course


def _constant_text(value: float) -> str:
    """What a coefficient that never changes does."""
    side = _HELPS if value < 0 else _CONFUSES if value > 0 else "does not touch what the classifier is given"
    return f"The coefficient is {change_text(value, 0.0, False)} throughout: the model {side}."


def _draw_loss(axes: Axes, series: Series, threshold: float | None, words: str) -> None:
    """Draw the classifier's loss, with the threshold as a line that is always in sight and words below the title."""
    draw_noisy(axes, series, BLUE)
    title = f"Loss of the classifier: {value_text(series[1][-1], False)} at the end"
    if threshold is not None:
        axes.axhline(threshold, color=VERMILION, linewidth=1.4, linestyle="--", zorder=2)
        low, high = axes.get_ylim()
        room = 0.08 * (max(high, threshold) - min(low, threshold))
        axes.set_ylim(min(low, threshold - room), max(high, threshold + room))
        title += f", threshold {threshold:g} (dashed)"
    canvas.heading(axes, title, words, size=11)
