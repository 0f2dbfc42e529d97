"""Pictures of drift: what they hold, and what they do without anything to show."""

import io

import numpy as np
import pytest
from PIL import Image

from nearkin.report import NeighbourRow, Thumb, draw_novel, draw_null
from nearkin.report.values import p_text

VERMILION = (0xD5, 0x5E, 0x00)


def opened(png):
    return Image.open(io.BytesIO(png)).convert("RGB")


def marked_columns(image, colour):
    """Columns where most of the height below the legend is of a colour."""
    pixels = np.asarray(image)[200:600]
    return np.flatnonzero((np.abs(pixels.astype(int) - colour).max(-1) < 8).mean(0) > 0.4)


@pytest.mark.parametrize(("observed", "side"), [(5.0, "right"), (-5.0, "left")])
def test_what_was_found_stands_where_it_lies(observed, side):
    png = draw_null(np.random.default_rng(0).normal(size=500), observed, 0.002)
    image = opened(png)
    assert image.size == (1440, 720)
    columns = marked_columns(image, VERMILION)
    assert len(columns)
    assert (columns > 1200).all() if side == "right" else (columns < 300).all()


def test_equal_values_are_drawn_too():
    assert opened(draw_null(np.zeros(20), 0.0, 1.0)).size == (1440, 720)


def test_nothing_to_draw_gives_no_picture():
    assert draw_null(np.array([np.nan]), 0.0, 1.0) == b""
    assert draw_null(np.ones(3), np.nan, 1.0) == b""
    assert draw_novel([], []) == b""


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_novel_items_stand_left_of_their_neighbours(mode):
    def thumb(colour, label, size=(40, 30)):
        return Thumb(Image.new("RGB", size, colour).convert(mode, palette=Image.Palette.ADAPTIVE), label)

    rows = [
        NeighbourRow(thumb("#ffffff", "a class with a rather long name"), [(thumb("#404040", "x"), 0.5, False)] * 3),
        NeighbourRow(thumb("#ffffff", "b", (10, 90)), [(thumb("#404040", "$5"), 0.7, False)] * 2),
    ]
    image = opened(draw_novel(rows, [(0.5, 0.01), (0.4, 0.2)]))
    assert image.width == 2 * (4 * 118 + 40)
    dark = (np.asarray(image).astype(int) == 0x40).all(-1)
    wide = dark.mean(axis=0)
    first = int(np.flatnonzero(wide > 0.05)[0])
    assert 118 * 2 < first < 150 * 2
    # Three neighbours in the upper row, two in the lower one.
    upper, lower = np.array_split(dark, 2)
    assert upper.sum() / lower.sum() == pytest.approx(1.5, rel=0.2)


def test_numbers_are_called_what_they_are():
    rows = [NeighbourRow(Thumb(Image.new("RGB", (8, 8)), "a"), [(Thumb(Image.new("RGB", (8, 8)), "b"), 2.5, False)])]
    distances, similarities = (draw_novel(rows, [(2.5, 0.01)], compared) for compared in ("distance", "similarity"))
    assert distances == draw_novel(rows, [(2.5, 0.01)])
    assert distances != similarities


def test_a_two_sided_test_is_told_in_the_legend():
    null = np.random.default_rng(0).normal(size=50)
    assert draw_null(null, 1.0, 0.3, True) != draw_null(null, 1.0, 0.3)


@pytest.mark.parametrize(("p", "text"), [(0.000999, "0.001"), (0.05, "0.050"), (0.456, "0.46"), (1.0, "1.00")])
def test_p_values_have_the_digits_they_need(p, text):
    assert p_text(p) == text
