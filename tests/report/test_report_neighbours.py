import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nearkin.report import Neighbour, NeighbourRow, Thumb, draw_neighbours
from nearkin.report.neighbours import _BEFORE, _CELL, _GAP, _HEADER, _MARGIN, _font, _wrap

GREEN, RED = (0x00, 0x80, 0x5C), (0xC8, 0x23, 0x2C)


def picture(mode="RGB", size=(40, 30), colour=0):
    return Image.new(mode, size, colour)


def row(hits, label="finch", image=None):
    image = image or picture()
    return NeighbourRow(
        Thumb(image, label), [Neighbour(Thumb(image, label), 0.1 * place, hit) for place, hit in enumerate(hits)]
    )


def decode(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def top_edge(pixels, place):
    left = _MARGIN + _CELL + _BEFORE + place * (_CELL + _GAP)
    return [tuple(int(c) for c in pixel) for pixel in pixels[_HEADER + 1, left : left + _CELL]]


def test_hits_have_whole_green_frames_and_misses_broken_red_ones():
    pixels = decode(draw_neighbours([row([True, False])]))
    assert set(top_edge(pixels, 0)) == {GREEN}
    broken = top_edge(pixels, 1)
    assert 0.5 < broken.count(RED) / len(broken) < 0.8
    assert GREEN not in broken


def test_hits_and_misses_also_differ_in_grey():
    """Two frames must be told apart on a printer without colour: the marks differ, not only the hue."""
    hit, miss = (decode(draw_neighbours([row([value])])) for value in (True, False))
    left = _MARGIN + _CELL + _BEFORE
    corner = (slice(_HEADER + _CELL - 40, _HEADER + _CELL), slice(left + _CELL - 40, left + _CELL))
    white_in_hit, white_in_miss = ((image[corner].min(axis=2) > 250) for image in (hit, miss))
    assert (white_in_hit != white_in_miss).sum() > 50


def test_same_rows_same_bytes_and_no_rows_no_bytes():
    assert draw_neighbours([row([True, False, True])]) == draw_neighbours([row([True, False, True])])
    assert draw_neighbours([]) == b""


def test_rows_may_differ_in_length():
    short, long = decode(draw_neighbours([row([True] * 4)])), decode(draw_neighbours([row([]), row([True] * 4)]))
    assert short.shape[1] == long.shape[1]
    assert long.shape[0] > short.shape[0]


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "1", "P", "LA"])
@pytest.mark.parametrize("size", [(1, 1), (3, 400), (900, 2), (28, 28)])
def test_pictures_of_any_mode_and_shape_fit_and_are_left_as_they_are(mode, size):
    image = picture(mode, size)
    before = image.tobytes()
    assert draw_neighbours([row([True, False], image=image)]).startswith(b"\x89PNG\r\n\x1a\n")
    assert image.tobytes() == before
    assert image.size == size


def test_what_is_transparent_is_white():
    image = Image.new("RGBA", (50, 50), (0, 0, 0, 0))
    pixels = decode(draw_neighbours([row([], image=image)]))
    assert tuple(pixels[_HEADER + _CELL // 2, _MARGIN + _CELL // 2]) == (255, 255, 255)


@pytest.mark.parametrize("label", ["", "日本語", "bad\udcff", "a\nb", "$x$", "w" * 300])
def test_any_label_is_drawn(label):
    assert draw_neighbours([row([True], label=label)])


@given(st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=80))
def test_labels_wrap_onto_two_lines_that_fit(text):
    font, width = _font(20), 180
    lines = _wrap(text, font, width)
    assert 1 <= len(lines) <= 2
    assert all(font.getlength(line) <= width for line in lines)


def test_labels_break_between_words():
    assert _wrap("008.Rhinoceros_Auklet", _font(20), 180) == ["008.Rhinoceros_", "Auklet"]
