"""The DET picture, and how a report tells of metrics of which less is better."""

import io
import math

import matplotlib
import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from scipy.stats import norm

from nearkin.report import Figure, MetricRow, Report, draw_det, metric_table, render_report
from nearkin.report.canvas import BLUE, VERMILION
from nearkin.report.verification import _limits, _probit, _rate


def curve(separation, points=200):
    """The curve of two normal distributions: a straight line on these axes."""
    deviates = np.linspace(-6, 8, points)
    return norm.sf(-deviates + separation), norm.cdf(-deviates)


def equal(separation):
    return norm.cdf(-separation / 2)


def colours(png):
    image = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).reshape(-1, 3)
    return {"#{:02x}{:02x}{:02x}".format(*colour) for colour in np.unique(image, axis=0)}


def test_it_is_a_retina_png_without_metadata_and_always_the_same():
    curves = {"this model": curve(4), "raw pixels": curve(1)}
    png = draw_det(curves, equal_errors={"this model": equal(4)})
    image = Image.open(io.BytesIO(png))
    assert image.size == (1440, 1000)
    assert set(image.info) <= {"dpi"}
    with matplotlib.rc_context({"font.size": 25, "axes.facecolor": "red"}):
        assert draw_det(curves, equal_errors={"this model": equal(4)}) == png


def test_every_curve_has_its_colour():
    assert {BLUE, VERMILION} <= colours(draw_det({"a": curve(4), "b": curve(1)}))
    assert VERMILION not in colours(draw_det({"a": curve(4)}))


def test_equal_errors_are_marked():
    curves = {"a": curve(3)}
    assert draw_det(curves, equal_errors={"a": equal(3)}) != draw_det(curves)


@pytest.mark.parametrize("separation", [0.0, 1.0, 3.0, 6.0])
def test_the_place_of_equal_errors_is_in_sight(separation):
    low, high = _limits({"a": curve(separation)}, {"a": equal(separation)})
    assert 1e-5 <= low < equal(separation) < high <= 0.99
    left, right, middle = _probit([low, high, equal(separation)])
    assert (right - middle) / (right - left) > 0.08  # and not at the rim


def test_no_errors_and_hopeless_models_are_drawn_too():
    perfect = np.array([0.0, 0.0, 1.0]), np.array([1.0, 0.0, 0.0])
    hopeless = np.array([0.0, 1.0, 1.0]), np.array([1.0, 1.0, 0.0])
    for one, rate in ((perfect, 0.0), (hopeless, 1.0)):
        assert len(draw_det({"x": one}, equal_errors={"x": rate})) > 1000
    assert draw_det({}) == b""
    assert draw_det({"x": (np.array([]), np.array([]))}) == b""


def test_strange_names_are_only_text():
    assert draw_det({"_hidden $x$ \n" + "long " * 40: curve(2)}).startswith(b"\x89PNG")


def test_rates_go_to_normal_deviates_and_back():
    assert _rate(_probit([0.0123])[0]) == pytest.approx(0.0123)
    assert np.isfinite(_probit([0.0, 1.0])).all()


ROWS = [
    MetricRow("ROC-AUC", 0.99, baseline=0.9),
    MetricRow("EER", 0.04, baseline=0.2, lower_is_better=True),
    MetricRow("minDCF", math.nan, lower_is_better=True),
]


def test_the_terminal_marks_metrics_of_which_less_is_better():
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(metric_table(ROWS))
    text = console.export_text()
    assert "EER ↓" in text
    assert "minDCF ↓" in text
    assert "ROC-AUC ↓" not in text
    assert "↓ lower is better" in text
    assert "−16.0" in text  # the change keeps its sign
    console.print(metric_table(ROWS[:1]))
    assert "↓" not in console.export_text()


def test_the_page_marks_them_too():
    page = render_report(Report("x", metrics=ROWS, sections=[Figure("DET", "", draw_det({"a": curve(2)}), "curve")]))
    assert page.count('<abbr title="lower is better">↓</abbr>') == 2
    assert "<caption>↓ lower is better</caption>" in page
    assert "lower is better" not in render_report(Report("x", metrics=ROWS[:1]))
