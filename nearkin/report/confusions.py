"""The commonest confusions: a class, what it is taken for, how often, and what the two look like."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearkin.report._canvas import BLUE, GRID, INK, MUTED, WIDTH, drawing, to_png
from nearkin.report._lines import fit_text, text_width
from nearkin.report.formatting import clean, value_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL import Image

# In CSS pixels.
_HEAD = 34
_ROW, _TEXT_ROW = 96, 30
_CELL = 84
_RATE = 150
_GAP = 12
_SIDE = (WIDTH - _RATE) // 2
_LETTERS = 9  # points
_BAR = 60
"""How long the bar of a rate of 1 is."""


@dataclass(frozen=True)
class ConfusedPair:
    """A true class, the class its items are taken for, how often, and where there is one an example of each.

    Args:
        true: the class.
        predicted: the other.
        rate: the share of the class's items that are taken for the other.
        example: one of these items.
        lookalike: an item of the other class.
    """

    true: str
    predicted: str
    rate: float
    example: Image.Image | None = None
    lookalike: Image.Image | None = None


def draw_confusions(pairs: Sequence[ConfusedPair]) -> bytes:
    """Draw a table of pairs in the order given, with the examples that they have.

    Returns:
        PNG bytes, or none when there are no pairs.
    """
    if not pairs:
        return b""
    row = _ROW if any(pair.example or pair.lookalike for pair in pairs) else _TEXT_ROW
    height = _HEAD + row * len(pairs)
    with drawing(WIDTH, height) as figure:
        figure.set_layout_engine("none")
        for left, title in ((_GAP, "is"), (_GAP + _SIDE, "is taken for"), (2 * _SIDE + _GAP, "rate")):
            figure.text(left / WIDTH, 1 - _HEAD / 2 / height, title, va="center", fontsize=10, fontweight="bold")
        for place, pair in enumerate(pairs):
            top = _HEAD + place * row
            _rule(figure, top, height)
            _draw_side(figure, pair.true, pair.example, _GAP, top, row, height)
            _draw_side(figure, pair.predicted, pair.lookalike, _GAP + _SIDE, top, row, height)
            _draw_rate(figure, pair.rate, top + row / 2, height)
        return to_png(figure)


def _draw_side(
    figure: Figure, name: str, image: Image.Image | None, left: float, top: float, row: float, height: float
) -> None:
    """A class: its example, if any, and its name beside."""
    if image is not None:
        edge = row - _CELL
        axes = figure.add_axes((left / WIDTH, 1 - (top + edge / 2 + _CELL) / height, _CELL / WIDTH, _CELL / height))
        axes.imshow(image.convert("RGB"), aspect="equal", interpolation="antialiased")
        axes.axis("off")
    begin = left + (_CELL + _GAP if row == _ROW else 0)
    told = _wrapped(name, left + _SIDE - begin - _GAP)
    figure.text(begin / WIDTH, 1 - (top + row / 2) / height, told, va="center", fontsize=_LETTERS, color=INK)


def _wrapped(name: str, width: float) -> str:
    """A name on one line, or on two, broken between its words: what tells two classes apart is often the end."""
    line = clean(name)
    breaks = [0, *(match.end() for match in re.finditer(r"[\s_\-/.]+", line) if match.end() < len(line))]
    first = max((at for at in breaks if text_width(line[:at], _LETTERS) <= width), default=0)
    if text_width(line, _LETTERS) <= width or not first:
        return fit_text(line, width, _LETTERS)
    return f"{line[:first]}\n{fit_text(line[first:], width, _LETTERS)}"


def _draw_rate(figure: Figure, rate: float, middle: float, height: float) -> None:
    """The rate as a bar and as a number."""
    from matplotlib.patches import Rectangle

    left, thick = 2 * _SIDE + _GAP, 10
    for length, colour in ((_BAR, GRID), (_BAR * min(max(rate, 0.0), 1.0), BLUE)):
        corner = (left / WIDTH, 1 - (middle + thick / 2) / height)
        figure.add_artist(Rectangle(corner, length / WIDTH, thick / height, color=colour, linewidth=0))
    at = ((left + _BAR + 8) / WIDTH, 1 - middle / height)
    figure.text(*at, value_text(rate, percent=True), va="center", fontsize=9, color=MUTED)


def _rule(figure: Figure, top: float, height: float) -> None:
    from matplotlib.lines import Line2D

    at = 1 - top / height
    figure.add_artist(Line2D([_GAP / WIDTH, 1 - _GAP / WIDTH], [at, at], color=GRID, linewidth=1))
