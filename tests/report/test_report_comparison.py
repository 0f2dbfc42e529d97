import io
import math

import pytest
from PIL import Image

from nearkin.report import Column, ComparisonRow, draw_comparison
from nearkin.report.comparison import all_columns, best_rows


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
