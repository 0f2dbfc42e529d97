"""The pictures of confidence: reliability, risk and coverage, k, rejection, corruption."""

import io
import math
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from nearkin.errors import DataError
from nearkin.report.canvas import BLUE, MUTED, VERMILION, drawing, fit_text, text_width
from nearkin.report.confidence import (
    _share_text,
    _tick_labels,
    _total_text,
    draw_rejection,
    draw_reliability,
    draw_risk_coverage,
    draw_sensitivity,
    draw_shift,
)
from nearkin.report.heat import _DEPTHS, _draw_cells, _ink, _table, draw_corruption
from nearkin.report.lines import curve_points, legend_labels, line_style, share_limits
from nearkin.report.values import plain_numbers

NAN = math.nan
NAMES = ["NED", "1NN", "kNN vote", "WkNN (Dudani)", "WkNN (Gou)", "prototype", "distance ratio", "per class"]
KS = [1, 5, 20, 100, 200]
CORRUPTIONS = ["gaussian_noise", "fog", "jpeg_compression"]


def bins(shift=0.1, count=100, m=10):
    """Equal bins, the middle one empty, with the accuracy off by `shift`."""
    edges = np.linspace(0, 1, m + 1)
    counts = np.full(m, count)
    counts[m // 2] = 0
    middles = np.where(counts > 0, (edges[1:] + edges[:-1]) / 2, NAN)
    return edges, counts, middles, np.clip(middles + shift, 0, 1)


def risk(power, points=300):
    coverage = np.arange(1, points + 1) / points
    return coverage, 0.4 * coverage**power


def roc(power, points=100):
    fpr = np.linspace(0, 1, points)
    return fpr, fpr**power


def lines(places, names):
    return {name: np.linspace(0.8, 0.6 - 0.01 * i, places) for i, name in enumerate(names)}


def heat(offset=0.0):
    return np.linspace(0.1, 0.9, 15).reshape(3, 5) + offset


PICTURES = {
    "reliability": lambda names: draw_reliability(
        {name: bins(0.05 * i - 0.1) for i, name in enumerate(names)}, errors=dict.fromkeys(names, 0.05)
    ),
    "risk": lambda names: draw_risk_coverage(
        {name: risk(1 + i) for i, name in enumerate(names)}, areas=dict.fromkeys(names, 0.1)
    ),
    "rejection": lambda names: draw_rejection(
        {name: roc(1 / (2 + i)) for i, name in enumerate(names)}, areas=dict.fromkeys(names, 0.9)
    ),
    "sensitivity": lambda names: draw_sensitivity(KS, lines(5, names), lines(5, names)),
    "shift": lambda names: draw_shift(
        [1, 2, 3, 4, 5], {name: (line, 1 - line) for name, line in lines(6, names).items()}
    ),
    "corruption": lambda names: draw_corruption(
        CORRUPTIONS, [1, 2, 3, 4, 5], {name: heat() for name in names}, clean=dict.fromkeys(names, 0.95)
    ),
}


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def colours(png):
    codes = pixels(png).astype(np.int64) @ (1 << 16, 1 << 8, 1)
    return {f"#{code:06x}" for code in np.unique(codes)}


@pytest.mark.parametrize("kind", PICTURES)
def test_pictures_are_retina_pngs_without_metadata_whatever_the_users_settings(kind):
    png = PICTURES[kind](NAMES[:2])  # two: dashes too
    image = Image.open(io.BytesIO(png))
    assert image.width == 2 * 720
    assert set(image.info) <= {"dpi"}
    mine = {
        "font.size": 25,
        "font.weight": "bold",
        "axes.facecolor": "red",
        "lines.dashed_pattern": [1, 9],
        "lines.markeredgecolor": "red",
        "hatch.color": "red",
    }
    with matplotlib.rc_context(mine):
        before = dict(matplotlib.rcParams)
        assert PICTURES[kind](NAMES[:2]) == png
        assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("kind", PICTURES)
def test_many_names_are_drawn_within_the_frame(kind):
    image = pixels(PICTURES[kind](NAMES))
    assert image.shape[1] == 1440
    assert (image[:, [0, -1]] == 255).all()  # nothing is cut off at the sides
    assert (image != 255).any(axis=2).sum() > 5000


@pytest.mark.parametrize("kind", PICTURES)
def test_strange_and_long_names_are_only_text(kind):
    names = ["_hidden", "___", "", "$x^$ \n" + "long " * 40, "W" * 90, "猫\udc80"]
    image = pixels(PICTURES[kind](names))
    assert image.shape[1] == 1440
    assert (image[:, [0, -1]] == 255).all()


@pytest.mark.parametrize(
    "png",
    [
        lambda: draw_reliability({}),
        lambda: draw_reliability({"x": (np.linspace(0, 1, 4), np.zeros(3), np.full(3, NAN), np.full(3, NAN))}),
        lambda: draw_risk_coverage({}),
        lambda: draw_risk_coverage({"x": ([], []), "y": ([NAN], [0.1])}),
        lambda: draw_rejection({}),
        lambda: draw_rejection({"x": ([], [])}, areas={"x": NAN}),
        lambda: draw_sensitivity([], {}, {}),
        lambda: draw_sensitivity([1, 2], {"x": [NAN, NAN]}, {}),
        lambda: draw_corruption([], [1], {}),
        lambda: draw_corruption(["fog"], [1, 2], {"accuracy": [[NAN, NAN]]}),
        lambda: draw_corruption([], [], {"accuracy": np.empty((0, 0))}),
        lambda: draw_shift([1], {}),
        lambda: draw_shift([1], {"x": ([NAN, NAN], [NAN, NAN])}),
    ],
)
def test_nothing_to_draw_gives_no_bytes(png):
    assert png() == b""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: draw_reliability({"x": bins(0.1)}), lambda: draw_reliability({"x": bins(0.2)})),
        (lambda: draw_reliability({"x": bins()}), lambda: draw_reliability({"x": bins()}, errors={"x": 0.1})),
        (lambda: draw_risk_coverage({"x": risk(1)}), lambda: draw_risk_coverage({"x": risk(2)})),
        (lambda: draw_risk_coverage({"x": risk(1)}), lambda: draw_risk_coverage({"x": risk(1)}, areas={"x": 0.2})),
        (lambda: draw_rejection({"x": roc(0.5)}), lambda: draw_rejection({"x": roc(0.2)})),
        (lambda: draw_rejection({"x": roc(0.5)}), lambda: draw_rejection({"x": roc(0.5)}, areas={"x": 0.7})),
        (
            lambda: draw_sensitivity([1, 9], {"x": [0.5, 0.6]}, {}),
            lambda: draw_sensitivity([1, 9], {"x": [0.6, 0.5]}, {}),
        ),
        (
            lambda: draw_sensitivity([1, 9], {}, {"x": [0.5, 0.6]}),
            lambda: draw_sensitivity([1, 9], {"x": [0.5, 0.6]}, {}),
        ),
        (lambda: draw_shift([1], {"x": ([1, 0.5], [0, 0.1])}), lambda: draw_shift([1], {"x": ([1, 0.5], [0, 0.2])})),
        (
            lambda: draw_corruption(CORRUPTIONS, range(5), {"ECE": heat()}),
            lambda: draw_corruption(CORRUPTIONS, range(5), {"ECE": heat()[::-1]}),
        ),
        (
            lambda: draw_corruption(CORRUPTIONS, range(5), {"ECE": heat()}, clean={"ECE": 0.1}),
            lambda: draw_corruption(CORRUPTIONS, range(5), {"ECE": heat()}, clean={"ECE": 0.2}),
        ),
    ],
)
def test_other_values_give_other_pixels(one, other):
    first, second = pixels(one()), pixels(other())
    assert first.shape != second.shape or (first != second).any()


@pytest.mark.parametrize(
    "png",
    [
        lambda: draw_reliability({"one bin": ([0, 1], [7], [0.8], [0.6])}),
        lambda: draw_reliability({"right": bins(1.0), "empty": (np.linspace(0, 1, 3), [0, 0], [NAN, NAN], [NAN, NAN])}),
        lambda: draw_reliability(
            {"ties": ([0, 0.5, 0.5, 1], [3, 0, 1], [0.2, NAN, 1], [1, NAN, 1])}, errors={"ties": NAN}
        ),
        lambda: draw_risk_coverage(
            {"one point": ([1.0], [0.3]), "none": ([], []), "gap": ([0.2, 0.5, 1], [0, NAN, 0.1])}
        ),
        lambda: draw_risk_coverage({"perfect": (np.linspace(0, 1, 9), np.zeros(9))}, areas={"perfect": NAN}),
        lambda: draw_rejection({"perfect": ([0, 0, 1], [0, 1, 1]), "worst": ([0, 1, 1], [0, 0, 1])}),
        lambda: draw_sensitivity([200], {"x": [1.0]}, {"x": [0.0], "only here": [0.2]}),
        lambda: draw_sensitivity([20, 1, 5], {"x": [1.0, NAN, math.inf]}, {"x": [NAN, NAN, NAN]}),
        lambda: draw_corruption(["fog"], [3], {"accuracy": [[1.0]], "ECE": [[0.0]], "NLL": [[NAN]]}),
        lambda: draw_shift([], {"x": ([0.5], [0.1])}),
    ],
)
def test_extremes_are_drawn(png):
    assert pixels(png()).shape[1] == 1440


def test_over_and_underconfidence_are_told_apart():
    over, under = (pixels(draw_reliability({"x": bins(shift)})) for shift in (-0.2, 0.2))
    red = [(picture == (0xD5, 0x5E, 0)).all(2).sum() for picture in (over, under)]
    assert red[0] > 3 * red[1] > 0  # both stand in the legend


def test_every_line_has_its_look_without_its_colour():
    looks = {(style["linestyle"], style["marker"]) for style in map(line_style, range(20))}
    assert len(looks) == 20
    alone = colours(draw_rejection({"a": roc(0.5)}))
    assert BLUE in alone
    assert VERMILION not in alone
    assert VERMILION in colours(draw_rejection({"a": roc(0.5), "b": roc(0.3)}))


def test_a_name_without_points_keeps_its_place():
    both = draw_risk_coverage({"none": ([], []), "b": risk(1)})
    assert VERMILION in colours(both)  # the look of the second place


def test_jumps_of_the_first_queries_do_not_flatten_the_rest():
    coverage, values = risk(1)
    spiked = values.copy()
    spiked[:3] = 1.0
    plain, jumpy = (pixels(draw_risk_coverage({"x": (coverage, each)})) for each in (values, spiked))
    assert (plain[:, 800:] != jumpy[:, 800:]).mean() < 1e-3  # a line's soft edges may differ


def test_severity_zero_need_not_be_named():
    curve = {"x": ([0.9, 0.5, 0.4], [0, 0.1, 0.2])}
    assert draw_shift([0, 1, 2], curve) == draw_shift([1, 2], curve)


def test_the_order_of_ks_does_not_matter():
    there = draw_sensitivity([1, 5, 20], {"x": [0.1, 0.2, 0.3]}, {"x": [0.3, 0.2, 0.1]})
    assert draw_sensitivity([20, 1, 5], {"x": [0.3, 0.1, 0.2]}, {"x": [0.1, 0.3, 0.2]}) == there


def test_masked_values_lists_and_tensors_are_plain_values():
    masked = np.ma.masked_array([0.1, 9.0, 0.3], mask=[False, True, False])
    expected = draw_risk_coverage({"x": ([0.2, 0.5, 1.0], [0.1, NAN, 0.3])})
    assert draw_risk_coverage({"x": ([0.2, 0.5, 1.0], masked)}) == expected
    tensor = torch.tensor([0.1, NAN, 0.3], dtype=torch.float64, requires_grad=True)
    assert draw_risk_coverage({"x": ([0.2, 0.5, 1.0], tensor)}) == expected
    np.testing.assert_array_equal(plain_numbers([True, False], "x"), [1.0, 0.0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: draw_reliability({"x": ([0, 1], [1, 2], [0.5], [0.5])}), "edges"),
        (lambda: draw_reliability({"x": ([0, 1], [1], [0.5])}), "4"),
        (lambda: draw_reliability({"x": ([1, 0], [1], [0.5], [0.5])}), "ascend"),
        (lambda: draw_reliability({"x": ([0, NAN], [1], [0.5], [0.5])}), "ascend"),
        (lambda: draw_reliability({"x": (0.5, 1, 0.5, 0.5)}), "edges"),
        (lambda: draw_risk_coverage({"x": ([0, 1], [0.1])}), "length"),
        (lambda: draw_risk_coverage({"x": ([[0, 1]], [[0.1, 0.2]])}), "flat"),
        (lambda: draw_risk_coverage({"x": (["a", "b"], [0, 1])}), "coverage"),
        (lambda: draw_risk_coverage({"x": ([[1], [1, 2]], [0, 1])}), "numbers"),
        (lambda: draw_rejection({"x": ([0, 1],)}), "FPR"),
        (lambda: draw_sensitivity([0, 1], {"x": [0, 1]}, {}), "numbers"),
        (lambda: draw_sensitivity([1, 2], {"x": [0.5]}, {}), "2"),
        (lambda: draw_corruption(["fog"], [1, 2], {"ECE": [0.1, 0.2]}), r"\(1, 2\)"),
        (lambda: draw_corruption(["fog"], [1], {"ECE": [["bad"]]}), "numbers"),
        (
            lambda: draw_shift([1, 2], {"x": ([0.5, 0.4], [0, 0])}),
            "severity",
        ),
    ],
)
def test_values_that_cannot_be_drawn_are_refused(call, words):
    with pytest.raises(DataError, match=words):
        call()


def test_points_that_are_not_finite_are_left_out():
    x, y = curve_points("x", ([0, NAN, 0.5, 1], [0, 1, math.inf, 1]), "a", "b")
    assert (x.tolist(), y.tolist()) == ([0, 1], [0, 1])


def test_the_mean_stands_below_and_leaves_out_what_is_missing():
    table = _table("x", np.array([[0.2, NAN, NAN], [0.4, 0.6, NAN]]), 2, 3)
    np.testing.assert_allclose(table, [[0.2, NAN, NAN], [0.4, 0.6, NAN], [0.3, 0.6, NAN]])


def test_blank_cells_are_white():
    full, holes = heat(), heat()
    holes[1] = NAN
    more, fewer = (pixels(draw_corruption(CORRUPTIONS, range(5), {"x": each})) for each in (full, holes))
    assert (fewer == 255).all(2).sum() > 1.1 * (more == 255).all(2).sum()


@given(st.tuples(*[st.floats(0, 1)] * 3))
def test_numbers_in_cells_can_be_read_on_every_colour(fill):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in fill]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    contrast = {"white": 1.05 / (luminance + 0.05), "black": (luminance + 0.05) / 0.05}
    assert contrast[_ink(np.array(fill))] >= 4.5


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=120), st.sampled_from([60.0, 185.0]))
def test_fitted_text_is_no_wider_than_its_place(text, width):
    line = fit_text(text, width, 9)
    assert text_width(line, 9) <= width
    if text_width(text.strip(), 9) <= width and text.isprintable() and len(text) <= 100:
        assert line == text.strip()


def test_legend_labels_are_never_hidden():
    labels = legend_labels(["_a", "__", "", "b"], {"b": 0.125}, "AURC")
    assert labels == ["a", "–", "–", "b: AURC 12.5 %"]


@pytest.mark.parametrize("ks", [[7], [1, 2], [1, 2, 3, 5, 10, 20, 50, 100, 200], [*range(1, 60), 9000, 10000]])
def test_numbers_of_ticks_do_not_run_into_each_other(ks):
    labels = _tick_labels(np.array(ks, float))
    assert labels[0] == f"{ks[0]:,}"
    assert labels[-1] == f"{ks[-1]:,}"
    shown = [math.log(k) for k, label in zip(ks, labels, strict=True) if label]
    room = 600 / max(math.log(ks[-1] / ks[0]), 1e-9)  # pixels for a unit of the axis
    widest = max(text_width(label, 10) for label in labels)
    assert all((right - left) * room > widest for left, right in pairwise(shown))


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (0.0, 0.0), (0.3, 0.9), (0.98, 1.0), (0.7, 0.701)])
def test_accuracies_are_in_sight_and_no_tick_lies_above_all_right(low, high):
    bottom, top = share_limits(low, high)
    assert bottom < low <= high < top <= 1.05
    assert bottom >= -0.06 * (top - bottom)  # where no tick fits
    assert top - bottom >= 0.02


def test_words_for_counts():
    assert _total_text([1.0]) == "1 query"
    assert _total_text([2500.0]) == "2,500 queries"
    assert _total_text([2500.0, 2500.0]) == "2,500 queries each"
    assert _total_text([0.0, 2500.0]) == "0 to 2,500 queries"
    shares = {1.0: "100 %", 0.998: "> 99 %", 0.6: "60 %", 0.0996: "10 %", 0.0123: "1.2 %", 0.004: "0.4 %"}
    assert {share: _share_text(share) for share in shares} == shares


def test_shares_of_queries_can_be_seen_beside_an_estimator_with_one_confidence():
    alone = np.where(np.arange(10) == 9, 900, 0)
    sure = (np.linspace(0, 1, 11), alone, np.where(alone > 0, 1.0, NAN), np.where(alone > 0, 0.9, NAN))
    image = pixels(draw_reliability({"1NN": sure, "even": bins()}))
    filled = (image == area(MUTED)).all(2).sum(axis=0)
    tallest = [filled[:720].max(), filled[720:].max()]
    assert tallest[0] > 80
    assert tallest[1] >= 0.9 * tallest[0]


def area(colour):
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


@pytest.mark.parametrize(("lower", "largest"), [((), _DEPTHS[0]), (("x",), _DEPTHS[-1])])
def test_dark_is_worse(lower, largest):
    image = pixels(draw_corruption(["a", "b"], [1], {"x": [[0.9], [0.3]]}, lower_is_better=lower))
    found = {colour: (image == area(colour)).all(2).sum() for colour in (_DEPTHS[0], _DEPTHS[-1])}
    assert found.pop(largest) > 20_000  # a cell; the bar of colours has few of either
    assert min(found.values()) < 2000


def test_less_is_better_is_told_and_every_scale_starts_at_nothing():
    plain, told = (draw_corruption(["a"], [1], {"x": [[0.5]]}, lower_is_better=which) for which in ((), ("x",)))
    assert (pixels(plain)[:50] != pixels(told)[:50]).any()  # the title
    with drawing(200, 200) as figure:
        axes = figure.add_subplot()
        limits = [_draw_cells(axes, np.array([[0.3, high]]), _DEPTHS, 8).get_clim() for high in (0.9, 0.31, NAN)]
    assert limits == [(0.0, 0.9), (0.0, 0.31), (0.0, 0.3)]


def test_a_map_without_any_loss_is_pale_and_one_without_any_hit_is_dark():
    with drawing(200, 200) as figure:
        axes = figure.add_subplot()
        perfect, hopeless = (_draw_cells(axes, np.full((2, 2), value), _DEPTHS[::-1], 8) for value in (1.0, 0.0))
    np.testing.assert_allclose(matplotlib.colors.to_rgba(_DEPTHS[0]), perfect.to_rgba(1.0), atol=1e-2)
    np.testing.assert_allclose(matplotlib.colors.to_rgba(_DEPTHS[-1]), hopeless.to_rgba(0.0), atol=1e-2)
