"""Colours for values of positions: one scale for each kind of map, with its key.

A scale is made once from all maps that are to be compared, so that a colour means the same in each picture.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from PIL import Image

from nearkin.errors import DataError
from nearkin.report._canvas import BLACK, BLUE, GREEN, MUTED, PURPLE, VERMILION

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


class Scale(Hashable, Protocol):
    """Turns the values of a map into colours; equal scales do so alike."""

    def paint(self, values: np.ndarray, size: Size) -> Image.Image:
        """The map, enlarged to a size (width, height), as RGBA: what is laid over an image."""
        ...

    def draw_key(self, axes: Axes) -> None:
        """Draw what the colours mean into flat axes."""
        ...


@dataclass(frozen=True)
class ShareScale:
    """For shares (h, w) that sum to 1: coloured by how many times the share in average pooling they are.

    Args:
        top: the multiple at which the scale ends; more looks the same.
    """

    top: float = _SMALLEST_TOP

    @classmethod
    def over(cls, maps: Sequence[np.ndarray]) -> ShareScale:
        """The scale on which all of these maps can be read."""
        return cls(_top([shares * shares.size for shares in maps]))

    def paint(self, values: np.ndarray, size: Size) -> Image.Image:
        """The map (h, w) enlarged to a size (width, height) as RGBA."""
        return _heat(enlarged(values * values.size, size) / self.top)

    def draw_key(self, axes: Axes) -> None:
        """A colour bar from 0 to the top."""
        _draw_heat_bar(axes, self.top, "weight of a position, as a multiple of its weight in average pooling")


@dataclass(frozen=True)
class HeatScale:
    """For values (h, w) that are nowhere negative, as of Grad-CAM: coloured by how many times their own mean they are.

    Args:
        top: the multiple at which the scale ends; more looks the same.
    """

    top: float = _SMALLEST_TOP

    @classmethod
    def over(cls, maps: Sequence[np.ndarray]) -> HeatScale:
        """The scale on which all of these maps can be read."""
        return cls(_top([_in_means(values) for values in maps]))

    def paint(self, values: np.ndarray, size: Size) -> Image.Image:
        """The map (h, w) enlarged to a size (width, height) as RGBA."""
        return _heat(enlarged(_in_means(values), size) / self.top)

    def draw_key(self, axes: Axes) -> None:
        """A colour bar from 0 to the top."""
        _draw_heat_bar(axes, self.top, "Grad-CAM of a position, as a multiple of the image's mean")


@dataclass(frozen=True)
class SignedScale:
    """For signed values (h, w): coloured by how many times their own mean size they are.

    Orange is for, blue against, and the nearer to 0, the more transparent: what adds nothing shows the bare image.

    Args:
        top: the multiple, either way, at which the scale ends; more looks the same.
    """

    top: float = _SMALLEST_TOP

    @classmethod
    def over(cls, maps: Sequence[np.ndarray]) -> SignedScale:
        """The scale on which all of these maps can be read."""
        return cls(_top([np.abs(_in_means(values)) for values in maps]))

    def paint(self, values: np.ndarray, size: Size) -> Image.Image:
        """The map (h, w) enlarged to a size (width, height) as RGBA."""
        unit = np.clip(enlarged(_in_means(values), size) / self.top, -1, 1)
        return _rgba(_signed_colours(unit), _STRONGEST * np.abs(unit))

    def draw_key(self, axes: Axes) -> None:
        """A colour bar as wide below 0 as above."""
        unit = np.linspace(-1, 1, 512)[None]
        alpha = _STRONGEST * np.abs(unit)[..., None]
        colours = alpha * _signed_colours(unit) + (1 - alpha) * _rgb(_GROUND)
        label = "what a position adds to the embedding; 1 = mean size, below 0 = against it"
        _draw_bar(axes, colours, -self.top, self.top, label)


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
        legend = axes.legend(
            patches,
            list(colours),
            loc="upper center",
            bbox_to_anchor=(0.5, 1.6),
            ncols=len(colours),
            fontsize=8,
            title="dominant prototype; the stronger, the more of it is pooled",
            title_fontsize=8,
            handlelength=1.2,
            columnspacing=1.2,
            borderpad=0,
        )
        legend.get_title().set_color(MUTED)


def enlarged(values: np.ndarray, size: Size) -> np.ndarray:
    """A map (h, w) as (height, width), bilinearly; each value lies in the middle of the field it stands for."""
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise DataError(f"A map to draw must hold finite values (h, w), not {values.dtype} {values.shape}.")
    return np.asarray(Image.fromarray(values.astype(np.float32)).resize(size, Image.Resampling.BILINEAR))


def _in_means(values: np.ndarray) -> np.ndarray:
    """Values as multiples of the mean of their sizes; all zero stays so."""
    mean = float(np.abs(values).mean())
    return values / mean if mean > 0 else np.zeros_like(values)


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


def _heat(unit: np.ndarray) -> Image.Image:
    """Values (h, w), 0 cold and 1 or more hot, as RGBA."""
    import matplotlib

    # One opacity for all: a colour then depends on nothing but its value and the image below.
    return _rgba(matplotlib.colormaps[_HEAT](np.clip(unit, 0, 1))[..., :3], np.full(unit.shape, _OPACITY))


def _draw_heat_bar(axes: Axes, top: float, label: str) -> None:
    import matplotlib

    _draw_bar(axes, matplotlib.colormaps[_HEAT](np.linspace(0, 1, 256))[None, :, :3], 0.0, top, label)


def _draw_bar(axes: Axes, colours: np.ndarray, low: float, high: float, label: str) -> None:
    axes.imshow(colours, aspect="auto", extent=(low, high, 0, 1))
    axes.set(yticks=[], xlim=(low, high))
    axes.grid(False)
    axes.set_xlabel(label, fontsize=8, labelpad=2)
    axes.tick_params(labelsize=8, length=2, pad=2)
    axes.spines[:].set_visible(False)
