"""Training curves with metrics that a recipe asked for: a panel of their own below MAP@R and P@1."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from nearkin.report import curves, draw_curves
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
