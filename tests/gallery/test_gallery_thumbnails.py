"""Thumbnails: small, upright, plain."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from nearkin.errors import DataError
from nearkin.gallery.thumbnails import MAX_SIDE, thumbnail

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def opened(image: Image.Image) -> Image.Image:
    small = Image.open(io.BytesIO(thumbnail(image)))
    small.load()
    return small


def near(colour, expected) -> bool:
    return bool(np.abs(np.asarray(colour, int) - np.asarray(expected, int)).max() < 12)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 700), st.integers(1, 700), st.sampled_from(["L", "RGB", "RGBA", "P", "1", "CMYK", "LA", "I;16"]))
def test_size_format_and_mode(width, height, mode):
    small = opened(Image.new(mode, (width, height)))
    assert (small.format, small.mode) == ("JPEG", "RGB")
    scale = min(1.0, MAX_SIDE / max(width, height))
    assert max(small.size) <= MAX_SIDE
    assert abs(small.width - max(1, width * scale)) <= 1
    assert abs(small.height - max(1, height * scale)) <= 1


def test_transparency_is_white():
    image = Image.new("RGBA", (100, 50), (0, 0, 0, 0))
    image.paste((*RED, 255), (0, 0, 50, 50))
    small = opened(image)
    assert near(small.getpixel((10, 25)), RED)
    assert near(small.getpixel((90, 25)), WHITE)


def test_a_transparent_colour_of_a_palette_is_white():
    image = Image.new("P", (20, 20), 0)
    image.putpalette([0, 0, 0, *RED])
    image.info["transparency"] = 0
    assert near(opened(image).getpixel((10, 10)), WHITE)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_whatever_the_camera_says(orientation):
    """The picture equals the one that a viewer would show: red above blue."""
    upright = Image.new("RGB", (120, 80), BLUE)
    upright.paste(RED, (0, 0, 120, 40))
    turns = {
        2: [Image.Transpose.FLIP_LEFT_RIGHT],
        3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM],
        5: [Image.Transpose.TRANSPOSE],
        6: [Image.Transpose.ROTATE_90],
        7: [Image.Transpose.TRANSVERSE],
        8: [Image.Transpose.ROTATE_270],
    }
    stored = upright
    for turn in turns.get(orientation, []):
        stored = stored.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    stored.save(buffer, "JPEG", exif=exif, quality=95)
    small = opened(Image.open(buffer))
    assert small.size == (120, 80)
    assert near(small.getpixel((60, 10)), RED)
    assert near(small.getpixel((60, 70)), BLUE)


def test_nothing_is_told_but_the_picture():
    exif = Image.Exif()
    exif[0x010F] = "SecretCamera"
    exif.get_ifd(0x8825)[1] = "N"
    buffer = io.BytesIO()
    Image.new("RGB", (300, 200), RED).save(
        buffer, "JPEG", exif=exif, icc_profile=b"SecretProfile" * 20, comment=b"SecretComment", dpi=(300, 300)
    )
    raw = thumbnail(Image.open(buffer))
    assert b"Secret" in buffer.getvalue()
    assert b"Secret" not in raw
    small = Image.open(io.BytesIO(raw))
    assert not small.getexif()
    assert not {"icc_profile", "comment", "exif", "dpi", "xmp"} & set(small.info)


def test_sixteen_bits_are_scaled_and_not_cut_off():
    small = opened(Image.fromarray(np.full((10, 10), 0x8000, np.uint16)))
    assert near(small.getpixel((5, 5)), (127, 127, 127))


def test_the_image_is_left_as_it_is():
    image = Image.new("RGB", (500, 400), RED)
    image.info["comment"] = b"mine"
    thumbnail(image)
    assert (image.size, image.info) == ((500, 400), {"comment": b"mine"})


def test_small_bytes():
    noise = np.random.default_rng(0).integers(0, 256, (800, 800, 3), dtype=np.uint8)
    assert len(thumbnail(Image.fromarray(noise))) < 30_000


def test_no_pixels():
    with pytest.raises(DataError, match="0 x 4"):
        thumbnail(Image.new("RGB", (0, 4)))


def test_an_image_cut_short():
    buffer = io.BytesIO()
    Image.new("RGB", (300, 200), RED).save(buffer, "PNG")
    with pytest.raises(DataError, match="small"):
        thumbnail(Image.open(io.BytesIO(buffer.getvalue()[:100])))
