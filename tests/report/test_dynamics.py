"""The pictures of training by episodes: which values are points, which are lines, and what is left out."""

import io
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image

from nearkin.errors import DataError
from nearkin.metrics.dynamics import DYNAMICS
from nearkin.report.dynamics import draw_accuracies, draw_clusters, draw_dynamics, running_median

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
    monkeypatch.setattr("nearkin.report.canvas.to_png", lambda figure: kept.append(figure) or b"")
    draw(logs, **options)
    return kept[0].axes, [text.get_text() for text in kept[0].legends[0].get_texts()]


def values(rows, key):
    return np.array([row[key] for row in rows if key in row])


def lines_of(axes, count):
    """The lines of a panel with this many points."""
    return [line for line in axes.lines if len(line.get_xdata()) == count]


@pytest.mark.parametrize("count", [1, 600])
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


@hypothesis.given(st.lists(st.floats(-5, 5), min_size=1, max_size=120))
def test_the_running_median_is_that_of_a_loop(numbers):
    found = running_median(np.array(numbers))
    reach = max(1, round(0.05 * len(numbers)))
    expected = [np.median(numbers[max(0, i - reach) : i + reach + 1]) for i in range(len(numbers))]
    np.testing.assert_allclose(found, expected)


def scene(times, classes, every=50, seed=0):
    """Steps (T,), radii (T, C), drift (T - 1, C) and accuracy (T,)."""
    rng = np.random.default_rng(seed)
    radii = rng.uniform(0.2, 1, (times, classes))
    drift = rng.uniform(0, 0.3, (max(times - 1, 0), classes))
    return every * np.arange(1, times + 1), radii, drift, np.linspace(0.3, 0.9, times)


def drawn_clusters(monkeypatch, *values, **options):
    """The axes of the picture, by the first word of their titles."""
    kept = []
    monkeypatch.setattr("nearkin.report.canvas.to_png", lambda figure: kept.append(figure) or b"")
    draw_clusters(*values, **options)
    return {axes.get_title(loc="left").split()[0]: axes for axes in kept[0].axes}


def thin(axes):
    """The lines of the classes, (C, T, 2)."""
    return np.array([np.asarray(line) for line in axes.collections[0].get_segments()])


def upright(axes):
    return [
        line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2 and len(set(line.get_xdata())) == 1
    ]


@pytest.mark.parametrize(("times", "panels", "classes"), [(1, 2, 1), (1, 2, 300), (2, 3, 3), (7, 3, 1), (90, 3, 300)])
def test_the_picture_is_a_retina_png_that_depends_on_nothing_else(times, panels, classes):
    given = scene(times, classes)
    names = [f"class {i}" for i in range(classes)]
    png = draw_clusters(*given, class_names=names, marks={60: "margin 1.3", 61: "margin 1.5"})
    assert png.startswith(SIGNATURE)
    image = Image.open(io.BytesIO(png))
    assert image.size == (2 * 720, 2 * (40 + panels * 175))
    assert (np.asarray(image.convert("L"))[:, [0, -1]] == 255).all()  # nothing is cut off at the sides
    assert draw_clusters(*given, class_names=names, marks={60: "margin 1.3", 61: "margin 1.5"}) == png


def test_a_thin_line_a_class_and_a_thick_one_for_their_mean(monkeypatch):
    steps, radii, drift, accuracy = scene(6, 4)
    panels = drawn_clusters(monkeypatch, steps, radii, drift, accuracy)
    assert list(panels) == ["Cluster", "Centroid", "Items"]
    for axes, at, values in ((panels["Cluster"], steps, radii), (panels["Centroid"], steps[1:], drift)):
        lines = thin(axes)
        np.testing.assert_array_equal(lines[:, :, 0], np.tile(at, (4, 1)))
        np.testing.assert_array_equal(lines[:, :, 1], values.T)
        (mean,) = axes.lines
        np.testing.assert_allclose(mean.get_ydata(), values.mean(axis=1))
        assert mean.get_linewidth() > 3 * axes.collections[0].get_linewidth()[0]
        low, high = axes.get_ylim()
        assert low < 0 < values.max() < high
    np.testing.assert_array_equal(panels["Items"].lines[0].get_ydata(), accuracy)
    assert panels["Items"].get_xlabel() == "step"


def test_words_tell_the_course_and_the_widest_class(monkeypatch):
    radii = np.array([[0.5, 0.75], [0.25, 0.35]])
    given = ([100, 200], radii, [[0.125, 0.375]], [0.5, 0.75])
    panels = drawn_clusters(monkeypatch, *given, class_names=["krill", "$salp_"])
    titles = [axes.get_title(loc="left") for axes in panels.values()]
    assert titles == [
        "Cluster radius ↓: mean from 0.625 to 0.300",
        "Centroid drift ↓: mean 0.250",
        "Items nearest to their own centroid: from 50.0 % to 75.0 %",
    ]
    assert panels["Cluster"].get_xlabel() == "widest at the end: $salp_, 0.350"
    assert not panels["Cluster"].texts  # nothing covers the lines
    assert not drawn_clusters(monkeypatch, *given)["Cluster"].get_xlabel()


@pytest.mark.parametrize(
    ("name", "cut"), [("071.Long_tailed_Jaeger", False), ("of " + 300 * "x", True), (80 * "W", True)]
)
def test_a_long_name_stays_below_its_panel(name, cut, monkeypatch):
    axes = drawn_clusters(monkeypatch, *scene(3, 1), class_names=[name])["Cluster"]
    words = axes.xaxis.label
    assert ("…" in words.get_text()) == cut
    axes.figure.draw_without_rendering()
    inside, box = axes.get_window_extent(), words.get_window_extent()
    assert inside.x0 < box.x0 < box.x1 < inside.x1 + 1
    assert box.y1 < inside.y0  # below it, where no line is


@pytest.mark.parametrize("at", [(500, 510, 520, 900), (900, 905, 910), (30, 60, 90), range(50, 1000, 25)])
def test_words_of_neighbouring_marks_cover_none_of_another(at, monkeypatch):
    axes = drawn_clusters(monkeypatch, *scene(20, 3), marks={step: f"margin {step}" for step in at})["Cluster"]
    assert upright(axes) == list(at)  # the lines are all there
    axes.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) > 1
    assert axes.texts[0].get_text() == f"margin {at[0]}"
    inside = axes.get_window_extent()
    for place, box in enumerate(boxes):
        assert inside.x0 <= box.x0 < box.x1 <= inside.x1
        assert not any(box.overlaps(other) for other in boxes[:place])


def test_marks_stand_in_every_panel_and_are_named_in_the_first(monkeypatch):
    panels = drawn_clusters(
        monkeypatch, *scene(20, 3), marks={900: "late", 0: "start", 500: "margin 1.3", 1001: "beyond"}
    )
    for axes in panels.values():
        assert upright(axes) == [500, 900]
    words = panels["Cluster"].texts
    assert [text.get_text() for text in words] == ["margin 1.3", "late"]
    assert [text.get_ha() for text in words] == ["left", "right"]
    assert not panels["Centroid"].texts


def test_a_single_look_is_seen(monkeypatch):
    panels = drawn_clusters(monkeypatch, *scene(1, 4))
    assert list(panels) == ["Cluster", "Items"]
    dots, mean = panels["Cluster"].lines
    assert len(dots.get_ydata()) == 4
    assert dots.get_marker() == mean.get_marker() == "o"


def test_many_looks_have_no_markers(monkeypatch):
    assert not any(
        line.get_marker() == "o" for axes in drawn_clusters(monkeypatch, *scene(60, 2)).values() for line in axes.lines
    )


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_no_clusters_give_no_bytes(shape):
    times, classes = shape
    assert draw_clusters(*scene(times, classes)) == b""


def test_classes_that_do_not_move_nor_spread_are_drawn(monkeypatch):
    panels = drawn_clusters(monkeypatch, [1, 2], np.zeros((2, 3)), np.zeros((1, 3)), [1.0, 1.0])
    assert panels["Cluster"].get_ylim()[1] > 0


def test_shapes_that_do_not_fit_are_refused():
    steps, radii, drift, accuracy = scene(4, 3)
    for given in (
        (steps[:3], radii, drift, accuracy),
        (steps, radii[:, :2], drift, accuracy),
        (steps, radii, drift[:2], accuracy),
        (steps, radii, drift, accuracy[:, None]),
        (steps, radii[0], drift, accuracy),
    ):
        with pytest.raises(DataError, match="shape"):
            draw_clusters(*given)
    with pytest.raises(DataError, match="names"):
        draw_clusters(steps, radii, drift, accuracy, class_names=["a", "b"])


def test_values_that_are_no_finite_numbers_are_refused():
    steps, radii, drift, accuracy = scene(4, 3)
    with pytest.raises(DataError, match="finite"):
        draw_clusters(steps, radii, drift * np.nan, accuracy)
    with pytest.raises(DataError, match="radii"):
        draw_clusters(steps, [["wide"]], drift, accuracy)
