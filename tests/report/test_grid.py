from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nearkin.errors import DataError
from nearkin.report import NeighbourRow, NeighbourThumb, Thumb, draw_map, draw_neighbours
from nearkin.report.bars import draw_f1
from nearkin.report.canvas import text_width
from nearkin.report.grid import (
    _BEFORE,
    _CELL,
    _GAP,
    _HEADER,
    _LETTERS,
    _MARGIN,
    ConfusedPair,
    _wrapped,
    draw_confusions,
)

GREEN, RED = (0x00, 0x80, 0x5C), (0xC8, 0x23, 0x2C)


def picture(mode="RGB", size=(40, 30), colour=0):
    return Image.new(mode, size, colour)


def row(hits, label="finch", image=None):
    image = image or picture()
    return NeighbourRow(
        Thumb(image, label), [NeighbourThumb(Thumb(image, label), 0.1 * place, hit) for place, hit in enumerate(hits)]
    )


def decode(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def top_edge(pixels, place):
    left = 2 * (_MARGIN + _CELL + _BEFORE + place * (_CELL + _GAP))
    return [tuple(int(c) for c in pixel) for pixel in pixels[2 * _HEADER + 1, left : left + 2 * _CELL]]


def test_hits_have_whole_green_frames_and_misses_broken_red_ones():
    pixels = decode(draw_neighbours([row([True, False])]))
    assert set(top_edge(pixels, 0)) == {GREEN}
    broken = top_edge(pixels, 1)
    assert 0.5 < broken.count(RED) / len(broken) < 0.8
    assert GREEN not in broken


def test_hits_and_misses_also_differ_in_grey():
    """Two frames must be told apart on a printer without colour: the marks differ, not only the hue."""
    hit, miss = (decode(draw_neighbours([row([value])])) for value in (True, False))
    right, bottom = 2 * (_MARGIN + _CELL + _BEFORE + _CELL), 2 * (_HEADER + _CELL)
    corner = (slice(bottom - 40, bottom), slice(right - 40, right))
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
    assert tuple(pixels[2 * _HEADER + _CELL, 2 * _MARGIN + _CELL]) == (255, 255, 255)


@pytest.mark.parametrize("label", ["", "日本語", "bad\udcff", "a\nb", "$x$", "w" * 300])
def test_any_label_is_drawn(label):
    assert draw_neighbours([row([True], label=label)])


@given(st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=80))
def test_labels_wrap_onto_two_lines_that_fit(text):
    lines = _wrapped(text, 90).split("\n")
    assert 1 <= len(lines) <= 2
    assert all(len(line) == 1 or text_width(line, _LETTERS) <= 90 for line in lines)


@pytest.mark.parametrize(
    ("label", "lines"),
    [("008.Rhinoceros_Auklet", ["008.Rhinoceros_", "Auklet"]), ("008.Rhinocerosauklet", ["008.Rhinocerosa", "uklet"])],
)
def test_labels_break_between_words_where_not_too_much_is_left_empty(label, lines):
    assert _wrapped(label, 110).split("\n") == lines


def scores(classes, seed=0):
    values = np.random.default_rng(seed).uniform(size=(2, classes))
    names = [f"class_{place}" for place in range(classes)]
    return {name: dict(zip(names, row, strict=True)) for name, row in zip(("centroid", "10-NN"), values, strict=True)}


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def dark(png):
    """How many pixels are nearly black: the dots of the first classifier, as words are lighter."""
    return int((pixels(png).max(axis=2) < 15).sum())


@pytest.mark.parametrize("classes", [1, 2, 10, 33, 65, 100, 101, 200, 2000])
def test_any_number_of_classes_fits(classes):
    image = Image.open(io.BytesIO(draw_f1(scores(classes))))
    assert image.width == 2 * 720
    assert image.height < 2 * 1050


def test_named_classes_have_a_row_each_and_two_columns_share_rows():
    heights = {classes: Image.open(io.BytesIO(draw_f1(scores(classes)))).height for classes in (10, 20, 33, 66, 200)}
    assert heights[20] - heights[10] == 20 * 17
    assert heights[66] - heights[33] == 2 * 17 * (33 - 17)
    assert heights[200] < heights[66]


def test_the_order_of_classes_is_that_of_f1_and_not_of_the_mapping():
    table = scores(12)
    backwards = {name: dict(reversed(values.items())) for name, values in table.items()}
    assert draw_f1(table) == draw_f1(backwards)


def test_the_first_classifier_is_black_and_the_others_are_not():
    table = scores(20)
    one, two = draw_f1({"centroid": table["centroid"]}), draw_f1(table)
    swapped = draw_f1({"10-NN": table["10-NN"], "centroid": table["centroid"]})
    assert dark(two) == pytest.approx(dark(one), rel=0.15)
    assert swapped != two


def test_equal_scores_of_two_classifiers_are_both_to_be_seen():
    same = scores(5)["centroid"]
    alone = pixels(draw_f1({"centroid": same}))
    both = pixels(draw_f1({"centroid": same, "10-NN": same}))
    grey = [(np.abs(image - (0x8A, 0x93, 0x9E)).max(axis=2) < 3).sum() for image in (alone, both)]
    assert grey[1] > grey[0] + 100


def test_nothing_to_draw_is_no_picture():
    assert draw_f1({}) == draw_f1({"centroid": {}}) == b""
    assert draw_confusions([]) == b""


def test_classifiers_of_different_classes_are_refused():
    with pytest.raises(DataError, match="10-NN"):
        draw_f1({"centroid": {"a": 0.5}, "10-NN": {"b": 0.5}})


@pytest.mark.parametrize("name", ["$5", "_hidden", "", "two\nlines", "x" * 300, "Ölbaum\udcff", "日本"])
def test_any_name_can_be_drawn(name):
    assert draw_f1({name: {name: 0.5, "b": 0.1}})
    assert draw_confusions([ConfusedPair(name, name, 0.3)])


def test_examples_are_drawn_in_their_place():
    red, green = (Image.new("RGB", (60, 40), colour) for colour in ("#ff0000", "#00ff00"))
    plain = Image.open(io.BytesIO(draw_confusions([ConfusedPair("a", "b", 0.5)] * 3)))
    image = pixels(draw_confusions([ConfusedPair("a", "b", 0.5, red, green)] + [ConfusedPair("c", "d", 0.2)] * 2))
    assert image.shape[0] == 2 * (34 + 3 * 96)
    assert plain.height == 2 * (34 + 3 * 30)
    rows, columns = np.nonzero((image == (255, 0, 0)).all(axis=2))
    assert rows.max() < 2 * (34 + 96)
    assert columns.max() < 720
    assert len(rows) == pytest.approx((2 * 84) ** 2 * 40 / 60, rel=0.05)  # as wide as its cell, in its own shape
    assert np.nonzero((image == (0, 255, 0)).all(axis=2))[1].min() > 2 * 285


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_the_bar_of_a_rate_is_as_long_as_the_rate(rate):
    image = pixels(draw_confusions([ConfusedPair("a", "b", rate)]))
    blue = (np.abs(image - (0, 0x72, 0xB2)).max(axis=2) < 3).any(axis=0).sum()
    assert blue == pytest.approx(2 * 60 * rate, abs=3)


@pytest.mark.parametrize(
    "name", ["Calanoida", "eudoxie__Abylopsis_tetragona", "nectophore of Abylopsis tetragona and others", "y" * 90]
)
def test_long_names_are_broken_between_words_and_fit(name):
    told = _wrapped(name, 140)
    lines = told.split("\n")
    assert len(lines) <= 2
    assert all(text_width(line, _LETTERS) <= 140 for line in lines)
    if "…" not in told:
        assert told.replace("\n", "") == name


def test_names_that_differ_at_their_end_stay_different():
    assert _wrapped("gonophore__Abylopsis_tetragona", 150) != _wrapped("gonophore__Abylopsis_tetracantha", 150)


def test_crosses_are_black_and_where_they_are_asked_for():
    points = np.random.default_rng(0).normal(size=(60, 2))
    labels = np.repeat(["a", "b"], 30)  # blue and vermilion
    plain = draw_map(points, labels)
    assert draw_map(points, labels, crosses=np.empty((0, 2))) == plain
    marked = draw_map(points, labels, crosses=np.array([[0.0, 0.0], [1.0, 1.0]]))
    assert dark(marked) > dark(plain) + 100
