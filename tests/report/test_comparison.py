"""Comparisons of runs: which is best, how far the others are, and the pictures."""

import io
import math

import numpy as np
import pytest
from PIL import Image

from nearkin.report import Column, ComparisonRow, draw_comparison
from nearkin.report.bars import draw_class_differences
from nearkin.report.comparison import Contrast, PairedDifference, all_columns, best_rows, p_statement


def runs(*values, metric="MAP@R"):
    return [ComparisonRow(f"run {i}", "r", {metric: (v, v - 0.01, v + 0.01)}) for i, v in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "lower", "best"),
    [
        ((0.1, 0.3, 0.2), False, {1}),
        ((0.1, 0.3, 0.2), True, {0}),
        ((0.3, 0.3, 0.2), False, {0, 1}),
        ((math.nan, 0.3, 0.2), False, {1}),
        ((math.nan, 0.3), False, set()),
        ((), False, set()),
    ],
)
def test_best_rows(values, lower, best):
    assert best_rows(runs(*values), Column("MAP@R", lower_is_better=lower)) == best


def test_a_run_without_the_metric_is_never_best():
    rows = [ComparisonRow("a", "r", {}), *runs(0.1, 0.2)]
    assert best_rows(rows, Column("MAP@R")) == {2}
    assert all(math.isnan(value) for value in rows[0].value("MAP@R"))


def test_columns_come_in_order_of_appearance():
    rows = [ComparisonRow("a", "r", {"B": (1, 1, 1)}), ComparisonRow("b", "r", {"A": (1, 1, 1), "B": (1, 1, 1)})]
    assert [column.metric for column in all_columns(rows)] == ["B", "A"]


def test_the_picture_grows_with_the_runs_that_have_the_metric():
    def height(rows, column="MAP@R"):
        return Image.open(io.BytesIO(draw_comparison(rows, column))).height

    assert height(runs(0.1, 0.2)) < height(runs(*[0.1] * 8))
    assert height(runs(0.1, 0.2, math.nan)) == height(runs(0.1, 0.2))


@pytest.mark.parametrize("name", ["$\\frac{", "bad\udcff", "[x]", "y" * 400])
def test_any_run_name_is_drawn(name):
    rows = [ComparisonRow(name, "r", {name: (3.0, math.nan, math.nan)})]
    assert draw_comparison(rows, Column(name, percent=False)).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("p_value", "text"),
    [
        (0.0004, "p < 0.001"),
        (0.001, "p = 0.001"),
        (0.0496, "p = 0.050"),
        (0.0625, "p = 0.062"),
        (0.1, "p = 0.10"),
        (1, "p = 1.00"),
    ],
)
def test_p_values_are_written_short(p_value, text):
    assert p_statement(p_value) == text


@pytest.mark.parametrize(
    ("difference", "percent", "lines"),
    [
        (PairedDifference(-0.014, -0.019, -0.009, 0.012), True, ["−1.4 points", "−1.9 to −0.9", "p = 0.012"]),
        (PairedDifference(0.0, -0.01, 0.02, 0.9), True, ["±0 points", "−1.0 to +2.0", "p = 0.90"]),
        (PairedDifference(0.25, 0.125, 0.5), False, ["+0.250", "+0.125 to +0.500"]),
        (PairedDifference(-0.5, p_value=0.5), True, ["−50.0 points", "p = 0.50"]),
    ],
    ids=["all", "none", "not a share", "no interval"],
)
def test_a_difference_is_written_in_lines(difference, percent, lines):
    assert difference.lines(percent) == lines


def test_a_contrast_tells_reference_difference_and_nothing_apart():
    contrast = Contrast("MAP@R", 1, "best", {0: PairedDifference(-0.1, -0.2, 0.0, 0.04)})
    assert contrast.cell(0, True)[0] == "−10.0 points"
    assert contrast.cell(1, True) == ["reference"]
    assert contrast.cell(2, True) == ["–"]


def size(png):
    return Image.open(io.BytesIO(png)).size


def test_few_classes_have_a_bar_each_and_many_share_the_room():
    def draw(count):
        values = {f"class {place}": (place - count / 3) / count for place in range(count)}
        return size(draw_class_differences(values, "a", "b", "MAP@R"))

    assert draw(5)[1] < draw(20)[1] < draw(40)[1]
    assert draw(41) == draw(200) == draw(12_000)
    assert draw(41)[0] == draw(5)[0]


def test_colours_tell_who_is_ahead():
    def share(values, colour):
        pixels = np.asarray(Image.open(io.BytesIO(draw_class_differences(values, "a", "b", "m"))).convert("RGB"))
        return (pixels == np.array(colour)).all(axis=-1).mean()

    blue, vermilion = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)
    for count in (6, 100):
        ahead = {str(place): 0.1 + place / 1000 for place in range(count)}
        behind = {name: -value for name, value in ahead.items()}
        assert share(ahead, blue) > 0.1
        assert share(ahead, vermilion) == 0
        assert share(behind, vermilion) > 0.1
        assert share(behind, blue) == 0


@pytest.mark.parametrize("name", ["$\\frac{", "bad\udcff", "[x]", "y" * 400])
@pytest.mark.parametrize("count", [2, 60])
def test_any_class_and_run_name_is_drawn(name, count):
    values = {f"{name}{place}": place - 1.0 for place in range(count)}
    assert draw_class_differences(values, name, name, name, percent=False).startswith(b"\x89PNG")


def test_values_that_are_not_finite_are_left_out():
    assert draw_class_differences({}, "a", "b", "m") == b""
    assert draw_class_differences({"x": math.nan}, "a", "b", "m") == b""
    some = draw_class_differences({"x": 0.1, "y": 0.2, "z": math.nan}, "a", "b", "m")
    assert some == draw_class_differences({"x": 0.1, "y": 0.2}, "a", "b", "m")


def test_equal_runs_are_drawn_too():
    assert draw_class_differences({"x": 0.0, "y": 0.0}, "a", "b", "m").startswith(b"\x89PNG")
    assert draw_class_differences({str(place): 0.0 for place in range(99)}, "a", "b", "m").startswith(b"\x89PNG")
