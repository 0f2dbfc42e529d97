"""The key of groups of classes below a picture, and the notes under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nearkin.report._canvas import MUTED, WIDTH
from nearkin.report._lines import fit_text, text_width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# In CSS pixels, except for type, which is in points.
_MARGIN, _ROW, _TEXT = 12, 19, 8.5
_BOX, _SPACE = 10, 16
_WIDEST = 220


def key_height(colours: Mapping[str, str], notes: Sequence[str]) -> float:
    """What key and notes add to a picture's height, in CSS pixels."""
    return _ROW * (len(_lines(colours)) + len(notes)) + (10 if colours or notes else 0)


def write_key(figure: Figure, colours: Mapping[str, str], notes: Sequence[str], height: float) -> None:
    """Write groups and notes at the foot of a figure that is `height` CSS pixels high and has no layout engine."""
    from matplotlib.patches import Rectangle

    lines = _lines(colours)
    top = _MARGIN / 2 + _ROW * (len(lines) + len(notes))
    for place, line in enumerate(lines):
        middle = (top - _ROW * (place + 0.5)) / height
        for left, name in line:
            corner = (left / WIDTH, middle - _BOX / 2 / height)
            figure.add_artist(Rectangle(corner, _BOX / WIDTH, _BOX / height, color=colours[name], linewidth=0))
            told = fit_text(name, _WIDEST, _TEXT)
            figure.text((left + _BOX + 5) / WIDTH, middle, told, va="center", fontsize=_TEXT)
    for place, note in enumerate(notes):
        middle = (top - _ROW * (len(lines) + place + 0.5)) / height
        figure.text(_MARGIN / WIDTH, middle, note, va="center", fontsize=_TEXT, color=MUTED)


def _lines(colours: Mapping[str, str]) -> list[list[tuple[float, str]]]:
    """Groups with where they begin, line by line."""
    lines: list[list[tuple[float, str]]] = []
    left = float(WIDTH)
    for name in colours:
        wide = _BOX + 5 + text_width(fit_text(name, _WIDEST, _TEXT), _TEXT) + _SPACE
        if left + wide > WIDTH - _MARGIN:
            lines.append([])
            left = _MARGIN
        lines[-1].append((left, name))
        left += wide
    return lines
