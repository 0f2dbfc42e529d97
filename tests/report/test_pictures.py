"""Curves, histograms and maps: valid PNGs of a fixed width, equal for equal input, none for no input."""

import io
import math
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from nearkin.errors import DataError
from nearkin.report import ComparisonRow, draw_comparison, draw_curves, draw_histograms, draw_map
from nearkin.report.geometry import _place
from nearkin.report.lines import smooth, step_series

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def history(steps=60):
    rng = np.random.default_rng(0)
    rows = [{"step": s, "loss": 5 * math.exp(-s / 20) + rng.normal(0, 0.1)} for s in range(1, steps + 1)]
    rows += [{"step": s, "val_MAP@R": s / 200, "val_P@1": s / 100} for s in range(10, steps + 1, 10)]
    return rows


def cloud(classes=6, each=12, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat([f"class {c}" for c in range(classes)], each)
    centres = rng.normal(0, 8, (classes, 2))
    return np.repeat(centres, each, axis=0) + rng.normal(0, 1, (classes * each, 2)), labels


PICTURES = {
    "curves": lambda: draw_curves(history()),
    "histograms": lambda: draw_histograms(np.linspace(0, 1, 50), np.linspace(0.5, 2, 80), threshold=0.7),
    "map": lambda: draw_map(*cloud(), title="PCA", max_classes=4),
    "comparison": lambda: draw_comparison([ComparisonRow("a", "r", {"MAP@R": (0.2, 0.1, 0.3)})], "MAP@R"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_retina_pngs_without_metadata(name):
    png = PICTURES[name]()
    assert png.startswith(SIGNATURE)
    image = Image.open(io.BytesIO(png))
    assert image.width == 2 * 720
    assert set(image.info) <= {"dpi"}
    assert image.convert("RGB").getpixel((1, 1)) == (255, 255, 255)


@pytest.mark.parametrize("name", PICTURES)
def test_same_input_gives_the_same_bytes_whatever_the_users_settings(name):
    import matplotlib

    first = PICTURES[name]()
    with matplotlib.rc_context({"font.size": 25, "axes.facecolor": "red", "savefig.dpi": 50, "text.usetex": False}):
        assert PICTURES[name]() == first
        assert matplotlib.rcParams["font.size"] == 25


def test_importing_the_room_is_cheap_and_drawing_leaves_pyplot_alone():
    code = """
import sys
import nearkin.report as report
heavy = {"torch", "sklearn", "scipy", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
report.draw_curves([{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}])
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_to_draw_gives_no_bytes():
    assert draw_curves([]) == b""
    assert draw_curves([{"step": 1, "lr": 0.1}, {"step": 2, "loss": math.nan}, {"loss": 1.0}]) == b""
    assert draw_histograms(np.array([]), np.array([np.nan])) == b""
    assert draw_map(np.empty((0, 2)), np.array([])) == b""
    assert draw_comparison([ComparisonRow("a", "r", {})], "MAP@R") == b""


@pytest.mark.parametrize(
    "rows",
    [
        [{"step": 1, "loss": 2.0}],
        [{"step": 5, "val_MAP@R": 0.5}],
        [{"step": s, "loss": 1.0} for s in range(30)],
        [{"step": 1, "loss": 1.0, "val_$": 0.1, "val__hidden": 0.2}],
        [{"step": s, "loss": 1.0 if s else 1e30} for s in range(300)],
    ],
)
def test_odd_histories_are_drawn(rows):
    assert draw_curves(rows).startswith(SIGNATURE)


def test_a_repeated_step_counts_with_its_last_row_and_in_order():
    rows = [{"step": 2, "loss": 5.0}, {"step": 3, "loss": 9.0}, {"step": 1, "loss": 7.0}, {"step": 3, "loss": 4.0}]
    steps, values = step_series(rows, "loss")
    assert steps.tolist() == [1, 2, 3]
    assert values.tolist() == [7, 5, 4]


@pytest.mark.parametrize("count", [10, 57, 400])
def test_smoothing_is_a_normalised_gaussian_average(count):
    values = np.random.default_rng(1).normal(size=count)
    sigma = max(1.0, count / 50)
    reach = int(3 * sigma)
    expected = []
    for i in range(count):
        near = range(max(0, i - reach), min(count, i + reach + 1))
        weights = [math.exp(-0.5 * ((i - j) / sigma) ** 2) for j in near]
        expected.append(sum(w * values[j] for w, j in zip(weights, near, strict=True)) / sum(weights))
    np.testing.assert_allclose(smooth(values), expected)


@pytest.mark.parametrize(("same", "other"), [([1.0], []), ([], [2.0]), ([0.5] * 9, [0.5] * 9), ([np.inf, 1], [3])])
def test_odd_distances_are_drawn(same, other):
    assert draw_histograms(np.array(same), np.array(other), threshold=math.nan).startswith(SIGNATURE)


@pytest.mark.parametrize("max_classes", [0, 1, 3, 50])
def test_maps_colour_at_most_so_many_classes(max_classes):
    points, labels = cloud(classes=45, each=3)
    assert draw_map(points, labels, max_classes=max_classes).startswith(SIGNATURE)


@pytest.mark.parametrize("label", ["$\\frac{", "_x", "a\nb", "日本語", "bad\udcff", "<script>", "x" * 500, ""])
def test_maps_take_any_label(label, recwarn):
    assert draw_map(np.zeros((3, 2)), np.array([label] * 3, dtype=object)).startswith(SIGNATURE)
    assert not recwarn.list


def test_maps_check_their_shapes():
    with pytest.raises(DataError, match="labels"):
        draw_map(np.zeros((3, 2)), np.array(["a"]))
    with pytest.raises(DataError, match="points"):
        draw_map(np.zeros((3, 3)), np.array(["a"] * 3))


def test_names_on_one_spot_are_moved_apart_and_stay_inside():
    centres = np.full((12, 2), 500.0)
    sizes = np.tile([160.0, 30.0], (12, 1))
    frame = np.array([0.0, 0.0, 1000.0, 1000.0])
    middle = centres + _place(centres, sizes, np.empty((0, 2)), frame)
    low, high = middle - sizes / 2, middle + sizes / 2
    assert (low >= 0).all()
    assert (high <= 1000).all()
    for i in range(12):
        for j in range(i):
            width = np.minimum(high[i], high[j]) - np.maximum(low[i], low[j])
            assert np.maximum(width, 0).prod() < 0.1 * sizes[0].prod()


def test_a_name_at_the_edge_is_pulled_inside():
    offset = _place(np.array([[2.0, 500.0]]), np.array([[100.0, 30.0]]), np.empty((0, 2)), np.array([0, 0, 999, 999]))
    assert 2.0 + offset[0, 0] - 50 >= 0
