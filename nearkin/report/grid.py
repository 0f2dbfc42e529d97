"""Image grids: queries with their nearest neighbours, and the most common confusions with an example of each class."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image, ImageDraw, ImageFont

from nearkin._moved import renamed
from nearkin.report.canvas import BLUE, FAINT, GRID, INK, MUTED, WIDTH, drawing, place_axes, to_png
from nearkin.report.lines import fit_text, text_width
from nearkin.report.values import clean, value_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Real pixels: twice what they measure on the page.
_THUMB = 168
_FRAME = 8
_CELL = _THUMB + 2 * _FRAME
_GAP = 20  # between cells
_BEFORE = 36  # between the query and its neighbours
_MARGIN = 16
_HEADER = 52
_FOOTER = 52
_LINE = 26
_TEXT = 20
_BADGE = 40
_NARROWEST = 600  # the key must fit
_HIT, _MISS, _MOUNT = "#00805c", "#c8232c", "#eef1f4"


@dataclass(frozen=True)
class Thumb:
    """A small picture and the class it belongs to."""

    image: Image.Image
    label: str


class NeighbourThumb(NamedTuple):
    """A retrieved picture, how far it is, and whether its class is the query's."""

    thumb: Thumb
    distance: float
    hit: bool


@dataclass(frozen=True)
class NeighbourRow:
    """A query and its neighbours (picture, distance, hit), nearest first."""

    query: Thumb
    neighbours: Sequence[tuple[Thumb, float, bool]]


def draw_neighbours(rows: Sequence[NeighbourRow], *, number: str = "distance") -> bytes:
    """Draw one row a query; hits have a solid green frame and a check mark, misses a dashed red one and a cross.

    Args:
        rows: the queries.
        number: what the number of a neighbour is.

    Returns:
        PNG bytes, or empty bytes when there are no rows.
    """
    if not rows:
        return b""
    columns = max(1, *(len(row.neighbours) for row in rows))
    width = max(_NARROWEST, 2 * _MARGIN + _CELL + _BEFORE + columns * (_CELL + _GAP) - _GAP + 8)
    heights = [_row_height(row) for row in rows]
    sheet = Image.new("RGB", (width, _HEADER + sum(heights) + _FOOTER), "white")
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, _MARGIN), "query", fill=INK, font=_font(_TEXT + 2, bold=True))
    pen.text((_MARGIN + _CELL + _BEFORE, _MARGIN), "nearest first", fill=INK, font=_font(_TEXT + 2, bold=True))
    top = _HEADER
    for row, height in zip(rows, heights, strict=True):
        _draw_row(sheet, row, top)
        top += height
        pen.line((_MARGIN, top - 14, width - _MARGIN, top - 14), fill=GRID, width=2)
    _draw_key(sheet, top + 2, number)
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _row_height(row: NeighbourRow) -> int:
    """Room for the pictures, the longest label, the distances and some air."""
    labels = [len(_lines(thumb.label)) + 1 for thumb, _, _ in row.neighbours]
    return _CELL + _LINE * max(len(_lines(row.query.label, bold=True)), *labels, 1) + 34


def _draw_row(sheet: Image.Image, row: NeighbourRow, top: int) -> None:
    pen = ImageDraw.Draw(sheet)
    _paste(sheet, row.query.image, _MARGIN, top)
    pen.rectangle((_MARGIN, top, _MARGIN + _CELL - 1, top + _CELL - 1), outline=FAINT, width=2)
    _write(pen, _lines(row.query.label, bold=True), _MARGIN, top + _CELL + 6, _font(_TEXT, bold=True))
    for place, (thumb, distance, hit) in enumerate(row.neighbours):
        left = _MARGIN + _CELL + _BEFORE + place * (_CELL + _GAP)
        _paste(sheet, thumb.image, left, top)
        box = (left, top, left + _CELL - 1, top + _CELL - 1)
        if hit:
            pen.rectangle(box, outline=_HIT, width=_FRAME - 2)
        else:
            _dashed_frame(pen, box)
        _draw_badge(sheet, left + _CELL - _BADGE + 7, top + _CELL - _BADGE + 7, hit)
        lines = _lines(thumb.label)
        _write(pen, lines, left, top + _CELL + 6, _font(_TEXT))
        under = top + _CELL + 6 + len(lines) * _LINE
        pen.text((left, under), value_text(distance, percent=False), fill=MUTED, font=_font(_TEXT - 1))


def _draw_key(sheet: Image.Image, top: int, number: str) -> None:
    """Say what the marks mean, so that the picture can stand alone."""
    pen = ImageDraw.Draw(sheet)
    left = _MARGIN - 3
    for hit, meaning in ((True, "same class"), (False, "other class")):
        _draw_badge(sheet, left, top, hit)
        pen.text((left + _BADGE + 6, top + 8), meaning, fill=MUTED, font=_font(_TEXT))
        left += _BADGE + 30 + round(_font(_TEXT).getlength(meaning))
    pen.text((left, top + 8), f"number: {number}", fill=MUTED, font=_font(_TEXT))


def _paste(sheet: Image.Image, image: Image.Image, left: int, top: int) -> None:
    """Fit a picture of any mode and shape into its cell."""
    if image.has_transparency_data:
        ground = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(ground, image.convert("RGBA"))
    ImageDraw.Draw(sheet).rectangle((left, top, left + _CELL - 1, top + _CELL - 1), fill=_MOUNT)
    scale = _THUMB / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    # Large steps up show honest pixels; everything else is a photograph to be resampled.
    method = Image.Resampling.NEAREST if scale >= 2.5 else Image.Resampling.LANCZOS
    small = image.convert("RGB").resize(size, method)
    sheet.paste(small, (left + (_CELL - size[0]) // 2, top + (_CELL - size[1]) // 2))


def _dashed_frame(pen: ImageDraw.ImageDraw, box: tuple[int, int, int, int]) -> None:
    left, top, right, bottom = box
    thick, dash, period = _FRAME - 2, 16, 24  # the cell is a whole number of periods and a dash: corners are closed
    for start in range(0, _CELL, period):
        end = min(start + dash, _CELL) - 1
        pen.rectangle((left + start, top, left + end, top + thick - 1), fill=_MISS)
        pen.rectangle((left + start, bottom - thick + 1, left + end, bottom), fill=_MISS)
        pen.rectangle((left, top + start, left + thick - 1, top + end), fill=_MISS)
        pen.rectangle((right - thick + 1, top + start, right, top + end), fill=_MISS)


def _draw_badge(sheet: Image.Image, left: int, top: int, hit: bool) -> None:
    """A check or a cross in a circle, drawn large and shrunk for smooth edges."""
    size = 4 * _BADGE
    badge = Image.new("RGBA", (size, size))
    pen = ImageDraw.Draw(badge)
    pen.ellipse((0, 0, size - 1, size - 1), fill="white")
    pen.ellipse((12, 12, size - 13, size - 13), fill=_HIT if hit else _MISS)
    strokes = [[(48, 84), (72, 108), (112, 56)]] if hit else [[(56, 56), (104, 104)], [(104, 56), (56, 104)]]
    for stroke in strokes:
        pen.line(stroke, fill="white", width=16, joint="curve")
    badge = badge.resize((_BADGE, _BADGE), Image.Resampling.LANCZOS)
    sheet.paste(badge, (left, top), badge)


def _write(pen: ImageDraw.ImageDraw, lines: list[str], left: int, top: int, font: ImageFont.FreeTypeFont) -> None:
    for number, line in enumerate(lines):
        pen.text((left, top + number * _LINE), line, fill=INK, font=font)


def _lines(label: str, bold: bool = False) -> list[str]:
    """A label on two lines at most, as wide as a cell."""
    return _wrap(clean(label), _font(_TEXT, bold), _CELL - 4)


def _wrap(text: str, font: ImageFont.FreeTypeFont, width: float) -> list[str]:
    """Break a line into two that fit, preferably between words; an ellipsis ends what is left over."""
    if font.getlength(text) <= width:
        return [text]
    fits = max(1, _fitting(text, font, width))
    breaks = [match.end() for match in re.finditer(r"[\s_\-/.]", text[:fits])]
    cut = breaks[-1] if breaks and breaks[-1] > fits // 3 else fits
    rest = text[cut:].strip()
    if font.getlength(rest) > width:
        rest = rest[: _fitting(rest, font, width - font.getlength("…"))].rstrip() + "…"
    return [text[:cut].rstrip(), rest]


def _fitting(text: str, font: ImageFont.FreeTypeFont, width: float) -> int:
    """How many letters fit into a width."""
    count = 0
    while count < len(text) and font.getlength(text[: count + 1]) <= width:
        count += 1
    return count


@lru_cache(maxsize=8)
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, the face of the other pictures, out of matplotlib's own data."""
    import matplotlib

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


# In CSS pixels.
_HEAD = 34
_EXAMPLE_ROW, _TEXT_ROW = 96, 30
_EXAMPLE_CELL = 84
_RATE = 150
_EXAMPLE_GAP = 12
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
    row = _EXAMPLE_ROW if any(pair.example or pair.lookalike for pair in pairs) else _TEXT_ROW
    height = _HEAD + row * len(pairs)
    with drawing(WIDTH, height) as figure:
        figure.set_layout_engine("none")
        for left, title in (
            (_EXAMPLE_GAP, "is"),
            (_EXAMPLE_GAP + _SIDE, "is taken for"),
            (2 * _SIDE + _EXAMPLE_GAP, "rate"),
        ):
            figure.text(left / WIDTH, 1 - _HEAD / 2 / height, title, va="center", fontsize=10, fontweight="bold")
        for place, pair in enumerate(pairs):
            top = _HEAD + place * row
            _rule(figure, top, height)
            _draw_side(figure, pair.true, pair.example, _EXAMPLE_GAP, top, row, height)
            _draw_side(figure, pair.predicted, pair.lookalike, _EXAMPLE_GAP + _SIDE, top, row, height)
            _draw_rate(figure, pair.rate, top + row / 2, height)
        return to_png(figure)


def _draw_side(
    figure: Figure, name: str, image: Image.Image | None, left: float, top: float, row: float, height: float
) -> None:
    """A class: its example, if any, and its name beside."""
    if image is not None:
        edge = row - _EXAMPLE_CELL
        axes = place_axes(figure, left, top + edge / 2, _EXAMPLE_CELL, _EXAMPLE_CELL)
        axes.imshow(image.convert("RGB"), aspect="equal", interpolation="antialiased")
        axes.axis("off")
    begin = left + (_EXAMPLE_CELL + _EXAMPLE_GAP if row == _EXAMPLE_ROW else 0)
    told = _wrapped(name, left + _SIDE - begin - _EXAMPLE_GAP)
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

    left, thick = 2 * _SIDE + _EXAMPLE_GAP, 10
    for length, colour in ((_BAR, GRID), (_BAR * min(max(rate, 0.0), 1.0), BLUE)):
        corner = (left / WIDTH, 1 - (middle + thick / 2) / height)
        figure.add_artist(Rectangle(corner, length / WIDTH, thick / height, color=colour, linewidth=0))
    at = ((left + _BAR + 8) / WIDTH, 1 - middle / height)
    figure.text(*at, value_text(rate, percent=True), va="center", fontsize=9, color=MUTED)


def _rule(figure: Figure, top: float, height: float) -> None:
    from matplotlib.lines import Line2D

    at = 1 - top / height
    figure.add_artist(Line2D([_EXAMPLE_GAP / WIDTH, 1 - _EXAMPLE_GAP / WIDTH], [at, at], color=GRID, linewidth=1))


__getattr__ = renamed(__name__, Neighbour="NeighbourThumb")
