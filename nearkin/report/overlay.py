"""Heat maps over images: where a model looked, on one colour scale for all maps that are compared.

Pictures written for `nearkin explain` carry a mark in their PNG data, so that they are not taken for images to explain.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
from PIL import Image, ImageDraw

from nearkin.errors import DataError
from nearkin.report import canvas
from nearkin.report.canvas import BLACK, BLUE, GREEN, INK, MUTED, PURPLE, VERMILION, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Size = tuple[int, int]

_HEAT = "inferno"
_OPACITY = 0.55
_STRONGEST = 0.75
"""Opacity of a signed value, or of a part, at the end of its scale."""

_SMALLEST_TOP = 2.0
"""Twice the mean is the least that ends a scale: on a shorter one, noise would look like a finding."""

_WITHIN = 0.99
"""Share of the values that a scale holds: one bright spot shall not make all else dark."""

_FOR, _AGAINST, _GROUND = VERMILION, BLUE, "#d9d9d9"
# Faded, colours keep nothing but their hues, so no two are close: no sky beside blue, no orange beside vermilion.
_PARTS = (BLUE, VERMILION, GREEN, "#f0e442", PURPLE)  # on an image, Okabe and Ito's yellow is not too pale
_OTHERS = BLACK


class ColourScale(Hashable, Protocol):
    """Turns the values of a map into colours; equal scales do so alike."""

    def paint(self, values: np.ndarray, size: Size) -> Image.Image:
        """The map, enlarged to a size (width, height), as RGBA: what is laid over an image."""

    def draw_key(self, axes: Axes) -> None:
        """Draw what the colours mean into flat axes."""


@dataclass(frozen=True)
class _MultipleScale:
    """Colours values (h, w) by how many times a mean they are.

    Args:
        top: the multiple, either way, at which the scale ends; more looks the same.
    """

    top: float = _SMALLEST_TOP

    _label: ClassVar[str]

    @classmethod
    def over(cls, maps: Sequence[np.ndarray]) -> Self:
        """The scale on which all of these maps can be read."""
        return cls(_top([np.abs(cls._multiples(values)) for values in maps]))

    def paint(self, values: np.ndarray, size: Size) -> Image.Image:
        """The map (h, w) enlarged to a size (width, height) as RGBA."""
        import matplotlib

        unit = np.clip(enlarged(self._multiples(values), size) / self.top, 0, 1)
        # One opacity for all: a colour then depends on nothing but its value and the image below.
        return _rgba(matplotlib.colormaps[_HEAT](unit)[..., :3], np.full(unit.shape, _OPACITY))

    def draw_key(self, axes: Axes) -> None:
        """A colour bar from 0 to the top."""
        import matplotlib

        _draw_bar(axes, matplotlib.colormaps[_HEAT](np.linspace(0, 1, 256))[None, :, :3], 0.0, self.top, self._label)

    @staticmethod
    def _multiples(values: np.ndarray) -> np.ndarray:
        """Values as multiples of the mean of their sizes; all zero stays so."""
        mean = float(np.abs(values).mean())
        return values / mean if mean > 0 else np.zeros_like(values)


class ShareScale(_MultipleScale):
    """For shares (h, w) that sum to 1: coloured by how many times the share in average pooling they are."""

    _label = "weight of a position, as a multiple of its weight in average pooling"

    @staticmethod
    def _multiples(values: np.ndarray) -> np.ndarray:
        return values * values.size


class HeatScale(_MultipleScale):
    """For values (h, w) that are nowhere negative, as of Grad-CAM: coloured by how many times their mean they are."""

    _label = "Grad-CAM of a position, as a multiple of the image's mean"


class SignedScale(_MultipleScale):
    """For signed values (h, w): coloured by how many times their own mean size they are.

    Orange is for, blue against, and the nearer to 0, the more transparent: what adds nothing shows the bare image.
    """

    _label = "what a position adds to the embedding; 1 = mean size, below 0 = against it"

    def paint(self, values: np.ndarray, size: Size) -> Image.Image:
        """The map (h, w) enlarged to a size (width, height) as RGBA."""
        unit = np.clip(enlarged(self._multiples(values), size) / self.top, -1, 1)
        return _rgba(_signed_colours(unit), _STRONGEST * np.abs(unit))

    def draw_key(self, axes: Axes) -> None:
        """A colour bar as wide below 0 as above."""
        unit = np.linspace(-1, 1, 512)[None]
        alpha = _STRONGEST * np.abs(unit)[..., None]
        colours = alpha * _signed_colours(unit) + (1 - alpha) * _rgb(_GROUND)
        _draw_bar(axes, colours, -self.top, self.top, self._label)


@dataclass(frozen=True)
class PartScale:
    """For shares (M, h, w) of M parts: the hue says which part has most of a position, the opacity how much that is.

    Args:
        parts: the parts that have a colour of their own, the largest first; all others are black.
        top: the multiple of the mean at which a position is painted in full.
    """

    parts: tuple[int, ...]
    top: float = _SMALLEST_TOP

    @classmethod
    def over(cls, maps: Sequence[np.ndarray]) -> PartScale:
        """The scale on which all of these maps can be read."""
        total = np.sum([shares.sum((1, 2)) for shares in maps], axis=0)
        parts = tuple(int(part) for part in np.argsort(-total, kind="stable")[: len(_PARTS)] if total[part] > 0)
        return cls(parts, _top([shares.sum(0) * shares[0].size for shares in maps]))

    def paint(self, values: np.ndarray, size: Size) -> Image.Image:
        """The map (M, h, w) enlarged to a size (width, height) as RGBA."""
        chosen = list(self.parts)
        others = np.delete(values, chosen, axis=0)
        rest = others.max(0) if len(others) else np.zeros_like(values[0])
        layers = np.stack([enlarged(layer, size) for layer in (*values[chosen], rest)])
        palette = np.array([_rgb(colour) for colour in (*_PARTS[: len(chosen)], _OTHERS)])
        strength = enlarged(values.sum(0) * values[0].size, size) / self.top
        return _rgba(palette[layers.argmax(0)], _STRONGEST * np.clip(strength, 0, 1))

    def draw_key(self, axes: Axes) -> None:
        """A patch for each part with a colour."""
        from matplotlib.patches import Patch

        colours = dict(zip(map(str, self.parts), _PARTS, strict=False)) | {"others": _OTHERS}
        patches = [Patch(facecolor=colour, edgecolor=MUTED, linewidth=0.5) for colour in colours.values()]
        axes.set_axis_off()
        above: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, 1.6), "ncols": len(colours), "fontsize": 8}
        title: Any = {"title": "dominant prototype; the stronger, the more of it is pooled", "title_fontsize": 8}
        legend = axes.legend(patches, list(colours), handlelength=1.2, columnspacing=1.2, borderpad=0, **above, **title)
        legend.get_title().set_color(MUTED)


def enlarged(values: np.ndarray, size: Size) -> np.ndarray:
    """A map (h, w) as (height, width), bilinearly; each value lies in the middle of the field it stands for."""
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise DataError(f"A map must have finite values (h, w), not {values.dtype} {values.shape}.")
    return np.asarray(Image.fromarray(values.astype(np.float32)).resize(size, Image.Resampling.BILINEAR))


def _top(maps: Sequence[np.ndarray]) -> float:
    """Where a scale ends that shall hold nearly all values of these maps, and of those of each size among them."""
    sizes = {values.size for values in maps}
    alike = [np.concatenate([np.ravel(values) for values in maps if values.size == size]) for size in sizes]
    return max([_SMALLEST_TOP, *(float(np.quantile(values, _WITHIN)) for values in alike)])


def _signed_colours(unit: np.ndarray) -> np.ndarray:
    return np.where(unit[..., None] < 0, _rgb(_AGAINST), _rgb(_FOR))


def _rgb(colour: str) -> np.ndarray:
    from matplotlib.colors import to_rgb

    return np.array(to_rgb(colour))


def _rgba(colours: np.ndarray, alpha: np.ndarray) -> Image.Image:
    pixels = np.concatenate([colours, alpha[..., None]], axis=-1)
    return Image.fromarray(np.round(255 * pixels).astype(np.uint8), "RGBA")


def _draw_bar(axes: Axes, colours: np.ndarray, low: float, high: float, label: str) -> None:
    axes.imshow(colours, aspect="auto", extent=(low, high, 0, 1))
    axes.set(yticks=[], xlim=(low, high))
    axes.set_xlabel(label, fontsize=8, labelpad=2)
    axes.tick_params(labelsize=8, length=2, pad=2)
    canvas.frame_axes(axes)


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
class OverlayPanel:
    """One image of a grid, as the model saw it, with the values of its positions and what it is called."""

    image: Image.Image
    values: np.ndarray
    caption: str


@dataclass(frozen=True)
class OverlayStrip:
    """One image as the model saw it, with a map for each of several stages by name, and what it is called."""

    image: Image.Image
    maps: Mapping[str, np.ndarray]
    caption: str


def draw_overlay(
    image: Image.Image, values: np.ndarray, scale: ColourScale | None = None, box: Box | None = None
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
    picture = canvas.on_white(image)
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
    image: Image.Image, values: np.ndarray, scale: ColourScale | None = None, box: Box | None = None
) -> bytes:
    """`draw_overlay` at a size to look at, with the key of its colours below: PNG bytes."""
    scale = ShareScale.over([values]) if scale is None else scale
    factor = _LONGEST / max(image.size)
    size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    box = None if box is None else (box[0] * factor, box[1] * factor, box[2] * factor, box[3] * factor)
    overlay = draw_overlay(canvas.resized(canvas.on_white(image), size), values, scale, box)
    key = _draw_key(scale)
    sheet = Image.new("RGB", (max(overlay.width, key.width), overlay.height + key.height), "white")
    sheet.paste(overlay, ((sheet.width - overlay.width) // 2, 0))
    sheet.paste(key, ((sheet.width - key.width) // 2, overlay.height))
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    return buffer.getvalue()


def draw_overlays(panels: Sequence[OverlayPanel], scale: ColourScale) -> bytes:
    """Draw each image and beside it the same with its map, three such pairs in a row, and below the key.

    Returns:
        PNG bytes, or none when there are no panels.
    """
    if not panels:
        return b""
    pairs = min(_PAIRS, len(panels))
    width = max(_NARROWEST, pairs * (2 * _CELL + _INSIDE + _BETWEEN) - _BETWEEN)
    height = math.ceil(len(panels) / pairs) * _ROW + _KEY
    with canvas.drawing(width, height) as figure:
        sheet = canvas.Sheet(figure)
        for place, panel in enumerate(panels):
            left, top = place % pairs * (2 * _CELL + _INSIDE + _BETWEEN), place // pairs * _ROW + _CAPTION
            _write(sheet, panel.caption, left, top, 2 * _CELL + _INSIDE, INK)
            _show(sheet, panel.image, [(_CELL + _INSIDE, panel.values)], scale, (left, top, left + _CELL, top + _CELL))
        _place_key(sheet, scale, height - _KEY)
        return canvas.to_png(figure)


def draw_strips(strips: Sequence[OverlayStrip], scale: ColourScale) -> bytes:
    """Draw a row for each image: what the model saw, then its map of each stage over it; below, the key.

    A stage's maps are below one another; an image without one leaves its place empty.

    Returns:
        PNG bytes, or empty bytes when there are no strips.
    """
    if not strips:
        return b""
    stages = list(dict.fromkeys(stage for strip in strips for stage in strip.maps))
    cell = min(_WIDEST_CELL, (WIDTH - len(stages) * _INSIDE) // (1 + len(stages)))
    row, content = _CAPTION + _STAGE + cell + 8, (1 + len(stages)) * (cell + _INSIDE) - _INSIDE
    width, height = max(_NARROWEST, content), len(strips) * row + _KEY
    columns = {stage: place * (cell + _INSIDE) for place, stage in enumerate(stages, start=1)}
    left = (width - content) // 2
    with canvas.drawing(width, height) as figure:
        sheet = canvas.Sheet(figure)
        for place, strip in enumerate(strips):
            top = place * row + _CAPTION
            _write(sheet, strip.caption, left, top, content, INK)
            _write(sheet, "as seen", left, top + _STAGE, cell - _INSIDE, MUTED)
            for stage, values in strip.maps.items():
                # The name of a stage and the size of its map, or the name alone where both do not fit.
                both = f"{stage}, {values.shape[-2]} x {values.shape[-1]}"
                told = both if canvas.text_width(both, _TEXT) <= cell - _INSIDE else stage
                _write(sheet, told, left + columns[stage], top + _STAGE, cell - _INSIDE, MUTED)
            maps = [(columns[stage], values) for stage, values in strip.maps.items()]
            _show(sheet, strip.image, maps, scale, (left, top + _STAGE, left + cell, top + _STAGE + cell))
        _place_key(sheet, scale, height - _KEY)
        return canvas.to_png(figure)


def _show(
    sheet: canvas.Sheet, image: Image.Image, maps: Sequence[tuple[int, np.ndarray]], scale: ColourScale, at: Box
) -> None:
    """An image in a square (left, top, right, bottom) and its overlays, each so far to the right of it."""
    left, top, right, bottom = map(round, at)
    image = canvas.resized(canvas.on_white(image), (2 * (right - left), 2 * (bottom - top)))
    sheet.paste(image, left, top)
    for beside, values in maps:
        sheet.paste(draw_overlay(image, values, scale), left + beside, top)


def _write(sheet: canvas.Sheet, line: str, left: int, top: int, width: int, colour: str) -> None:
    """A line of text above a place, no wider than `width`."""
    sheet.write(left, top - 4, canvas.fit_text(line, width, _TEXT), _TEXT, va="baseline", color=colour)


@lru_cache(maxsize=1)
def _draw_key(scale: ColourScale) -> Image.Image:
    """The key alone; overlays that are written one after the other share it."""
    with canvas.drawing(_NARROWEST, _KEY) as figure:
        _place_key(canvas.Sheet(figure), scale, 0)
        return Image.open(io.BytesIO(canvas.to_png(figure))).convert("RGB")


def _place_key(sheet: canvas.Sheet, scale: ColourScale, top: int) -> None:
    """The key in the middle of a strip that begins `top` pixels below the upper edge."""
    left = (sheet.width - _NARROWEST) / 2 + _KEY_MARGIN
    scale.draw_key(sheet.axes(left, top + 8, _NARROWEST - 2 * _KEY_MARGIN, 8))


_PNG_HEAD = 33
"""Bytes of the signature and of the first chunk, IHDR, which is always as long."""


_WORDS = b"Software\0nearkin explain"
_MARK = struct.pack(">I", len(_WORDS)) + b"tEXt" + _WORDS + struct.pack(">I", zlib.crc32(b"tEXt" + _WORDS))


def mark_png(png: bytes) -> bytes:
    """PNG bytes with the mark: a text that programs show as what made the picture, and that changes no pixel."""
    return png[:_PNG_HEAD] + _MARK + png[_PNG_HEAD:]


def has_mark(path: Path) -> bool:
    """Whether a file carries the mark; one that cannot be read does not."""
    try:
        with path.open("rb") as file:
            return file.read(_PNG_HEAD + len(_MARK)).endswith(_MARK)
    except OSError:
        return False
