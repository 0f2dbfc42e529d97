"""Accuracy above calibration error, one line an estimator: the two panels that several pictures have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nearkin.errors import DataError
from nearkin.report._canvas import percent_axis
from nearkin.report._lines import legend_above, legend_height, legend_labels, line_style, plain_numbers
from nearkin.report.formatting import LOWER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = 210  # height, in CSS pixels
_NARROWEST = 0.04  # range of accuracies


def value_line(name: str, values: np.ndarray, length: int, what: str) -> np.ndarray:
    """The values of one line (m,), one for each place on its axis."""
    line = plain_numbers(values, f"values of '{name}'")
    if line.shape != (length,):
        raise DataError(f"The line of '{name}' needs {length} values, one for each {what}, but got shape {line.shape}.")
    return np.where(np.isfinite(line), line, np.nan)


def has_values(*panels: Mapping[str, np.ndarray]) -> bool:
    """Whether any line of any panel has a value to draw."""
    return any(np.isfinite(line).any() for lines in panels for line in lines.values())


def panels_height(names: Sequence[str]) -> int:
    """The height of both panels with their legend, in CSS pixels."""
    return 40 + 2 * _PANEL + legend_height(legend_labels(names))


def draw_panels(
    figure: Figure,
    x: np.ndarray,
    names: Sequence[str],
    accuracy: Mapping[str, np.ndarray],
    ece: Mapping[str, np.ndarray],
) -> list[Axes]:
    """Draw lines (m,) over x (m,), accuracy above ECE, with one legend; the place in `names` sets a line's look."""
    upper, lower = figure.subplots(2, 1, sharex=True)
    for axes, lines in ((upper, accuracy), (lower, ece)):
        for place, name in enumerate(names):
            if name in lines:
                axes.plot(x, lines[name], zorder=4 if place == 0 else 3, **line_style(place))
        percent_axis(axes, "y")
    upper.set_title("Accuracy")
    lower.set_title(f"Expected calibration error (ECE) {LOWER}")
    upper.set_ylim(*share_limits(*_range(accuracy)))
    top = max(_range(ece)[1], 0.01)
    lower.set_ylim(-0.04 * top, 1.1 * top)  # errors from 0 on: an ECE twice as high is drawn twice as high
    legend_above(figure, legend_labels(names))
    return [upper, lower]


def _range(lines: Mapping[str, np.ndarray]) -> tuple[float, float]:
    values = np.concatenate([np.zeros(0), *lines.values()])
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)


def share_limits(low: float, high: float) -> tuple[float, float]:
    """Near the values, as these differ by little, but not so near that noise looks large, nor far beyond 0 or 100 %."""
    room = max(0.1 * (high - low), (_NARROWEST - (high - low)) / 2)
    bottom, top = low - room, high + room
    rim = 0.03 * (top - bottom)
    return (bottom if bottom >= 0 else min(low, 0.0) - rim), max(high, min(top, 1.0)) + rim
