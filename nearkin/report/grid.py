"""Image grids: nearest neighbours, novel items, attacked queries, and the most common confusions with examples."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from nearkin._moved import renamed
from nearkin.report import canvas
from nearkin.report.canvas import BLUE, FAINT, GRID, INK, MUTED, VERMILION, WIDTH
from nearkin.report.values import clean, p_text, shorten, value_text

# In CSS pixels, except for type, which is in points.
_CELL, _RIM = 92, 4  # of a picture, and of its frame within that
_GAP = 10  # between cells
_BEFORE = 18  # between the query and its neighbours
_MARGIN, _HEADER, _FOOTER = 8, 26, 26
_LINE, _TEXT = 13, 7.2
_BADGE = 20
_NARROWEST = 300  # the key must fit
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


_KINDS = ("same class", "other class")


def draw_neighbours(
    rows: Sequence[NeighbourRow], *, number: str = "distance", kinds: tuple[str, str] | None = _KINDS
) -> bytes:
    """Draw one row a query; hits have a solid green frame and a check mark, misses a dashed red one and a cross.

    Args:
        rows: the queries.
        number: what the number of a neighbour is.
        kinds: what hits and misses are; None: neighbours are neither.

    Returns:
        PNG bytes, or empty bytes when there are no rows.
    """
    if not rows:
        return b""
    columns = max(1, *(len(row.neighbours) for row in rows))
    width = max(_NARROWEST, 2 * _MARGIN + _CELL + _BEFORE + columns * (_CELL + _GAP) - _GAP + 4)
    queries = [_wrapped(row.query.label, _CELL - 2, _TEXT, "bold") for row in rows]
    labels = [[_wrapped(thumb.label, _CELL - 2, _TEXT) for thumb, _, _ in row.neighbours] for row in rows]
    # Room for the pictures, the longest label, the distances and some air.
    lines = [
        max(_lines(query), *(_lines(label) + 1 for label in found), 1)
        for query, found in zip(queries, labels, strict=True)
    ]
    heights = [_CELL + _LINE * count + 17 for count in lines]
    with canvas.drawing(width, _HEADER + sum(heights) + _FOOTER) as figure:
        sheet, first, top = canvas.Sheet(figure), _MARGIN + _CELL + _BEFORE, _HEADER
        for left, heading in ((_MARGIN, "query"), (first, "nearest first")):
            sheet.write(left, 16, heading, 8, fontweight="bold")
        for row, query, found, height in zip(rows, queries, labels, heights, strict=True):
            sheet.paste(_framed(row.query.image, _CELL, _RIM, FAINT, 1), _MARGIN, top)
            _write_below(sheet, _MARGIN, top, query, fontweight="bold")
            for place, ((thumb, distance, hit), label) in enumerate(zip(row.neighbours, found, strict=True)):
                left = first + place * (_CELL + _GAP)
                frame = (FAINT, 1) if kinds is None else (_HIT if hit else _MISS, 3)
                dashed = kinds is not None and not hit
                sheet.paste(_framed(thumb.image, _CELL, _RIM, *frame, dashed=dashed), left, top)
                if kinds is not None:
                    _draw_badge(sheet, left + _CELL - 6, top + _CELL - 6, hit)
                _write_below(sheet, left, top, label)
                number_top = top + _LINE * _lines(label)
                _write_below(sheet, left, number_top, value_text(distance, percent=False), color=MUTED)
            top += height
            sheet.rule(top - 7, _MARGIN)
        key = _MARGIN + 8.5
        for hit, meaning in zip((True, False), kinds or (), strict=False):
            _draw_badge(sheet, key, top + 11, hit)
            sheet.write(key + 13, top + 11, meaning, _TEXT, color=MUTED)
            key += 35 + canvas.text_width(meaning, _TEXT)
        sheet.write(key - (10 if kinds else 8.5), top + 11, f"number: {number}", _TEXT, color=MUTED)
        return canvas.to_png(figure)


def _framed(image: Image.Image, side: int, rim: int, colour: str, thick: int, *, dashed: bool = False) -> Image.Image:
    """A picture of any mode and shape in a square frame, with two pixels for each of the page."""
    side, rim, thick = 2 * side, 2 * rim, 2 * thick
    scale = (side - 2 * rim) / max(image.size)
    wide, high = (max(1, round(scale * size)) for size in image.size)
    small = canvas.resized(canvas.on_white(image), (wide, high))
    cell = Image.new("RGB", (side, side), _MOUNT)
    cell.paste(small, ((side - small.width) // 2, (side - small.height) // 2))
    frame = Image.new("1", (side, side))
    pen = ImageDraw.Draw(frame)
    pen.rectangle((0, 0, side - 1, side - 1), outline=1, width=thick)
    for start in range(16, side, 24) if dashed else ():  # a whole number of periods and a dash: corners are closed
        pen.rectangle((start, 0, start + 7, side), fill=0)
        pen.rectangle((0, start, side, start + 7), fill=0)
    cell.paste(colour, (0, 0, side, side), frame)
    return cell


def _draw_badge(sheet: canvas.Sheet, left: float, top: float, hit: bool) -> None:
    """A check or a cross in a circle."""
    circle = {"boxstyle": "circle,pad=0.2", "facecolor": _HIT if hit else _MISS, "edgecolor": "white", "linewidth": 1}
    look: Any = {"ha": "center", "color": "white", "fontweight": "bold"}
    sheet.write(left, top, "✓" if hit else "✗", 10, bbox=circle, **look)


def _lines(label: str) -> int:
    return label.count("\n") + 1


def _write_below(sheet: canvas.Sheet, left: float, top: float, words: str, **look: Any) -> None:
    """Lines below a picture that begins at a place."""
    sheet.write(left, top + _CELL + 3, words, _TEXT, va="top", linespacing=1.23, **{"color": INK, **look})


# In CSS pixels.
_HEAD = 34
_EXAMPLE_ROW, _TEXT_ROW = 96, 30
_EXAMPLE_CELL = 84
_RATE = 150
_EXAMPLE_GAP = 12
_SIDE = (WIDTH - _RATE) // 2
_LETTERS = 9  # points
_BAR, _BAR_THICK = 60, 10  # the bar of a rate of 1


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
    with canvas.drawing(WIDTH, height) as figure:
        sheet = canvas.Sheet(figure)
        for place, title in enumerate(("is", "is taken for", "rate")):
            sheet.write(_EXAMPLE_GAP + place * _SIDE, _HEAD / 2, title, 10, fontweight="bold")
        for place, pair in enumerate(pairs):
            top = _HEAD + place * row
            sheet.rule(top, _EXAMPLE_GAP)
            for column, (name, image) in enumerate(((pair.true, pair.example), (pair.predicted, pair.lookalike))):
                _draw_class(sheet, name, image, _EXAMPLE_GAP + column * _SIDE, top, row)
            left, middle = 2 * _SIDE + _EXAMPLE_GAP, top + row / 2
            for length, colour in ((_BAR, GRID), (_BAR * min(max(pair.rate, 0.0), 1.0), BLUE)):
                sheet.box(left, middle - _BAR_THICK / 2, length, _BAR_THICK, colour)
            sheet.write(left + _BAR + 8, middle, value_text(pair.rate, percent=True), 9, color=MUTED)
        return canvas.to_png(figure)


def _draw_class(sheet: canvas.Sheet, name: str, image: Image.Image | None, left: float, top: float, row: float) -> None:
    """A class: its example, if any, and its name beside."""
    if image is not None:
        axes = sheet.axes(left, top + (row - _EXAMPLE_CELL) / 2, _EXAMPLE_CELL, _EXAMPLE_CELL)
        axes.imshow(image.convert("RGB"), aspect="equal", interpolation="antialiased")
        axes.axis("off")
    begin = left + (_EXAMPLE_CELL + _EXAMPLE_GAP if row == _EXAMPLE_ROW else 0)
    sheet.write(begin, top + row / 2, _wrapped(name, left + _SIDE - begin - _EXAMPLE_GAP), _LETTERS, color=INK)


def _wrapped(name: str, width: float, size: float = _LETTERS, weight: str = "normal") -> str:
    """A name on one line, or on two, best broken between words: what tells two classes apart is often the end."""
    line = clean(name)
    if canvas.text_width(line, size, weight) <= width:
        return line
    letters = range(1, len(line) + 1)
    fits = max(1, bisect_right(letters, width, key=lambda count: canvas.text_width(line[:count], size, weight)))
    breaks = [match.end() for match in re.finditer(r"[\s_\-/.]+", line) if match.end() <= fits]
    first = breaks[-1] if breaks and breaks[-1] > fits // 3 else fits
    return f"{line[:first]}\n{canvas.fit_text(line[first:], width, size, weight)}"


_NOVEL_CELL, _NOVEL_LETTERS = 118, 17  # CSS pixels of a picture with its words; letters of a class's name
_WORDS, _NOVEL_HEAD = 40, 34
_PLURALS = {"distance": "distances", "similarity": "similarities"}
_SCORES = {"distance": "novelty", "similarity": "similarity"}


def draw_novel(
    rows: Sequence[NeighbourRow], scores: Sequence[tuple[float, float]], compared: str = "distance"
) -> bytes:
    """Draw the most novel items, each with its nearest reference items.

    Args:
        rows: a new item and its nearest reference items, nearest first, each with its distance or similarity; whether
            these are hits plays no part.
        scores: of each new item its novelty, or its highest similarity, and the p-value of that.
        compared: what the numbers are: "distance" or "similarity".

    Returns:
        PNG bytes, or empty bytes when there are no rows.
    """
    if not rows:
        return b""
    columns = max(1, *(len(row.neighbours) for row in rows))
    size = _NOVEL_CELL - 14
    with canvas.drawing((columns + 1) * _NOVEL_CELL + 40, len(rows) * (_NOVEL_CELL + _WORDS) + _NOVEL_HEAD) as figure:
        sheet = canvas.Sheet(figure)
        for place, (row, (score, p_value)) in enumerate(zip(rows, scores, strict=True)):
            top = _NOVEL_HEAD + place * (_NOVEL_CELL + _WORDS)
            told = f"{_SCORES[compared]} {value_text(score, percent=False)}, p {p_text(p_value)}"
            shown = [
                (row.query, told),
                *((thumb, value_text(distance, False)) for thumb, distance, _ in row.neighbours),
            ]
            for column, (thumb, words) in enumerate(shown):
                left = _left(column)
                colour, thick, weight = (FAINT, 1, "normal") if column else (VERMILION, 2, "bold")
                sheet.paste(_framed(thumb.image, size, 0, colour, thick), left, top)
                label = shorten(thumb.label, _NOVEL_LETTERS)
                sheet.write(left, top + size + 4, label, 7.5, va="top", color=INK, fontweight=weight)
                sheet.write(left, top + size + 19, clean(words), 6.5, va="top", color=MUTED)
            if place:
                sheet.rule(top - 8, 0.01 * sheet.width)
        for column, text in enumerate(("new", f"nearest in the reference, with their {_PLURALS[compared]}")):
            sheet.write(_left(column), 10, text, 10, va="top", fontweight="bold", color=INK)
        return canvas.to_png(figure)


def _left(column: int) -> int:
    """Where a column begins, in CSS pixels."""
    return 8 + column * _NOVEL_CELL + (20 if column else 0)


# In CSS pixels, except for type, which is in points.
_ATTACK_HEAD, _FOOT = 46, 34
_ATTACK_GAP, _APART, _EDGE = 6, 20, 3
_ATTACK_TEXT = 7.5


@dataclass(frozen=True)
class AttackStrip:
    """One attacked query.

    Args:
        clean: as it was (H, W, C) or (H, W), in [0, 1].
        attacked: as it became, of the same shape.
        label: its class.
        taken: what it is taken for once it was attacked.
        before: its neighbours' pictures, classes, and whether these are its own, nearest first.
        after: the same once it was attacked.
    """

    clean: np.ndarray
    attacked: np.ndarray
    label: str
    taken: str
    before: Sequence[tuple[Image.Image, str, bool]]
    after: Sequence[tuple[Image.Image, str, bool]]


def draw_attacks(strips: Sequence[AttackStrip]) -> bytes:
    """Draw one row a query; perturbations are stretched to the whole range of grey, and the factor is told.

    Returns:
        PNG bytes, or empty bytes when there are no strips.
    """
    if not strips:
        return b""
    columns = 3 + max(len(strip.before) for strip in strips) + max(len(strip.after) for strip in strips)
    side = (WIDTH - 2 * (_APART + _EDGE) - (columns - 1) * _ATTACK_GAP) / columns
    after = 3 + len(strips[0].before)
    count = after + len(strips[0].after)
    # Where each picture of a row begins.
    lefts = [
        _EDGE + place * (side + _ATTACK_GAP) + _APART * ((place >= 3) + (place >= after)) for place in range(count)
    ]
    with canvas.drawing(WIDTH, round(_ATTACK_HEAD + (side + _FOOT) * len(strips))) as figure:
        sheet = canvas.Sheet(figure)
        for place, title in {0: "query", 1: "added", 2: "attacked", 3: "neighbours before", after: "after"}.items():
            sheet.write(lefts[min(place, count - 1)], _ATTACK_HEAD / 2, title, 9, fontweight="bold")
        for place, strip in enumerate(strips):
            _draw_attack(sheet, strip, lefts, _ATTACK_HEAD + place * (side + _FOOT), side)
        return canvas.to_png(figure)


def _draw_attack(sheet: canvas.Sheet, strip: AttackStrip, lefts: Sequence[float], top: float, side: float) -> None:
    change = strip.attacked - strip.clean
    largest = float(np.abs(change).max())
    shown = 0.5 + (0.5 * change / largest if largest > 0 else change)
    pictures = [
        (strip.clean, strip.label, INK),
        (shown, f"up to {largest:.3g}", MUTED),
        (strip.attacked, f"→ {strip.taken}", INK if strip.taken == strip.label else _MISS),
        *((np.asarray(image), name, _HIT if own else _MISS) for image, name, own in (*strip.before, *strip.after)),
    ]
    for place, (left, (pixels, words, colour)) in enumerate(zip(lefts, pictures, strict=False)):
        axes = sheet.axes(left, top, side, side, xticks=[], yticks=[])
        grey = pixels.ndim == 2 or pixels.shape[-1] == 1
        whole: dict[str, Any] = {"vmin": 0, "vmax": 1} if pixels.dtype.kind == "f" else {}
        axes.imshow(pixels.squeeze(), cmap="gray" if grey else None, aspect="equal", interpolation="nearest", **whole)
        mark = ""
        if place < 3:
            canvas.frame_axes(axes, FAINT)
        else:
            canvas.frame_axes(axes, colour, 2.0)
            mark = "✓ " if colour == _HIT else "✗ "
        told = canvas.fit_text(mark + words, side + _ATTACK_GAP, _ATTACK_TEXT)
        sheet.write(left, top + side + 4, told, _ATTACK_TEXT, va="top", color=colour)


__getattr__ = renamed(__name__, Neighbour="NeighbourThumb")
