"""Instances of a chance-constrained training: which rows count, and what is drawn of them."""

import io
import math

import numpy as np
import pytest
from PIL import Image

from nearkin.report import instances as module
from nearkin.report.instances import draw_instances

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def row(instance, **values):
    return {
        "step": 100 * instance,
        "instance": instance,
        "instance_steps": 100,
        "instance_MAP@R": 0.3 + 0.01 * instance,
        "instance_covering_radius": 0.5 / instance,
        "instance_spread": 0.1 * instance,
    } | {f"instance_{name}": value for name, value in values.items()}


def drawn(monkeypatch, history):
    """The axes of the picture, by the first words of their titles."""
    kept = []
    monkeypatch.setattr(module, "to_png", lambda figure: kept.append(figure) or b"")
    draw_instances(history)
    return {axes.get_title(loc="left").partition(":")[0]: axes for axes in kept[0].axes}


@pytest.mark.parametrize("count", [1, 2, 7, 90])
def test_the_picture_is_a_retina_png_that_depends_on_nothing_else(count):
    history = [row(i) for i in range(1, count + 1)]
    png = draw_instances(history)
    assert png.startswith(SIGNATURE)
    assert Image.open(io.BytesIO(png)).size == (2 * 720, 2 * (40 + 4 * 150))
    assert draw_instances(history) == png


@pytest.mark.parametrize(
    "history",
    [
        [],
        [{"step": 1, "loss": 1.0}, {"step": 2, "val_MAP@R": 0.5, "val_covering_radius": 0.1}],
        [{"step": 9, "instance": 1}],
        [{"step": 9, "instance": 1, "instance_MAP@R": math.nan, "instance_spread": None}],
    ],
)
def test_nothing_to_draw_gives_no_bytes(history):
    assert draw_instances(history) == b""


def test_other_rows_do_not_change_the_picture():
    history = [row(1), row(2)]
    mixed = [{"step": 50, "loss": 1.0}, row(1), {"step": 150, "val_MAP@R": 0.9, "val_covering_radius": 9.0}, row(2)]
    assert draw_instances(mixed) == draw_instances(history)


def test_a_repeated_instance_counts_with_its_last_row_and_in_order():
    history = [row(2), row(1), row(2, spread=0.9)]
    assert draw_instances(history) == draw_instances([row(1), row(2, spread=0.9)])
    assert draw_instances(history) != draw_instances([row(1), row(2)])


def test_lines_and_bars_show_the_values(monkeypatch):
    history = [row(1, steps=75), row(2, steps=125), row(3, steps=300, **{"MAP@R": 0.1})]
    axes = drawn(monkeypatch, history)
    assert list(axes) == ["Validation MAP@R", "Covering radius ↓", "Spread of the proxies of one class", "Steps"]
    for panel, values in zip(axes.values(), ([0.31, 0.32, 0.1], [0.5, 0.25, 0.5 / 3], [0.1, 0.2, 0.3]), strict=False):
        np.testing.assert_allclose(panel.lines[0].get_xdata(), [1, 2, 3])
        np.testing.assert_allclose(panel.lines[0].get_ydata(), values)
    assert [bar.get_height() for bar in axes["Steps"].patches] == [75, 125, 300]
    assert axes["Steps"].get_title(loc="left") == "Steps: 500 in all"
    assert "best 32.0 % in instance 2" in axes["Validation MAP@R"].get_title(loc="left")
    assert axes["Covering radius ↓"].get_title(loc="left").endswith("from 0.500 to 0.167")


def test_a_measure_without_values_has_no_panel(monkeypatch):
    history = [row(1, spread=math.nan, covering_radius=None), row(2, spread=math.inf, covering_radius=None)]
    assert list(drawn(monkeypatch, history)) == ["Validation MAP@R", "Steps"]


def test_a_missing_value_leaves_a_gap_and_cannot_be_the_best(monkeypatch):
    axes = drawn(monkeypatch, [row(1), row(2, **{"MAP@R": math.nan}), row(3)])
    assert np.isnan(axes["Validation MAP@R"].lines[0].get_ydata()).tolist() == [False, True, False]
    assert "instance 3" in axes["Validation MAP@R"].get_title(loc="left")


def test_whole_instances_are_ticked(monkeypatch):
    for count in (1, 2, 3, 50):
        axes = drawn(monkeypatch, [row(i) for i in range(1, count + 1)])["Steps"]
        low, high = axes.get_xlim()
        ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert ticks
        assert all(tick == int(tick) and 1 <= tick <= count for tick in ticks)
