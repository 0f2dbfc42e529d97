"""Class-adversarial training against its steps: the coefficient, the classifier's loss and its accuracy.

The adaptive coefficient is `-tanh(loss - threshold) * weight`: below zero the model helps the classifier, above zero
it confuses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearkin.report.canvas import BLUE, GREEN, INK, VERMILION, WIDTH, drawing, percent_axis, to_png
from nearkin.report.lines import (
    Series,
    draw_noisy,
    mark_places,
    share_limits,
    stacked_panels,
    step_series,
    tick_whole_numbers,
)
from nearkin.report.values import change_text, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COEFFICIENT = "class-adversary_coefficient"
LOSS = "class-adversary_loss"
ACCURACY = "class-adversary_accuracy"
TURNS, FIRST_TURN, LAST_TURN = (f"class-adversary_{name}" for name in ("turns", "first_turn", "last_turn"))
_CONFUSES, _HELPS = "confuses the classifier", "helps the classifier"
_PANEL, _RIM = 165, 40  # CSS pixels: the height of a panel, and of what the axis below adds
_HEADROOM = 1.7  # of the largest coefficient: what lies beyond it is free for the names of the sides
_MOST_MARKED = 12  # of more points only the line is drawn
_TEXT = 9  # points


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
    with drawing(WIDTH, _RIM + _PANEL * len(lines)) as figure:
        grid = stacked_panels(figure, lines)
        if LOSS in grid:
            _draw_loss(grid[LOSS], lines[LOSS], threshold, words)
        if ACCURACY in grid:
            _draw_accuracy(grid[ACCURACY], lines[ACCURACY])
        if COEFFICIENT in grid:
            turns = counted_sign_changes(history)
            _draw_coefficient(grid[COEFFICIENT], lines[COEFFICIENT], turns)
            mark_places(grid.values(), *turns.steps)
        tick_whole_numbers(grid[next(reversed(grid))], "step")
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
    marker = "o" if len(steps) <= _MOST_MARKED else ""
    # A row tells what acted up to its step.
    axes.plot(steps, values, color=BLUE, linewidth=1.6, drawstyle="steps-pre", marker=marker, markersize=3.5)
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
    axes.set_title(f"Coefficient: {_course_text(values, turns)}")


def _course_text(values: np.ndarray, turns: SignChanges) -> str:
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
    axes.set_title(title, pad=18 if words else None)
    axes.annotate(words, (0, 1), xycoords="axes fraction", xytext=(0, 5), textcoords="offset points", fontsize=_TEXT)


def _draw_accuracy(axes: Axes, series: Series) -> None:
    draw_noisy(axes, series, BLUE)
    axes.set_ylim(*share_limits(float(series[1].min()), float(series[1].max())))
    axes.set_title(f"Accuracy of the classifier: {value_text(series[1][-1], True)} at the end")
    percent_axis(axes, "y")
