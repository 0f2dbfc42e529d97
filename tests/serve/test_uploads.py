"""Images are judged before they are decoded."""

from __future__ import annotations

import io
import struct
import time

import pytest
from PIL import Image

from nearkin.serve.problems import Problem
from nearkin.serve.uploads import check_image


def _file(size, kind, **options) -> bytes:
    buffer = io.BytesIO()
    Image.new("1", size).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "TIFF"])
def test_bombs_are_known_by_their_header(kind):
    raw = _file((1000, 1000), kind)
    check_image(raw, 1_000_000)
    with pytest.raises(Problem) as refused:
        check_image(raw, 999_999)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "raw", [b"", b"text", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"<svg/>", b"P6 9 9 9"]
)
def test_other_formats_are_refused(raw):
    with pytest.raises(Problem) as refused:
        check_image(raw, 10**6)
    assert refused.value.status == 422


def test_bombs_that_pillow_itself_refuses_are_too_large_as_well():
    with pytest.raises(Problem) as refused:
        check_image(_file((30_000, 30_000), "PNG"), 50_000_000)
    assert refused.value.status == 413


def _scans(side: int, repeats: int) -> bytes:
    """A progressive JPEG whose last scan, of a few bytes, comes again and again."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 128).save(buffer, "JPEG", progressive=True)
    raw = buffer.getvalue()
    last = raw.rindex(b"\xff\xda")
    return raw[:-2] + raw[last:-2] * repeats + raw[-2:]


def test_a_jpeg_that_refines_itself_over_and_over_is_refused():
    assert check_image(_scans(64, 0), 10**6) == 64 * 64
    assert check_image(_scans(64, 80), 10**6) == 64 * 64
    bomb = _scans(4000, 2000)
    assert len(bomb) < 1_000_000
    began = time.process_time()
    with pytest.raises(Problem) as refused:
        check_image(bomb, 40_000_000)
    assert refused.value.status == 413
    assert time.process_time() - began < 1


def test_a_large_jpeg_may_have_fewer_scans_than_a_small_one():
    with pytest.raises(Problem, match="item-too-large"):
        check_image(_scans(5000, 50), 40_000_000)
    assert check_image(_scans(5000, 5), 40_000_000) == 25_000_000


def test_progressive_jpegs_inside_of_tiffs_are_refused():
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64)).save(buffer, "TIFF", compression="jpeg")
    assert check_image(buffer.getvalue(), 10**6) == 64 * 64
    with pytest.raises(Problem, match="unreadable-item"):
        check_image(buffer.getvalue() + b"\xff\xc2", 10**6)
    assert check_image(_file((64, 64), "TIFF") + b"\xff\xc2", 10**6) == 64 * 64


def test_a_second_picture_inside_does_not_hide_the_scans():
    buffer = io.BytesIO()
    picture = Image.new("RGB", (16, 16))
    picture.save(buffer, "MPO", save_all=True, append_images=[picture])
    double = buffer.getvalue()
    start = double.index(b"\xff\xe2")
    segment = double[start : start + 2 + int.from_bytes(double[start + 2 : start + 4], "big")]
    bomb = _scans(1000, 2000)
    hidden = bomb[:2] + segment + bomb[2:]
    assert Image.open(io.BytesIO(hidden)).format == "MPO"
    with pytest.raises(Problem, match="item-too-large"):
        check_image(hidden, 40_000_000)


def test_what_follows_a_jpeg_or_lies_in_its_segments_is_no_scan():
    raw = _scans(64, 0)
    comment = b"\xff\xfe" + (2 + 4000).to_bytes(2, "big") + b"\xff\xda" * 2000
    assert check_image(raw[:2] + comment + raw[2:], 10**6) == 64 * 64
    assert check_image(raw + b"\xff\xda" * 5000, 10**6) == 64 * 64


def test_a_tile_counts_that_is_larger_than_its_image():
    with pytest.raises(Problem, match="item-too-large"):
        check_image(_tiled(20_000), 40_000_000)
    assert check_image(_tiled(256), 40_000_000) == 256 * 256


def _tiled(side: int) -> bytes:
    """A grey TIFF of 64 x 64 pixels in one deflated tile of another size, of which there is only the header."""
    tags = {256: 64, 257: 64, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side, 324: 8, 325: 4}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + entries + bytes(4)
