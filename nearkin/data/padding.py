"""Padding: an image whole and undistorted in a square, the rest filled with the colour of its own border.

An image that fits keeps its scale, so that small things stay small; a larger one is scaled down until its longer side
fits.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

# Pillow first shrinks large images by whole factors to this multiple of the target: much faster, hardly visible.
REDUCING_GAP = 2.0


def padded(image: Image.Image, side: int, most: int | None = None) -> Image.Image:
    """An image of mode L or RGB in the middle of a square.

    Args:
        image: the image.
        side: the smallest side of the square, in pixels.
        most: the largest; an image whose longer side is between the two keeps its scale and decides. None: `side`.
    """
    most = side if most is None else most
    width, height = fitting(image.width, image.height, most)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=REDUCING_GAP)
    side = max(side, width, height)
    if (width, height) == (side, side):
        return image
    square = Image.new(image.mode, (side, side), border_colour(image))
    square.paste(image, margins(width, height, side))
    return square


def fitting(width: int, height: int, most: int) -> tuple[int, int]:
    """Width and height of an image after its longer side was brought to `most` pixels, if it was longer."""
    longer = max(width, height)
    if longer <= most:
        return width, height
    return max(1, round(width * most / longer)), max(1, round(height * most / longer))


def margins(width: int, height: int, side: int) -> tuple[int, int]:
    """Pixels to the left of and above an image in the middle of a square; an odd one more is right or below."""
    return (side - width) // 2, (side - height) // 2


def border_colour(image: Image.Image) -> int | tuple[int, ...]:
    """The median of each channel over the outermost pixels of an image, the lower one where two are in the middle.

    Not their mean: what is cut at one edge, or a frame around a part, would tint it.
    """
    pixels = np.asarray(image)
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    rows, inner = pixels[:: max(1, len(pixels) - 1)], pixels[1:-1]
    columns = inner[:, :: max(1, pixels.shape[1] - 1)]
    border = np.concatenate([part.reshape(-1, pixels.shape[2]) for part in (rows, columns)])
    colour = tuple(int(value) for value in np.sort(border, axis=0)[(len(border) - 1) // 2])
    return colour[0] if len(colour) == 1 else colour
