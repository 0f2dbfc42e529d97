"""Heat maps over images: colours, places, keys."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from nearkin.errors import DataError
from nearkin.report.overlay import (
    HeatScale,
    OverlayPanel,
    OverlayStrip,
    PartScale,
    ShareScale,
    SignedScale,
    draw_keyed_overlay,
    draw_overlay,
    draw_overlays,
    draw_strips,
    enlarged,
    has_mark,
    mark_png,
)

GREY = Image.new("RGB", (90, 60), (128, 128, 128))


def pixels(image):
    return np.asarray(image.convert("RGB")).astype(int)


def peak(rows, columns, at):
    values = np.full((rows, columns), 0.01)
    values[at] = 1.0
    return values / values.sum()


def test_weights_of_average_pooling_are_flat_and_in_the_middle_of_the_scale():
    flat = np.full((7, 7), 1 / 49)
    assert ShareScale.over([flat]).top == 2.0
    painted = np.asarray(ShareScale.over([flat]).paint(flat, (30, 20)))
    assert painted.shape == (20, 30, 4)
    assert len(np.unique(painted.reshape(-1, 4), axis=0)) == 1


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("columns", [1, 4])
def test_a_value_lies_in_the_middle_of_its_field(rows, columns):
    values = np.arange(rows * columns, dtype=float).reshape(rows, columns)
    large = enlarged(values, (columns * 9, rows * 9))
    assert np.allclose(large[4::9, 4::9], values)


@given(st.integers(0, 3), st.integers(0, 4))
@settings(max_examples=20, deadline=None)
def test_the_brightest_place_is_where_the_weight_is(row, column):
    overlay = pixels(draw_overlay(GREY, peak(4, 5, (row, column))))
    y, x = np.unravel_index(overlay.sum(2).argmax(), (60, 90))
    assert (y * 4 // 60, x * 5 // 90) == (row, column)


def test_more_weight_is_never_darker():
    ramp = np.linspace(0, 2, 64)[None] / 64
    luminance = pixels(draw_overlay(GREY, ramp, ShareScale(2.0)))[30] @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(luminance) > -2).all()  # rounding
    assert luminance[-1] > luminance[0] + 60


def test_a_map_covers_its_box_and_the_rest_fades():
    image = Image.new("RGB", (100, 60), (40, 40, 40))
    overlay = pixels(draw_overlay(image, np.full((3, 3), 1 / 9), box=(25.2, 5.1, 74.8, 54.9)))
    outside = overlay[:, :24]
    assert (outside == outside[0, 0]).all()
    assert outside.mean() > 100
    assert (overlay[30, 27:73] == overlay[30, 50]).all()
    assert (overlay[5, 25] != overlay[30, 50]).any()
    assert (overlay[:5] == outside[0, 0]).all()
    assert (overlay[55:] == outside[0, 0]).all()


def test_nothing_contributed_shows_the_image_and_signs_have_colours():
    values = np.array([[-1.0, 0.0, 1.0]])
    scale = SignedScale.over([values])
    row = pixels(draw_overlay(GREY, values, scale))[30]
    assert (abs(row[45] - 128) < 8).all()
    assert row[2, 2] > row[2, 0] + 30
    assert row[-3, 0] > row[-3, 2] + 30
    assert np.array_equal(
        pixels(draw_overlay(GREY, np.zeros((2, 2)), SignedScale.over([np.zeros((2, 2))]))), pixels(GREY)
    )


def test_the_size_of_contributions_does_not_matter():
    values = np.random.default_rng(0).normal(size=(4, 4))
    assert SignedScale.over([values]) == SignedScale.over([values * 1024])
    assert draw_overlay(GREY, values, SignedScale()) == draw_overlay(GREY, values * 1024, SignedScale())


def test_one_bright_spot_does_not_end_the_scale_of_many_maps():
    ordinary = [np.full((7, 7), 1 / 49) for _ in range(9)]
    assert ShareScale.over([peak(7, 7, (0, 0))]).top > 10
    assert ShareScale.over([*ordinary, peak(7, 7, (0, 0))]).top == 2.0


def test_maps_of_different_sizes_are_on_one_scale():
    fine, coarse = peak(14, 14, (3, 4)), peak(7, 7, (2, 2))
    even = ShareScale().paint(np.full((14, 14), 1 / 196), (28, 28))
    assert even == ShareScale().paint(np.full((7, 7), 1 / 49), (28, 28))
    top = max(ShareScale.over([fine] * 9).top, ShareScale.over([coarse] * 9).top)
    assert ShareScale.over([*[fine] * 9, *[coarse] * 9]).top == top
    # The many positions of a fine map must not push all of a coarse one over the end.
    assert ShareScale.over([np.full((99, 99), 1 / 99**2), coarse]).top == ShareScale.over([coarse]).top


def test_heat_is_a_multiple_of_the_images_own_mean():
    values = np.random.default_rng(0).gamma(1.0, size=(4, 4))
    assert HeatScale.over([values]) == HeatScale.over([values * 1024])
    assert draw_overlay(GREY, values, HeatScale()) == draw_overlay(GREY, values * 1024, HeatScale())
    assert draw_overlay(GREY, values, HeatScale(3.0)) == draw_overlay(GREY, values / values.sum(), ShareScale(3.0))
    nothing = np.zeros((2, 2))
    painted = np.asarray(HeatScale.over([nothing]).paint(nothing, (9, 9)))
    assert (painted[..., :3] < 8).all()  # as cold as can be


def test_parts_have_hues_and_weak_places_show_the_image():
    shares = np.zeros((20, 1, 3))
    shares[4, 0, 0], shares[9, 0, 2] = 0.6, 0.4
    scale = PartScale.over([shares])
    assert scale.parts == (4, 9)
    row = pixels(draw_overlay(GREY, shares, scale))[30]
    assert row[2, 2] > row[2, 0] + 30  # the largest part is blue, the next orange
    assert row[-3, 0] > row[-3, 2] + 30
    assert (abs(row[45] - 128) < 3).all()


def test_parts_without_a_colour_are_others():
    shares = np.eye(9).reshape(9, 3, 3) / 9
    scale = PartScale.over([shares])
    assert len(scale.parts) == 5
    painted = np.asarray(scale.paint(shares, (30, 30)))
    assert len(np.unique(painted[5::10, 5::10, :3].reshape(-1, 3), axis=0)) == 6


def _lab(colours):
    """CIE Lab of sRGB (..., 3) in [0, 1]."""
    linear = np.where(colours > 0.04045, ((colours + 0.055) / 1.055) ** 2.4, colours / 12.92)
    xyz = linear @ np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]).T
    t = xyz / [0.9505, 1.0, 1.089]
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], axis=-1)


@pytest.mark.parametrize("opacity", [0.15, 0.4, 0.75])
@pytest.mark.parametrize("ground", [0.2, 0.5, 0.8])
def test_parts_differ_in_hue_at_any_opacity(opacity, ground):
    shares = np.eye(5).reshape(5, 1, 5) / 5
    painted = np.asarray(PartScale.over([shares]).paint(shares, (50, 1)))[0, 5::10, :3] / 255
    lab = _lab(opacity * painted + (1 - opacity) * ground)
    hues = np.degrees(np.arctan2(lab[:, 2], lab[:, 1]))
    apart = np.abs((hues[:, None] - hues + 180) % 360 - 180) + 360 * np.eye(5)
    assert apart.min() > 35


@pytest.mark.parametrize(("mode", "size"), [("RGB", (40, 30)), ("L", (5, 9)), ("RGBA", (1, 1)), ("P", (300, 1))])
@pytest.mark.parametrize(
    ("scale", "values"),
    [
        (ShareScale(), np.full((2, 2), 0.25)),
        (HeatScale(), np.eye(3)),
        (SignedScale(), -np.eye(3)),
        (PartScale((1,)), np.full((3, 2, 2), 1 / 12)),
    ],
)
def test_any_image_can_be_drawn_with_its_key(mode, size, scale, values):
    image = Image.new(mode, size)
    png = draw_keyed_overlay(image, values, scale, (size[0] * 0.1, size[1] * 0.1, size[0] * 0.9, size[1] * 0.9))
    drawn = Image.open(io.BytesIO(png))
    assert drawn.width == 960
    assert drawn.height > 960 * size[1] // max(size)
    assert png == draw_keyed_overlay(image, values, scale, (size[0] * 0.1, size[1] * 0.1, size[0] * 0.9, size[1] * 0.9))


def test_a_grid_has_rows_of_three_pairs_and_no_panels_no_bytes():
    def height(count):
        return Image.open(io.BytesIO(draw_overlays([panel] * count, ShareScale()))).height

    panel = OverlayPanel(Image.new("RGB", (50, 50), "green"), peak(3, 3, (1, 1)), "a very long name of a class " * 4)
    assert draw_overlays([], ShareScale()) == b""
    assert height(1) == height(3) < height(4) == height(6) < height(7)
    assert Image.open(io.BytesIO(draw_overlays([panel] * 4, ShareScale()))).width == 1440


def _written(png, top, bottom):
    """The columns, in real pixels, where something is written on white between two rows of pixels of the page."""
    return np.flatnonzero((pixels(Image.open(io.BytesIO(png)))[2 * top : 2 * bottom] < 200).any((0, 2)))


LINES = ["W" * 60, "i" * 300, "mm.MM " * 30, "ÖÄÜß漢字" * 20]


@pytest.mark.parametrize("line", LINES)
def test_captions_of_a_grid_stay_above_their_pairs(line):
    panel = OverlayPanel(Image.new("RGB", (9, 9), "white"), np.full((2, 2), 0.25), line)
    columns = _written(draw_overlays([panel] * 3, ShareScale()), 0, 19)
    starts, ends = columns[np.r_[True, np.diff(columns) > 22]], columns[np.r_[np.diff(columns) > 22, True]]
    assert len(starts) == 3
    for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
        assert 488 * place <= start < 488 * place + 8
        assert 488 * place + 360 < end <= 488 * place + 464


def test_a_caption_that_fits_is_whole():
    def drawn(line):
        panel = OverlayPanel(Image.new("RGB", (9, 9)), np.full((2, 2), 0.25), line)
        return _written(draw_overlays([panel], ShareScale()), 0, 19)

    assert drawn("i" * 60)[-1] < 464  # by the number of its letters it would have been cut
    assert len(drawn("i" * 60)) > 1.9 * len(drawn("i" * 30))
    assert not len(drawn(""))


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("count", [1, 3, 8])
def test_captions_of_strips_stay_above_their_images(line, count):
    stages = [f"{number}{line}" for number in range(count)]
    strip = OverlayStrip(Image.new("RGB", (9, 9), "white"), dict.fromkeys(stages, np.full((2, 2), 0.25)), line)
    png = draw_strips([strip], ShareScale())
    width = Image.open(io.BytesIO(png)).width
    cell = min(132, (720 - count * 4) // (1 + count))
    content = 2 * ((1 + count) * (cell + 4) - 4)
    left = (width - content) // 2
    assert left + 0.85 * content < _written(png, 0, 19)[-1] <= left + content
    columns = _written(png, 20, 35) - left
    assert ((columns % (2 * (cell + 4))) < 2 * cell).all()


@pytest.mark.parametrize("scale", [ShareScale(2.0), ShareScale(17.5), SignedScale(12.5), HeatScale(3000.0)])
def test_the_numbers_at_the_ends_of_a_key_are_whole(scale):
    for png in (draw_strips([_strip("one")], scale), draw_keyed_overlay(GREY, np.full((2, 2), 0.25), scale)):
        height, width = pixels(Image.open(io.BytesIO(png))).shape[:2]
        columns = _written(png, height // 2 - 48, height // 2)
        assert columns[0] > 4
        assert columns[-1] < width - 4


def test_a_grid_shows_the_image_beside_its_overlay():
    panel = OverlayPanel(Image.new("RGB", (50, 50), (0, 128, 0)), np.full((2, 2), 0.25), "")
    drawn = pixels(Image.open(io.BytesIO(draw_overlays([panel] * 3, ShareScale()))))
    assert (drawn[150, 100] == (0, 128, 0)).all()
    expected = pixels(draw_overlay(panel.image, panel.values, ShareScale()))[25, 25]
    assert (drawn[150, 350] == expected).all()


@pytest.mark.parametrize("values", [np.full((2, 2), np.nan), np.zeros((0, 3)), np.zeros(4)])
def test_a_map_that_cannot_be_drawn_is_one_sentence(values):
    with pytest.raises(DataError, match="finite"):
        draw_overlay(GREY, values, ShareScale())


def _strip(*stages):
    maps = {stage: peak(side, side, (0, 0)) for side, stage in enumerate(stages, start=3)}
    return OverlayStrip(Image.new("RGB", (50, 50), (0, 128, 0)), maps, "a bird")


def test_a_strip_shows_the_image_and_an_overlay_for_each_stage():
    strip, scale = _strip("one", "two", "three"), ShareScale(9.0)
    drawn = pixels(Image.open(io.BytesIO(draw_strips([strip, strip], scale))))
    cell, step, top = 264, 272, 72
    assert drawn.shape[1] == 4 * step - 8
    assert (drawn[top : top + cell, :cell] == (0, 128, 0)).all()
    large = strip.image.resize((cell, cell))
    for place, values in enumerate(strip.maps.values(), start=1):
        shown = drawn[top : top + cell, place * step : place * step + cell]
        assert abs(shown - pixels(draw_overlay(large, values, scale))).max() <= 1
    row = 352
    assert (drawn[row + top : row + top + cell] == drawn[top : top + cell]).all()


def test_a_stage_has_a_column_and_strips_a_row_each():
    def size(*strips):
        return Image.open(io.BytesIO(draw_strips(strips, ShareScale()))).size

    assert draw_strips([], ShareScale()) == b""
    assert size(_strip("one"))[0] == 960  # the key must fit
    assert size(_strip(*"abcdefgh"))[0] <= 1440
    assert size(_strip("one", "two"))[1] < size(_strip("one", "two"), _strip("one", "two"))[1]
    assert size(_strip("one", "two", "three"), _strip("two")) == size(*[_strip("one", "two", "three")] * 2)
    drawn = pixels(Image.open(io.BytesIO(draw_strips([_strip("one", "two", "three"), _strip("two")], ShareScale()))))
    second = drawn[352 + 72 : 352 + 72 + 264]
    assert (second[:, 272 : 272 + 264] == 255).all()
    assert (second[:, 2 * 272 : 2 * 272 + 264] < 255).any()


def test_a_strip_of_a_map_that_cannot_be_drawn_is_one_sentence():
    strip = OverlayStrip(GREY, {"one": np.full((2, 2), np.nan)}, "")
    with pytest.raises(DataError, match="finite"):
        draw_strips([strip], ShareScale())


def test_a_mark_is_found_and_changes_no_pixel(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    (tmp_path / "plain.png").write_bytes(buffer.getvalue())
    (tmp_path / "ours.png").write_bytes(mark_png(buffer.getvalue()))
    image = Image.open(tmp_path / "ours.png")
    image.verify()
    assert image.info == {"Software": "nearkin explain"}
    assert np.array_equal(np.asarray(Image.open(tmp_path / "ours.png")), pixels)
    assert has_mark(tmp_path / "ours.png")
    assert not has_mark(tmp_path / "plain.png")


def test_what_cannot_be_read_has_no_mark(tmp_path):
    (tmp_path / "empty.png").touch()
    assert not has_mark(tmp_path / "empty.png")
    assert not has_mark(tmp_path / "absent.png")
    assert not has_mark(tmp_path)
