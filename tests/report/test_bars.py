"""Bars of models: what is drawn where, what is left out, and what is refused."""

import io
import math

import matplotlib
import numpy as np
import pytest
from matplotlib.patches import Rectangle
from PIL import Image

from nearkin.errors import DataError
from nearkin.report import Bar, Column, draw_bars

NAN = math.nan
MEASURES = ["top-1", "AHD@1", "HP@5", "HS@50", "HS@250", "AHS@250", "MC"]


def bar(model, option="", mean=0.5, half=0.02, part="", measures=("top-1",)):
    return Bar(
        model,
        option,
        values=dict.fromkeys(measures, (mean, mean - half, mean + half)),
        runs=dict.fromkeys(measures, np.array([mean - half / 2, mean + half / 2])),
        part=part,
    )


def study(measures=("top-1",)):
    plain = [bar(model, option, 0.2 + 0.1 * i, 0.02, "without", measures) for i, (model, option) in enumerate(CELLS)]
    return [*plain, bar("CORR", "MDS", 0.7, 0.01, "with", measures)]


CELLS = [("softmax", ""), ("NormFace", "standard"), ("NormFace", "dynamic"), ("ProxyDR", "dynamic")]


def figure_of(monkeypatch, *arguments, **options):
    kept = []
    monkeypatch.setattr("nearkin.report.canvas.to_png", lambda figure: kept.append(figure) or b"")
    draw_bars(*arguments, **options)
    return kept[0]


def drawn(axes):
    """The bars of a panel, from the top."""
    return sorted((patch for patch in axes.patches if isinstance(patch, Rectangle)), key=Rectangle.get_y)


def names(axes):
    return [tick.get_text() for tick in axes.get_yticklabels()]


def lines(axes, style):
    return [line for line in axes.lines if line.get_linestyle() == style and len(line.get_xdata())]


@pytest.mark.parametrize("count", [1, 3, 7])
def test_pictures_are_retina_pngs_whatever_the_users_settings(count):
    given, columns = study(MEASURES[:count]), MEASURES[:count]
    png = draw_bars(given, columns)
    image = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    assert image.shape[1] == 2 * 720
    assert (image[:, [0, -1]] == 255).all()
    assert set(Image.open(io.BytesIO(png)).info) <= {"dpi"}
    with matplotlib.rc_context({"font.size": 25, "axes.facecolor": "red", "hatch.color": "red"}):
        assert draw_bars(given, columns) == png


def test_every_bar_ends_at_its_value_and_keeps_the_order_of_its_part(monkeypatch):
    mixed = [bar("A", part="x", mean=0.1), bar("B", part="y", mean=0.2), bar("C", part="x", mean=0.3)]
    (axes,) = figure_of(monkeypatch, mixed, ["top-1"]).axes
    assert [patch.get_x() + patch.get_width() for patch in drawn(axes)] == pytest.approx([0.1, 0.3, 0.2])
    assert names(axes) == ["A", "C", "B", "x", "y"]  # the names of parts last
    places = dict(zip(names(axes), axes.get_yticks(), strict=True))
    assert places["x"] < places["A"] < places["C"] < places["y"] < places["B"]


def test_intervals_and_runs_are_where_they_were_measured(monkeypatch):
    (axes,) = figure_of(monkeypatch, [bar("A", mean=0.5, half=0.1), bar("B", mean=0.2, half=0.04)], ["top-1"]).axes
    assert [sorted(line.get_xdata()) for line in lines(axes, "-")] == [
        pytest.approx([0.4, 0.6]),
        pytest.approx([0.16, 0.24]),
    ]
    assert [sorted(line.get_xdata()) for line in lines(axes, "None")] == [
        pytest.approx([0.45, 0.55]),
        pytest.approx([0.18, 0.22]),
    ]


def test_one_dashed_line_lies_between_two_parts(monkeypatch):
    (axes,) = figure_of(monkeypatch, study(), ["top-1"]).axes
    (line,) = lines(axes, "--")
    places = dict(zip(names(axes), axes.get_yticks(), strict=True))
    assert places["ProxyDR, dynamic"] + 0.36 < line.get_ydata()[0] < places["with"]
    assert not lines(figure_of(monkeypatch, [bar("A"), bar("B")], ["top-1"]).axes[0], "--")


def test_colours_tell_models_and_hatchings_options(monkeypatch):
    given = [bar("A", "plain"), bar("A", "fast"), bar("B", "plain"), bar("B", "fast"), bar("C")]
    first, second, third, fourth, fifth = drawn(figure_of(monkeypatch, given, ["top-1"]).axes[0])
    assert first.get_facecolor() == second.get_facecolor() != third.get_facecolor()
    assert third.get_facecolor() == fourth.get_facecolor() != fifth.get_facecolor()
    assert not any(plain.get_hatch() for plain in (first, third, fifth))
    assert second.get_hatch() == fourth.get_hatch() != first.get_hatch()


def test_a_label_is_written_in_place_of_model_and_option(monkeypatch):
    given = [bar("A", "plain"), Bar("A", "fixed", {"top-1": (0.5, NAN, NAN)}, label="A, s = 7")]
    assert names(figure_of(monkeypatch, given, ["top-1"]).axes[0]) == ["A, plain", "A, s = 7"]


def test_arrows_and_units_follow_the_columns(monkeypatch):
    given = [bar("A", measures=("top-1", "AHD@1"))]
    shares, edges = figure_of(monkeypatch, given, ["top-1", Column("AHD@1", percent=False, lower_is_better=True)]).axes
    assert shares.get_title(loc="left") == "top-1 ↑"
    assert edges.get_title(loc="left") == "AHD@1 ↓"
    assert [text.get_text() for text in shares.texts] == ["50.0 %"]
    assert [text.get_text() for text in edges.texts] == ["0.500"]


@pytest.mark.parametrize(
    ("means", "cut"), [([0.6, 0.62], True), ([0.1, 0.62], False), ([-0.1, 0.3], False), ([-0.3, -0.2], False)]
)
def test_an_axis_that_does_not_begin_at_zero_says_so(monkeypatch, means, cut):
    given = [bar(name, mean=mean) for name, mean in zip("AB", means, strict=True)]
    (axes,) = figure_of(monkeypatch, given, ["top-1"]).axes
    start, end = axes.get_xlim()
    assert (start > 0) == cut == ("does not begin at 0" in axes.get_xlabel())
    assert start < min(means) - 0.02 or cut
    assert start <= min(means) <= max(means) <= end
    for patch, mean in zip(drawn(axes), means, strict=True):
        ends = (patch.get_x(), patch.get_x() + patch.get_width())
        assert min(ends) == pytest.approx(min(mean, max(start, 0.0)))
        assert max(ends) == pytest.approx(max(mean, max(start, 0.0)))


def test_a_missing_value_is_a_dash_and_what_has_none_is_left_out(monkeypatch):
    given = [
        Bar("A", values={"top-1": (0.5, NAN, NAN), "MC": (0.3, 0.2, 0.4)}),
        Bar("B", values={"top-1": (0.4, NAN, NAN), "MC": (NAN, 0.1, 0.2)}),
        Bar("empty", values={"top-1": (NAN, NAN, NAN)}, runs={"top-1": [0.1]}),
    ]
    figure = figure_of(monkeypatch, given, ["top-1", "nothing", "MC"])
    accuracy, correlation = figure.axes
    assert names(accuracy) == ["A", "B"]
    assert [text.get_text() for text in correlation.texts] == ["30.0 %", "–"]
    assert len(lines(correlation, "-")) == 1
    assert not lines(accuracy, "-")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["mean", "95 % interval"]


def test_the_legend_tells_the_level(monkeypatch):
    (legend,) = figure_of(monkeypatch, [bar("A")], ["top-1"], level=0.9).legends
    assert [text.get_text() for text in legend.get_texts()] == ["mean", "90 % interval", "single runs"]


@pytest.mark.parametrize("given", [[], [Bar("A")], [Bar("A", values={"other": (0.1, 0.0, 0.2)})]])
def test_nothing_to_draw_gives_no_bytes(given):
    assert draw_bars(given, ["top-1"]) == b""
    assert draw_bars(given, []) == b""


def test_strange_and_long_names_are_only_text():
    given = [bar(name, name, part=name) for name in ("_hidden", "$x^$ \n" + "long " * 40, "W" * 90, "猫\udc80")]
    image = np.asarray(Image.open(io.BytesIO(draw_bars(given, ["top-1"]))))
    assert image.shape[1] == 1440


@pytest.mark.parametrize("value", [(0.5, 0.4), (0.5, "low", "high"), 0.5])
def test_a_value_without_its_ends_is_refused(value):
    with pytest.raises(DataError, match="A, fast"):
        draw_bars([Bar("A", "fast", values={"top-1": value})], ["top-1"])


def test_an_interval_upside_down_is_refused():
    with pytest.raises(DataError, match="top-1"):
        draw_bars([Bar("A", values={"top-1": (0.5, 0.6, 0.4)})], ["top-1"])
