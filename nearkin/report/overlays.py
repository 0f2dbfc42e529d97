"""Heat maps over images: where a model looked, on what it saw."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from nearkin.report._canvas import INK, MUTED, WIDTH, drawing, to_png
from nearkin.report._lines import fit_text, text_width
from nearkin.report.heat import Scale, ShareScale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Box = tuple[float, float, float, float]

_LONGEST = 960  # of a single overlay, in real pixels
_UNSEEN = 0.55  # how far what the model did not see fades to white
_GREY = 0.8  # how far the colours of the image fade below those of the map

# Of a grid, in pixels of the page; it has twice as many real ones.
_PAIRS = 3  # pairs of image and overlay in a row
_CELL = 114
_INSIDE = 4
_BETWEEN = (WIDTH - _PAIRS * (2 * _CELL + _INSIDE)) // (_PAIRS - 1)
_CAPTION = 20
_ROW = _CAPTION + _CELL + 6
_TEXT = 8  # points
_KEY = 48
_NARROWEST = 480  # the key must fit
_KEY_MARGIN = 26  # half of the number at an end of the key hangs over

# Of a row that is one image with several maps.
_WIDEST_CELL = 132
_STAGE = 16  # the line that names the stages


@dataclass(frozen=True)
class Panel:
    """One image of a grid, as the model saw it, with the values of its positions and what it is called."""

    image: Image.Image
    values: np.ndarray
    caption: str


@dataclass(frozen=True)
class Strip:
    """One image as the model saw it, with a map for each of several stages by name, and what it is called."""

    image: Image.Image
    maps: Mapping[str, np.ndarray]
    caption: str


def draw_overlay(
    image: Image.Image, values: np.ndarray, scale: Scale | None = None, box: Box | None = None
) -> Image.Image:
    """Lay a map over an image.

    Args:
        image: the image, of any mode.
        values: the map, (h, w), or what else the scale takes.
        scale: how values become colours; None: shares, on a scale of their own.
        box: left, top, right and bottom of what the map covers, in pixels of the image; None: all of it. The rest is
            faded, and a line drawn around the box.

    Returns:
        An RGB image as large as the one given.
    """
    scale = ShareScale.over([values]) if scale is None else scale
    picture = _flat(image)
    left, top, right, bottom = (round(edge) for edge in box or (0, 0, *picture.size))
    right, bottom = max(right, left + 1), max(bottom, top + 1)
    seen = picture.crop((left, top, right, bottom))
    # Grey below the colours: a red bird must not look like a high value.
    ground = Image.blend(seen, seen.convert("L").convert("RGB"), _GREY).convert("RGBA")
    heated = Image.alpha_composite(ground, scale.paint(values, seen.size)).convert("RGB")
    if box is None:
        return heated
    whole = Image.blend(picture, Image.new("RGB", picture.size, "white"), _UNSEEN)
    whole.paste(heated, (left, top))
    thick = max(1, round(max(whole.size) / 400))
    ImageDraw.Draw(whole).rectangle((left, top, right - 1, bottom - 1), outline=INK, width=thick)
    return whole


def draw_keyed_overlay(
    image: Image.Image, values: np.ndarray, scale: Scale | None = None, box: Box | None = None
) -> bytes:
    """`draw_overlay` at a size to look at, with the key of its colours below: PNG bytes."""
    scale = ShareScale.over([values]) if scale is None else scale
    factor = _LONGEST / max(image.size)
    size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    box = None if box is None else (box[0] * factor, box[1] * factor, box[2] * factor, box[3] * factor)
    overlay = draw_overlay(_resized(_flat(image), size), values, scale, box)
    key = _draw_key(scale)
    sheet = Image.new("RGB", (max(overlay.width, key.width), overlay.height + key.height), "white")
    sheet.paste(overlay, ((sheet.width - overlay.width) // 2, 0))
    sheet.paste(key, ((sheet.width - key.width) // 2, overlay.height))
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    return buffer.getvalue()


def draw_overlays(panels: Sequence[Panel], scale: Scale) -> bytes:
    """Draw each image and beside it the same with its map, three such pairs in a row, and below the key.

    Returns:
        PNG bytes, or none when there are no panels.
    """
    if not panels:
        return b""
    pairs = min(_PAIRS, len(panels))
    width = max(_NARROWEST, pairs * (2 * _CELL + _INSIDE + _BETWEEN) - _BETWEEN)
    height = math.ceil(len(panels) / pairs) * _ROW + _KEY
    with drawing(width, height) as figure:
        for place, panel in enumerate(panels):
            left, top = place % pairs * (2 * _CELL + _INSIDE + _BETWEEN), place // pairs * _ROW
            _draw_pair(figure, panel, scale, left, top)
        _place_key(figure, scale, height - _KEY)
        return to_png(figure)


def draw_strips(strips: Sequence[Strip], scale: Scale) -> bytes:
    """Draw a row for each image: what the model saw, then its map of each stage over it; below, the key.

    A stage's maps are below one another; an image without one leaves its place empty.

    Returns:
        PNG bytes, or none when there are no strips.
    """
    if not strips:
        return b""
    stages = list(dict.fromkeys(stage for strip in strips for stage in strip.maps))
    cell = min(_WIDEST_CELL, (WIDTH - len(stages) * _INSIDE) // (1 + len(stages)))
    row, content = _CAPTION + _STAGE + cell + 8, (1 + len(stages)) * (cell + _INSIDE) - _INSIDE
    width, height = max(_NARROWEST, content), len(strips) * row + _KEY
    columns = {stage: place * (cell + _INSIDE) for place, stage in enumerate(stages, start=1)}
    left = (width - content) // 2
    with drawing(width, height) as figure:
        for place, strip in enumerate(strips):
            top = place * row + _CAPTION
            _write(figure, strip.caption, left, top, content, INK)
            _write(figure, "as seen", left, top + _STAGE, cell - _INSIDE, MUTED)
            for stage, values in strip.maps.items():
                name = _stage_caption(stage, values, cell - _INSIDE)
                _write(figure, name, left + columns[stage], top + _STAGE, cell - _INSIDE, MUTED)
            _show(figure, _side_by_side(strip, columns, scale, cell, content), left, top + _STAGE)
        _place_key(figure, scale, height - _KEY)
        return to_png(figure)


def _side_by_side(strip: Strip, columns: Mapping[str, int], scale: Scale, cell: int, width: int) -> Image.Image:
    """An image and its overlays, each at the column of its stage, twice as large as on the page."""
    image = _resized(_flat(strip.image), (2 * cell, 2 * cell))
    sheet = Image.new("RGB", (2 * width, 2 * cell), "white")
    sheet.paste(image, (0, 0))
    for stage, values in strip.maps.items():
        sheet.paste(draw_overlay(image, values, scale), (2 * columns[stage], 0))
    return sheet


def _stage_caption(stage: str, values: np.ndarray, width: int) -> str:
    """The name of a stage and the size of its map, or the name alone where both do not fit."""
    both = f"{stage}, {values.shape[-2]} x {values.shape[-1]}"
    return both if text_width(both, _TEXT) <= width else stage


def _draw_pair(figure: Figure, panel: Panel, scale: Scale, left: int, top: int) -> None:
    """An image, a gap and its overlay, below their caption."""
    image = _resized(_flat(panel.image), (2 * _CELL, 2 * _CELL))
    pair = Image.new("RGB", (2 * (2 * _CELL + _INSIDE), 2 * _CELL), "white")
    pair.paste(image, (0, 0))
    pair.paste(draw_overlay(image, panel.values, scale), (2 * (_CELL + _INSIDE), 0))
    _show(figure, pair, left, top + _CAPTION)
    _write(figure, panel.caption, left, top + _CAPTION, pair.width // 2, INK)


def _show(figure: Figure, picture: Image.Image, left: int, top: int) -> None:
    """A picture, two of its pixels a pixel of the page."""
    axes = _axes(figure, left, top, picture.width / 2, picture.height / 2)
    axes.imshow(np.asarray(picture), aspect="auto", interpolation="nearest")
    axes.set_axis_off()


def _write(figure: Figure, line: str, left: int, top: int, width: int, colour: str) -> None:
    """A line of text above a place, in pixels of the page, no wider than `width`."""
    whole, high = 100 * figure.get_figwidth(), 100 * figure.get_figheight()
    figure.text(left / whole, 1 - (top - 4) / high, fit_text(line, width, _TEXT), fontsize=_TEXT, color=colour)


@lru_cache(maxsize=1)
def _draw_key(scale: Scale) -> Image.Image:
    """The key alone; overlays that are written one after the other share it."""
    with drawing(_NARROWEST, _KEY) as figure:
        _place_key(figure, scale, 0)
        return Image.open(io.BytesIO(to_png(figure))).convert("RGB")


def _place_key(figure: Figure, scale: Scale, top: int) -> None:
    """The key in the middle of a strip that begins `top` pixels below the upper edge."""
    width = 100 * figure.get_figwidth()
    left = (width - _NARROWEST) / 2 + _KEY_MARGIN
    scale.draw_key(_axes(figure, left, top + 8, _NARROWEST - 2 * _KEY_MARGIN, 8))


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at an exact place, in pixels of the page from the upper left corner."""
    figure.set_layout_engine("none")
    whole, high = 100 * figure.get_figwidth(), 100 * figure.get_figheight()
    return figure.add_axes((left / whole, 1 - (top + height) / high, width / whole, height / high))


def _resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    # Large steps up show honest pixels; everything else is a photograph to be resampled.
    method = Image.Resampling.NEAREST if size[0] >= 2.5 * image.width else Image.Resampling.LANCZOS
    return image.resize(size, method)


def _flat(image: Image.Image) -> Image.Image:
    """An image of any mode as RGB, transparent parts white."""
    if image.has_transparency_data:
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")
