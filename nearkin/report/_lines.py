"""What pictures of several estimators share: the looks of lines, legends, and text that fits.

An estimator's place decides its colour, dash and marker, so it looks the same in every picture.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError
from nearkin.report._canvas import DASHES, MARKERS, SERIES, WIDTH
from nearkin.report.formatting import MISSING, shorten, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_PIXELS_PER_POINT = 100 / 72
_LEGEND_SIZE, _LEGEND_ROW = 9, 21  # type in points, a row in CSS pixels
_NAME_WIDTH, _HANDLE_WIDTH = 185, 64  # of a name, and of its line with the gaps around: two always fit side by side
_THINNEST = 2  # CSS pixels a letter takes at least; what could not fit anyhow is not even measured
_MARKS = 6  # on a curve of many points


def plain_numbers(values: Any, what: str) -> np.ndarray:
    """Values as float64; a masked one is NaN, a tensor is detached.

    Raises:
        DataError: if they are not numbers.
    """
    given = values.detach().cpu() if hasattr(values, "detach") else values
    try:
        array = np.ma.asarray(given) if isinstance(given, np.ma.MaskedArray) else np.asarray(given)
    except (TypeError, ValueError):
        array = np.array("ragged")
    if array.dtype.kind not in "biuf":
        raise DataError(f"The {what} must be an array of numbers, but got {shorten(repr(values), 60)}.")
    numbers = array.astype(np.float64)
    return numbers.filled(np.nan) if isinstance(numbers, np.ma.MaskedArray) else numbers


def plain_parts(name: str, parts: Sequence[Any], *words: str) -> list[np.ndarray]:
    """The arrays that belong to a name, one for each word that says what it is."""
    if len(parts) != len(words):
        raise DataError(f"'{name}' needs {len(words)} arrays ({', '.join(words)}), but got {len(parts)}.")
    return [plain_numbers(part, f"{word} of '{name}'") for part, word in zip(parts, words, strict=True)]


def curve_points(name: str, curve: Sequence[Any], *words: str) -> tuple[np.ndarray, np.ndarray]:
    """The finite points of a curve: two arrays (m,)."""
    x, y = plain_parts(name, curve, *words)
    if x.ndim != 1 or x.shape != y.shape:
        raise DataError(f"The curve of '{name}' needs two flat arrays of one length, but got {x.shape} and {y.shape}.")
    finite = np.isfinite(x) & np.isfinite(y)
    return x[finite], y[finite]


def line_style(place: int) -> dict[str, Any]:
    """How the line at a place looks: colour, dash and marker; dash and marker alone tell twenty lines apart."""
    return {
        "color": SERIES[place % len(SERIES)],
        "linestyle": DASHES[place % len(DASHES)],
        "linewidth": 2.0 if place == 0 else 1.6,
        "marker": MARKERS[place % len(MARKERS)],
        "markersize": 5.5,
        "markerfacecolor": "white",
        "markeredgewidth": 1.4,
    }


def draw_curve(axes: Axes, place: int, x: np.ndarray, y: np.ndarray, *, travelled: np.ndarray) -> None:
    """A line through points (m,), with a few markers spread evenly over the way `travelled` (m,), ascending.

    Each place begins its markers elsewhere, so that those of equal curves do not hide one another.
    """
    if not len(x):
        return
    start = (place % len(MARKERS) + 0.5) / len(MARKERS)
    shares = (np.arange(_MARKS) + start) / _MARKS
    marked = np.searchsorted(travelled, travelled[0] + shares * (travelled[-1] - travelled[0]))
    every = np.unique(np.minimum(marked, len(x) - 1)).tolist()
    axes.plot(x, y, markevery=every, zorder=4 if place == 0 else 3, **line_style(place))


def text_width(text: str, size: float, weight: str = "normal") -> float:
    """How wide a line of text of a size in points is drawn, in CSS pixels."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    # All is said here: what is left out of a FontProperties comes from the user's settings.
    look: Any = {"style": "normal", "variant": "normal", "stretch": "normal", "math_fontfamily": "dejavusans"}
    font = FontProperties(family="DejaVu Sans", weight=weight, size=size, **look)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s)Glyph .* missing from")
        return _PIXELS_PER_POINT * float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def fit_text(text: str, width: float, size: float, weight: str = "normal") -> str:
    """A clean line no wider than `width` CSS pixels, an ellipsis standing for the rest."""
    line = shorten(text, max(1, int(width // _THINNEST)))
    for limit in range(len(line), 0, -1):
        line = shorten(text, limit)
        if text_width(line, size, weight) <= width:
            break
    return line


def legend_labels(names: Iterable[str], areas: Mapping[str, float] | None = None, what: str = "area") -> list[str]:
    """Names as a legend tells them, with the areas of those that have one."""
    labels = []
    for name in names:
        # Matplotlib leaves a label that is empty or begins with an underscore out of the legend.
        label = fit_text(name.lstrip("_"), _NAME_WIDTH, _LEGEND_SIZE) or MISSING
        labels.append(f"{label}: {what} {value_text(float(areas[name]), True)}" if areas and name in areas else label)
    return labels


def legend_height(labels: Sequence[str]) -> int:
    """What a legend adds to a picture's height, in CSS pixels."""
    return 14 + _LEGEND_ROW * -(-len(labels) // _columns(labels))


def legend_above(figure: Figure, labels: Sequence[str], *more: Line2D) -> None:
    """A legend over the whole width, each label in the look of its place, in as many columns as the longest allows."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], label=label, **line_style(place)) for place, label in enumerate(labels)]
    columns = _columns([*labels, *(str(line.get_label()) for line in more)])
    figure.legend(
        handles=[*lines, *more],
        loc="outside upper left",
        ncols=columns,
        fontsize=_LEGEND_SIZE,
        handlelength=2.8,
        columnspacing=1.2,
        borderpad=0.2,
    )


def _columns(labels: Sequence[str]) -> int:
    widest = max(text_width(label, _LEGEND_SIZE) for label in labels)
    return max(1, min(4, int(WIDTH // (widest + _HANDLE_WIDTH))))
