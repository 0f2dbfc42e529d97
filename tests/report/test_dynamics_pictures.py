"""The pictures of training by episodes: which values are points, which are lines, and what is left out."""

import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nearkin.errors import DataError
from nearkin.metrics.dynamics import DYNAMICS
from nearkin.report import dynamics as module
from nearkin.report.dynamics import draw_accuracies, draw_dynamics, running_median

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def log(count, seed=0, every=100):
    """A training log with dynamics, training accuracy and, at other rows, validation accuracy."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(every, every * count + 1, every):
        con, div = np.exp(rng.normal([-0.002, 0.001], 0.004))
        ratios = {"norm_ratio": 1 - rng.gamma(1.5, 0.02), "con_alpha": con, "div_alpha": div, "con_div": con / div}
        rows.append({"step": step, "loss": 1.0, "accuracy": rng.uniform(0.4, 0.9), **ratios})
        rows.append({"step": step, "val_accuracy": rng.uniform(0.5, 0.7)})
    return rows


def drawn(monkeypatch, draw, logs, **options):
    """The panels of a picture."""
    kept = []
    monkeypatch.setattr(module, "to_png", lambda figure: kept.append(figure) or b"")
    draw(logs, **options)
    return kept[0].axes, [text.get_text() for text in kept[0].legends[0].get_texts()]


def values(rows, key):
    return np.array([row[key] for row in rows if key in row])


def lines_of(axes, count):
    """The lines of a panel with this many points."""
    return [line for line in axes.lines if len(line.get_xdata()) == count]


@pytest.mark.parametrize("count", [1, 5, 600])
@pytest.mark.parametrize("draw", [draw_dynamics, draw_accuracies])
def test_a_picture_is_a_retina_png_that_depends_on_nothing_else(draw, count):
    logs = {"s": log(count), "dr": log(count, seed=1)}
    png = draw(logs)
    assert png.startswith(SIGNATURE)
    image = Image.open(io.BytesIO(png))
    assert image.width == 2 * 720
    assert (np.asarray(image.convert("L"))[:, [0, -1]] == 255).all()  # nothing is cut off at the sides
    assert draw(logs) == png


def test_every_measure_has_a_panel_with_both_runs(monkeypatch):
    logs = {"s": log(30), "dr": log(30, seed=1)}
    panels, legend = drawn(monkeypatch, draw_dynamics, logs)
    assert [axes.get_title(loc="left").split(" ratio")[0] for axes in panels] == [
        "Norm",
        "Con-alpha",
        "Div-alpha",
        "Con-div",
    ]
    assert legend == ["s", "dr", "single values", "running median"]
    for axes, key in zip(panels, DYNAMICS, strict=True):
        points, course, others, other_course = lines_of(axes, 30)
        np.testing.assert_allclose(points.get_ydata(), values(logs["s"], key))
        np.testing.assert_allclose(points.get_xdata(), 100 * np.arange(1, 31))
        np.testing.assert_allclose(course.get_ydata(), running_median(values(logs["s"], key)))
        np.testing.assert_allclose(others.get_ydata(), values(logs["dr"], key))
        assert points.get_alpha() < 0.5
        assert course.get_alpha() is None
        assert points.get_color() == course.get_color() != other_course.get_color()
        low, high = axes.get_ylim()
        assert low < 1 < high
        assert any(set(line.get_ydata()) == {1} for line in axes.lines)  # where proper learning begins
        assert axes.get_shared_x_axes().joined(axes, panels[-1])
    assert panels[-1].get_xlabel() == "training episode"


def test_few_values_are_drawn_as_they_are_and_all_marked(monkeypatch):
    logs = {"s": log(5), "dr": log(5, seed=1)}
    panels, legend = drawn(monkeypatch, draw_dynamics, logs)
    assert legend == ["s", "dr"]
    first, second = lines_of(panels[0], 5)
    np.testing.assert_allclose(first.get_ydata(), values(logs["s"], "norm_ratio"))
    assert first.get_markevery() is None
    assert second.get_alpha() is None


def test_chosen_measures_and_more_runs(monkeypatch):
    logs = {name: log(12, seed) for seed, name in enumerate(["a", "b", "c", "d"])}
    panels, legend = drawn(monkeypatch, draw_dynamics, logs, measures=("con_div", "norm_ratio"))
    assert [axes.get_title(loc="left").split(":")[0] for axes in panels] == ["Con-div ratio", "Norm ratio"]
    assert legend[:4] == ["a", "b", "c", "d"]
    with pytest.raises(DataError, match="norm_ratio"):
        draw_dynamics(logs, measures=("alpha",))


def test_one_far_value_does_not_press_the_others_flat(monkeypatch):
    rows = log(400)
    rows[20]["con_alpha"] = 50.0
    panels, _ = drawn(monkeypatch, draw_dynamics, {"s": rows})
    assert panels[1].get_ylim()[1] < 1.1
    inside = values(rows, "con_alpha")
    low, high = panels[1].get_ylim()
    assert np.mean((inside >= low) & (inside <= high)) >= 0.98


def test_accuracies_have_a_panel_each_in_percent(monkeypatch):
    logs = {"s": log(8), "dr": log(20, seed=1)}
    panels, _ = drawn(monkeypatch, draw_accuracies, logs)
    assert [axes.get_title(loc="left") for axes in panels] == [
        "Accuracy on training episodes",
        "Accuracy on validation episodes",
    ]
    for axes, key in zip(panels, ("accuracy", "val_accuracy"), strict=True):
        (line,) = lines_of(axes, 8)
        np.testing.assert_allclose(line.get_ydata(), values(logs["s"], key))
        assert axes.yaxis.get_major_formatter()(0.5, 0) == "50 %"


def test_a_run_without_validation_leaves_its_panel_to_the_others(monkeypatch):
    logs = {"s": [row for row in log(6) if "val_accuracy" not in row], "dr": log(6, seed=1)}
    panels, legend = drawn(monkeypatch, draw_accuracies, logs)
    assert [len(lines_of(axes, 6)) for axes in panels] == [2, 1]
    assert lines_of(panels[1], 6)[0].get_color() == lines_of(panels[0], 6)[1].get_color()
    assert legend == ["s", "dr"]


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"step": 1, "loss": 1.0}],
        [{"norm_ratio": 1.0, "accuracy": 0.5}],
        [{"step": 3, "norm_ratio": math.nan, "con_alpha": None, "accuracy": math.inf}],
    ],
)
def test_nothing_to_draw_gives_no_bytes(rows):
    assert draw_dynamics({"s": rows}) == b""
    assert draw_accuracies({"s": rows, "dr": []}) == b""
    assert draw_dynamics({}) == b""


def test_values_that_are_not_finite_are_left_out(monkeypatch):
    rows = log(12)
    rows[4]["con_alpha"] = math.nan
    panels, _ = drawn(monkeypatch, draw_dynamics, {"s": rows})
    assert [len(lines_of(axes, 11)) for axes in panels] == [0, 2, 0, 0]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=120))
def test_the_running_median_is_that_of_a_loop(numbers):
    found = running_median(np.array(numbers))
    reach = max(1, round(0.05 * len(numbers)))
    expected = [np.median(numbers[max(0, i - reach) : i + reach + 1]) for i in range(len(numbers))]
    np.testing.assert_allclose(found, expected)
