"""Small pictures of items, to be shown beside answers."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageOps

from nearkin.errors import DataError

MAX_SIDE = 160
_QUALITY = 80
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N", "I")


def thumbnail(image: Image.Image) -> bytes:
    """A JPEG of an image, at most `MAX_SIDE` pixels a side.

    It is upright, in RGB on white, and holds nothing but the picture: no EXIF, place, colour profile or comment.
    The image itself is left as it is.
    """
    if not image.width or not image.height:
        raise DataError(f"An image of {image.width} x {image.height} pixels has no thumbnail.")
    try:
        small = _flat(ImageOps.exif_transpose(image))
        small.thumbnail((MAX_SIDE, MAX_SIDE))
        small.info.clear()
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=_QUALITY)
    except (OSError, ValueError) as error:
        raise DataError(f"An image of mode {image.mode} could not be made small ({error}).") from error
    return buffer.getvalue()


def _flat(image: Image.Image) -> Image.Image:
    """An image of any mode as RGB, transparent parts white."""
    if image.mode in _DEEP:
        # Pillow would cut 16-bit values off at 255.
        return Image.fromarray(np.clip(np.asarray(image) / 257.0, 0, 255).round().astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        colours = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", colours.size, "white"), colours).convert("RGB")
    return image.convert("RGB")
