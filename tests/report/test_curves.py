"""Training curves with metrics that a recipe asked for: a panel of their own below MAP@R and P@1."""

from __future__ import annotations

import io
import math

import matplotlib
import numpy as np
import pytest
from PIL import Image

from nearkin.errors import DataError
from nearkin.report import curves, draw_curves, draw_metric_curves, draw_sweep
from nearkin.report.canvas import SERIES
from nearkin.report.curves import _usual_groups

PLAIN = [{"step": s, "loss": 1 / s} for s in range(1, 30)]
PLAIN += [{"step": s, "val_MAP@R": s / 200, "val_P@1": s / 100} for s in (10, 20, 30)]
ASKED = [row | {"val_NMI": 0.6 + row["step"] / 1000, "val_Recall@1": row["val_P@1"]} for row in PLAIN[-3:]]


@pytest.fixture
def panels(monkeypatch):
    """The names drawn in each panel of metrics."""
    drawn, plain = [], curves._draw_metrics

    def noting(axes, series, percent):
        plain(axes, series, percent)
        drawn.append((list(series), axes))

    monkeypatch.setattr(curves, "_draw_metrics", noting)
    return drawn


def height(png):
    return Image.open(io.BytesIO(png)).height


def test_what_was_asked_for_has_a_panel_of_its_own(panels):
    png = draw_curves(PLAIN[:-3] + ASKED)
    assert [names for names, _ in panels] == [["val_MAP@R", "val_P@1"], ["val_NMI", "val_Recall@1"]]
    assert [axes.get_title(loc="left") for _, axes in panels] == [
        "Validation: best MAP@R 15.0 % at step 30",
        "Validation: further metrics",
    ]
    assert [text.get_text() for text in panels[1][1].get_legend().get_texts()] == ["NMI", "Recall@1"]
    assert height(png) == height(draw_curves(PLAIN)) + 2 * 210


def test_a_single_one_is_named_above_its_panel(panels):
    draw_curves([{key: row[key] for key in ("step", "val_MAP@R", "val_NMI")} for row in ASKED])
    assert panels[1][1].get_title(loc="left") == "Validation: NMI"


def test_without_any_the_picture_is_as_it_was():
    assert _usual_groups(PLAIN) == [["val_MAP@R", "val_P@1"], []]
    lengths = [row | {"val_covering_radius": 3.0} if "val_P@1" in row else row for row in PLAIN]
    assert draw_curves(lengths) == draw_curves(PLAIN) == draw_curves(PLAIN, metrics=["val_MAP@R", "val_P@1"])


def test_named_metrics_share_one_panel_and_the_first_decides(panels):
    draw_curves(ASKED, metrics=["val_NMI", "val_P@1", "val_absent"])
    ((names, axes),) = panels
    assert names == ["val_NMI", "val_P@1"]
    assert axes.get_title(loc="left") == "Validation: best NMI 63.0 % at step 30"


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_share_that_stays_is_drawn_within_0_and_100_percent(panels, value):
    draw_curves([{"step": s, "val_MAP@R": value, "val_P@1": value} for s in (1, 2, 3)])
    ((_, axes),) = panels
    low, high = axes.get_ylim()
    assert low < value < high
    assert all(0 <= tick <= 1 for tick in axes.get_yticks() if low <= tick <= high)


def test_metrics_without_map_are_marked_by_their_first():
    assert _usual_groups([{"step": 1, "val_b": 0.1, "val_a": 0.2}]) == [[], ["val_b", "val_a"]]
    assert draw_curves([{"step": 1, "val_b": 0.1, "val_a": 0.2}]).startswith(b"\x89PNG")


NAN = math.nan
METHODS = ["Base", "Energy", "Soft-Adv", "Adapt-Adv", "+ GDFL", "+ Adv"]
METRICS = ["NMI", "Recall@1"]
MODULES = {draw_metric_curves: curves, draw_sweep: curves}
both = pytest.mark.parametrize("draw", [draw_metric_curves, draw_sweep])


def series(methods=4, points=11):
    x = np.linspace(0, 1, points)
    return {
        metric: {name: (x, 0.5 + 0.1 * place + 0.02 * i + 0.05 * x) for i, name in enumerate(METHODS[:methods])}
        for place, metric in enumerate(METRICS)
    }


def around(given, half=0.01):
    return {
        metric: {name: (y - half, y + 2 * half) for name, (_, y) in methods.items()}
        for metric, methods in given.items()
    }


def metric_pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def figure_of(monkeypatch, draw, *arguments, **options):
    kept = []
    monkeypatch.setattr("nearkin.report.canvas.to_png", lambda figure: kept.append(figure) or b"")
    draw(*arguments, **options)
    return kept[0]


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


def method_lines(axes):
    """The lines of methods: those with markers."""
    return [line for line in axes.lines if line.get_marker() in "os^Dv"]


@both
@pytest.mark.parametrize("methods", [1, 6])
def test_pictures_are_retina_pngs_whatever_the_users_settings(draw, methods):
    given = series(methods)
    png = draw(given, intervals=around(given))
    image = metric_pixels(png)
    assert image.shape[1] == 2 * 720
    assert (image[:, [0, -1]] == 255).all()
    assert set(Image.open(io.BytesIO(png)).info) <= {"dpi"}
    with matplotlib.rc_context({"font.size": 25, "axes.facecolor": "red", "errorbar.capsize": 9}):
        assert draw(given, intervals=around(given)) == png


@both
def test_strange_and_long_names_are_only_text(draw):
    names = ["_hidden", "", "$x^$ \n" + "long " * 40, "W" * 90, "猫\udc80"]
    given = {f"{name}{'M' * 90}": {name: ([0, 1], [0.1, 0.2])} for name in names}
    image = metric_pixels(draw(given, of="w" * 200, across="λ" * 9))
    assert image.shape[1] == 1440
    assert (image[:, [0, -1]] == 255).all()


@both
@pytest.mark.parametrize(
    "given", [{}, {"NMI": {}}, {"NMI": {"Base": ([], [])}}, {"NMI": {"Base": ([1, NAN], [NAN, 0.5])}}]
)
def test_nothing_to_draw_gives_no_bytes(draw, given):
    assert draw(given) == b""


@both
def test_lines_show_the_values_in_order_without_the_points_that_are_not_finite(monkeypatch, draw):
    given = {"NMI": {"Base": ([3, 1, 2, 4], [0.3, 0.1, NAN, math.inf])}}
    (line,) = method_lines(figure_of(monkeypatch, draw, given).axes[0])
    np.testing.assert_allclose(line.get_xdata(), [1, 3])
    np.testing.assert_allclose(line.get_ydata(), [0.1, 0.3])


@both
def test_a_method_looks_the_same_in_every_panel_and_unlike_the_others_without_colour(monkeypatch, draw):
    given = series(6)
    del given["Recall@1"]["Base"]
    upper, lower = figure_of(monkeypatch, draw, given).axes
    looks = [
        [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in method_lines(axes)]
        for axes in (upper, lower)
    ]
    assert looks[0][1:] == looks[1]
    assert len({look[1:] for look in looks[0]}) == 6


@both
def test_everything_is_in_sight_and_noise_is_not_blown_up(monkeypatch, draw):
    given = {"NMI": {"Base": ([0, 1], [0.500, 0.501])}, "Recall@1": {"Base": ([0, 1], [0.9, 0.99])}}
    ends = {"Recall@1": {"Base": ([0.2, NAN], [0.95, NAN])}}
    flat, wide = figure_of(monkeypatch, draw, given, intervals=ends).axes
    low, high = flat.get_ylim()
    assert high - low > 0.03
    low, high = wide.get_ylim()
    assert low < 0.2
    assert high > 0.99


@both
def test_a_method_or_metric_without_points_is_left_out(monkeypatch, draw):
    given = {"NMI": {"Base": ([0], [0.5]), "Energy": ([], [])}, "Recall@1": {"Base": ([0], [NAN])}}
    figure = figure_of(monkeypatch, draw, given)
    assert len(figure.axes) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Base"]


def test_bands_are_the_intervals(monkeypatch):
    given = series(2)
    figure = figure_of(monkeypatch, draw_metric_curves, given, intervals={"NMI": around(given)["NMI"]})
    for name, band in zip(METHODS, figure.axes[0].collections, strict=False):
        path = np.concatenate([path.vertices for path in band.get_paths()])
        y = given["NMI"][name][1]
        assert path[:, 1].min() == pytest.approx(y.min() - 0.01)
        assert path[:, 1].max() == pytest.approx(y.max() + 0.02)
    assert not any(len(band.get_paths()[0].vertices) for band in figure.axes[1].collections if band.get_paths())


@pytest.mark.parametrize(("points", "every"), [(1, True), (2, True), (12, True), (13, False), (300, False)])
def test_each_point_of_a_short_line_has_a_marker(monkeypatch, points, every):
    for line in method_lines(figure_of(monkeypatch, draw_metric_curves, series(3, points)).axes[0]):
        assert (line.get_markevery() is None) == every


def test_methods_may_share_a_colour_and_keep_their_dashes(monkeypatch):
    alike = dict(zip(METHODS, (2, 2, 1), strict=False))
    figure = figure_of(monkeypatch, draw_metric_curves, series(4), alike=alike)
    first, second, third, fourth = method_lines(figure.axes[0])
    assert [line.get_color() for line in (first, second, third, fourth)] == [SERIES[i] for i in (2, 2, 1, 3)]
    assert first.get_linestyle() != second.get_linestyle()
    assert [line.get_color() for line in figure.legends[0].legend_handles] == [SERIES[i] for i in (2, 2, 1, 3)]


def test_epochs_are_ticked_whole_and_titles_say_of_what(monkeypatch):
    for last in (1, 2, 7, 300):
        given = {"NMI": {"Base": (list(range(last + 1)), [0.5] * (last + 1))}}
        figure = figure_of(monkeypatch, draw_metric_curves, given, of="validation classes")
        assert all(tick == int(tick) for tick in figure.axes[0].get_xticks())
    assert titles(figure) == ["NMI on validation classes"]
    assert figure.axes[0].get_xlabel() == "epoch"


def test_error_bars_are_the_intervals(monkeypatch):
    given = {"NMI": {"Adapt-Adv": ([0, 0.5, 1], [0.6, 0.7, 0.65])}}
    ends = {"NMI": {"Adapt-Adv": ([0.55, NAN, 0.6], [0.62, NAN, 0.66])}}
    axes = figure_of(monkeypatch, draw_sweep, given, intervals=ends).axes[0]
    bars = [segment[:, 1] for segment in axes.collections[0].get_segments() if segment.size]
    np.testing.assert_allclose(bars, [[0.55, 0.62], [0.6, 0.66]])
    assert titles(axes.figure) == ["NMI on unseen classes: best 70.0 % at λ 0.5"]


def test_bars_of_several_methods_stand_apart_around_the_setting(monkeypatch):
    axes = figure_of(monkeypatch, draw_sweep, series(3, points=3)).axes[0]
    first, second, third = (line.get_xdata() for line in method_lines(axes))
    np.testing.assert_allclose(second, [0, 0.5, 1])
    np.testing.assert_allclose(first + third, [0, 1, 2], atol=1e-12)
    assert (third - second > 0).all()
    assert (third - second < 0.02).all()


def test_the_base_is_a_line_in_sight_with_its_interval(monkeypatch):
    given = series(1)
    figure = figure_of(monkeypatch, draw_sweep, given, base={"NMI": (0.3, 0.25, 0.35), "Recall@1": (NAN, NAN, NAN)})
    upper, lower = figure.axes
    assert any(set(line.get_ydata()) == {0.3} for line in upper.lines)
    assert upper.get_ylim()[0] < 0.25
    assert lower.get_ylim()[0] > 0.5
    assert [title.rpartition(", ")[2] for title in titles(figure)] == ["base 30.0 %", titles(figure)[1]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Base", "base"]


def test_titles_tell_the_best_value_as_they_are_asked_to(monkeypatch):
    figure = figure_of(monkeypatch, draw_sweep, series(1), best_at=lambda value: f"with {value:g} shots")
    assert all(" with " in title and title.endswith(" shots") for title in titles(figure))


def test_a_base_without_an_interval_is_drawn():
    png = draw_sweep(series(1), base={"NMI": (0.3, NAN, NAN)})
    assert metric_pixels(png).shape == metric_pixels(draw_sweep(series(1))).shape
    assert png != draw_sweep(series(1), base={"NMI": (0.3, 0.2, 0.4)})


@pytest.mark.parametrize(
    ("places", "ticks"),
    [([0.0, 0.1, 0.5, 1.0], ["0", "0.1", "0.5", "1"]), ([0.5], ["0.5"]), ([0.0, 0.001, 1.0], None), (range(30), None)],
)
def test_the_settings_that_were_tried_are_ticked_if_there_is_room(monkeypatch, places, ticks):
    given = {"NMI": {"Adapt-Adv": (list(places), [0.5] * len(places))}}
    axes = figure_of(monkeypatch, draw_sweep, given).axes[0]
    if ticks is None:
        assert len(axes.get_xticks()) != len(places)
    else:
        assert [label.get_text() for label in axes.get_xticklabels()] == ticks


@both
@pytest.mark.parametrize(
    ("given", "ends", "match"),
    [
        ({"NMI": {"Base": ([0, 1], [0.5])}}, None, "Base"),
        ({"NMI": {"Base": ([[0]], [[0.5]])}}, None, "flat"),
        ({"NMI": {"Base": ([0], [0.5], [0.4])}}, None, "3"),
        ({"NMI": {"Base": ([0], ["high"])}}, None, "numbers"),
        ({"NMI": {"Base": ([0], [0.5])}}, {"NMI": {"Base": ([0.4, 0.5], [0.6, 0.7])}}, "length"),
        ({"NMI": {"Base": ([0], [0.5])}}, {"NMI": {"Base": ([0.6], [0.4])}}, "interval"),
        ({"NMI": {"Base": ([0], [0.5])}}, {"NMI": {"Energy": ([0.4], [0.6])}}, "Energy"),
        ({"NMI": {"Base": ([0], [0.5])}}, {"AMI": {"Base": ([0.4], [0.6])}}, "AMI"),
    ],
)
def test_what_does_not_fit_together_is_refused(draw, given, ends, match):
    with pytest.raises(DataError, match=match):
        draw(given, intervals=ends)


@pytest.mark.parametrize(
    ("base", "match"),
    [
        ({"AMI": (0.5, 0.4, 0.6)}, "AMI"),
        ({"NMI": (0.5,)}, "three"),
        ({"NMI": 0.5}, "three"),
    ],
)
def test_a_base_that_does_not_fit_is_refused(base, match):
    with pytest.raises(DataError, match=match):
        draw_sweep(series(1), base=base)
