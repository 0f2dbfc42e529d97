"""Class-adversarial training against its steps: the coefficient, the classifier's loss and its accuracy.

The adaptive coefficient is `-tanh(loss - threshold) * weight`: below zero the model helps the classifier, above zero
it confuses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nearkin.report._canvas import BLUE, GREEN, INK, MUTED, VERMILION, WIDTH, drawing, percent_axis, to_png
from nearkin.report._steps import Series, draw_noisy, step_series
from nearkin.report.formatting import change_text, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COEFFICIENT = "class-adversary_coefficient"
LOSS = "class-adversary_loss"
ACCURACY = "class-adversary_accuracy"
_CONFUSES, _HELPS = "confuses the classifier", "helps the classifier"
_PANEL, _RIM = 165, 40  # CSS pixels: the height of a panel, and of what the axis below adds
_HEADROOM = 1.7  # of the largest coefficient: what lies beyond it is free for the names of the sides
_MOST_MARKED = 12  # of more points only the line is drawn
_MOST_TURNS = 4  # of more changes of sign none is marked or named
_TEXT = 9  # points


def draw_adversary(history: Sequence[Mapping[str, float]], *, threshold: float | None) -> bytes:
    """Draw a class adversary, one panel a measure: coefficient, loss and accuracy of the classifier.

    Args:
        history: rows of the training log with a `step`; a step that occurs twice, as after a resumed run, counts with
            its last row. A measure without a finite value has no panel.
        threshold: the loss at which an adaptive coefficient changes its sign; None: there is none. A coefficient
            that then never changes is told in words instead of a panel.

    Returns:
        PNG bytes, or none when there is nothing to draw.
    """
    lines = {key: series for key in (COEFFICIENT, LOSS, ACCURACY) if len((series := step_series(history, key))[0])}
    constant = threshold is None and LOSS in lines and len(np.unique(lines.get(COEFFICIENT, ([], []))[1])) == 1
    words = _constant_text(lines.pop(COEFFICIENT)[1][0]) if constant else ""
    if not lines:
        return b""
    from matplotlib.ticker import MaxNLocator

    with drawing(WIDTH, _RIM + _PANEL * len(lines)) as figure:
        grid = dict(zip(lines, figure.subplots(len(lines), 1, sharex=True, squeeze=False)[:, 0], strict=True))
        if LOSS in grid:
            _draw_loss(grid[LOSS], lines[LOSS], threshold, words)
        if ACCURACY in grid:
            _draw_accuracy(grid[ACCURACY], lines[ACCURACY])
        if COEFFICIENT in grid:
            _draw_coefficient(grid[COEFFICIENT], lines[COEFFICIENT])
            _mark_turns(grid.values(), sign_changes(lines[COEFFICIENT]))
        last = grid[next(reversed(grid))]
        last.set_xlabel("step")
        last.xaxis.set_major_locator(MaxNLocator(9, integer=True, min_n_ticks=1, steps=[1, 2, 2.5, 5, 10]))
        return to_png(figure)


def adversary_facts(history: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """A class adversary in short pairs: coefficient at both ends, where its sign changed, how the classifier ended.

    Args:
        history: as of `draw_adversary`; without a class adversary there is nothing to tell.
    """
    coefficient, loss, accuracy = (step_series(history, key) for key in (COEFFICIENT, LOSS, ACCURACY))
    facts = {}
    if len(coefficient[0]):
        first, last = (change_text(coefficient[1][place], 0.0, False) for place in (0, -1))
        facts["adversary's coefficient"] = f"{first} at first, {last} at last"
        facts["coefficient's changes of sign"] = _turns_text(sign_changes(coefficient))
    if len(loss[0]):
        facts["classifier's loss"] = f"{value_text(loss[1][-1], False)} at the end"
    if len(accuracy[0]):
        facts["classifier's accuracy"] = f"{value_text(accuracy[1][-1], True)} at the end"
    return facts


def sign_changes(series: Series) -> np.ndarray:
    """Of steps (m,) and values (m,), the steps at which a value has another sign than the last one that was not 0."""
    steps, values = series
    signed = values != 0
    signs = np.sign(values[signed])
    return steps[signed][1:][signs[1:] != signs[:-1]]


def _draw_coefficient(axes: Axes, series: Series) -> None:
    """Draw the coefficient about zero, with what either side means."""
    steps, values = series
    for part, colour in ((np.maximum(values, 0), VERMILION), (np.minimum(values, 0), GREEN)):
        axes.fill_between(steps, part, step="post", color=colour, alpha=0.22, linewidth=0)
    marker = "o" if len(steps) <= _MOST_MARKED else ""
    axes.plot(steps, values, color=BLUE, linewidth=1.6, drawstyle="steps-post", marker=marker, markersize=3.5)
    axes.axhline(0, color=INK, linewidth=1.0, zorder=2)
    top = _HEADROOM * float(np.abs(values).max()) or 1.0
    axes.set_ylim(-top, top)
    axes.margins(x=0.02)
    for side, height, edge in ((f"above 0: {_CONFUSES}", 0.95, "top"), (f"below 0: {_HELPS}", 0.05, "bottom")):
        axes.text(
            0.012,
            height,
            side,
            transform=axes.transAxes,
            va=edge,
            fontsize=_TEXT,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )
    axes.set_title(f"Coefficient: {_course_text(series)}")


def _course_text(series: Series) -> str:
    """From the first to the last value and how often the sign changes, in words."""
    values, turns = series[1], sign_changes(series)
    last = change_text(values[-1], 0.0, False)
    if len(values) == 1:
        return last
    course = f"from {change_text(values[0], 0.0, False)} to {last}"
    if len(turns) == 1:
        return f"{course}, changes its sign at step {turns[0]:,.0f}"
    return f"{course}, {len(turns) or 'no'} change{'s' if len(turns) else ''} of sign"


def _turns_text(turns: np.ndarray) -> str:
    """Where the sign changes, in words."""
    if len(turns) > _MOST_TURNS:
        return f"{len(turns)}, from step {turns[0]:,.0f} to step {turns[-1]:,.0f}"
    return ", ".join(f"step {turn:,.0f}" for turn in turns) or "none"


def _constant_text(value: float) -> str:
    """What a coefficient that never changes does."""
    side = _HELPS if value < 0 else _CONFUSES if value > 0 else "does not touch what the classifier is given"
    return f"The coefficient is {change_text(value, 0.0, False)} throughout: the model {side}."


def _mark_turns(panels: Iterable[Axes], turns: np.ndarray) -> None:
    """A line through every panel at each change of sign, unless these are many."""
    if len(turns) <= _MOST_TURNS:
        for axes in panels:
            for turn in turns:
                axes.axvline(turn, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)


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
    axes.set_title(title, pad=18 if words else None)
    axes.annotate(words, (0, 1), xycoords="axes fraction", xytext=(0, 5), textcoords="offset points", fontsize=_TEXT)


def _draw_accuracy(axes: Axes, series: Series) -> None:
    draw_noisy(axes, series, BLUE)
    axes.set_title(f"Accuracy of the classifier: {value_text(series[1][-1], True)} at the end")
    percent_axis(axes, "y")
