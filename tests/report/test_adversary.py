"""The picture of a class adversary: which rows count, what is drawn of them, and what is told."""

import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nearkin.report import draw_adversary
from nearkin.report.dynamics import SignChanges, adversary_facts, counted_sign_changes, sign_changes

SIGNATURE = b"\x89PNG\r\n\x1a\n"
THRESHOLD = 1.5


def row(step, reached, /, **values):
    """A row of the log, with the coefficient of equation 25."""
    found = {
        "coefficient": -0.5 * math.tanh(reached - THRESHOLD),
        "loss": reached,
        "accuracy": math.exp(-reached),
    } | values
    return {"step": step, "loss": 1.0} | {f"class-adversary_{name}": value for name, value in found.items()}


def falling(count):
    return [row(10 * i, 4.6 * 0.9**i) for i in range(1, count + 1)]


def counted(history, *turns):
    """The same log, each row with the steps of those changes of sign that came before it."""
    told = []
    for one in history:
        past = [turn for turn in turns if turn <= one["step"]]
        found = {"turns": len(past)} | ({"first_turn": past[0], "last_turn": past[-1]} if past else {})
        told.append(one | {f"class-adversary_{name}": value for name, value in found.items()})
    return told


def soft(count):
    return [row(10 * i, 4.6 * 0.9**i, coefficient=-0.5) for i in range(1, count + 1)]


def drawn(monkeypatch, history, threshold=THRESHOLD):
    """The axes of the picture, by the first word of their titles."""
    kept = []
    monkeypatch.setattr("nearkin.report.canvas.to_png", lambda figure: kept.append(figure) or b"")
    draw_adversary(history, threshold=threshold)
    return {axes.get_title(loc="left").split()[0].rstrip(":"): axes for axes in kept[0].axes}


def title(axes):
    return axes.get_title(loc="left")


def texts(axes):
    return [text.get_text() for text in axes.texts]


def upright(axes):
    """Where vertical lines stand, behind the line of values."""
    return [line.get_xdata()[0] for line in axes.lines if len(set(line.get_xdata())) == 1 and len(line.get_xdata()) > 1]


@pytest.mark.parametrize("count", [1, 90])
@pytest.mark.parametrize(("rows", "threshold", "panels"), [(falling, THRESHOLD, 3), (soft, None, 2)])
def test_the_picture_is_a_retina_png_that_depends_on_nothing_else(count, rows, threshold, panels):
    png = draw_adversary(rows(count), threshold=threshold)
    assert png.startswith(SIGNATURE)
    image = Image.open(io.BytesIO(png))
    assert image.size == (2 * 720, 2 * (40 + panels * 165))
    assert (np.asarray(image.convert("L"))[:, [0, -1]] == 255).all()  # nothing is cut off at the sides
    assert draw_adversary(rows(count), threshold=threshold) == png


@pytest.mark.parametrize(
    "history",
    [
        [],
        [{"step": 1, "loss": 1.0}, {"step": 2, "val_MAP@R": 0.5}],
        [{"class-adversary_loss": 1.0}],
        [row(3, 1.0, coefficient=math.nan, loss=None, accuracy=math.inf)],
    ],
)
@pytest.mark.parametrize("threshold", [None, THRESHOLD])
def test_nothing_to_draw_gives_no_bytes_and_no_facts(history, threshold):
    assert draw_adversary(history, threshold=threshold) == b""
    assert adversary_facts(history) == {}


def test_other_rows_do_not_change_the_picture():
    mixed = [{"step": 5, "val_MAP@R": 0.9}, *falling(3), {"step": 50, "loss": 2.0}]
    assert draw_adversary(mixed, threshold=1.5) == draw_adversary(falling(3), threshold=1.5)


def test_panels_show_the_values(monkeypatch):
    history = falling(30)
    axes = drawn(monkeypatch, history)
    assert list(axes) == ["Coefficient", "Loss", "Accuracy"]
    for panel, key in zip(axes.values(), ("coefficient", "loss", "accuracy"), strict=True):
        np.testing.assert_allclose(panel.lines[0].get_xdata(), 10 * np.arange(1, 31))
        np.testing.assert_allclose(panel.lines[0].get_ydata(), [one[f"class-adversary_{key}"] for one in history])
        assert panel.get_shared_x_axes().joined(panel, axes["Accuracy"])


def test_both_sides_are_named_and_zero_is_in_the_middle(monkeypatch):
    axes = drawn(monkeypatch, falling(30))["Coefficient"]
    assert texts(axes) == ["above 0: confuses the classifier", "below 0: helps the classifier"]
    low, high = axes.get_ylim()
    assert low == -high
    reach = max(abs(value) for value in axes.lines[0].get_ydata())
    # The names lie beyond every value: the uppermost and lowest eighth belong to them.
    assert reach / high < 0.75
    assert [text.get_position()[1] > 0.5 for text in axes.texts] == [True, False]


@pytest.mark.parametrize("threshold", [0.01, 1.5, 9.0])
def test_the_threshold_is_a_line_in_sight(monkeypatch, threshold):
    axes = drawn(monkeypatch, falling(30), threshold)["Loss"]
    low, high = axes.get_ylim()
    assert low < threshold < high
    assert any(set(line.get_ydata()) == {threshold} and line.get_linestyle() == "--" for line in axes.lines)
    assert title(axes).endswith(f"threshold {threshold:g} (dashed)")


def test_the_change_of_sign_is_marked_in_every_panel_and_told(monkeypatch):
    axes = drawn(monkeypatch, counted(falling(30), 103))
    assert title(axes["Coefficient"]) == "Coefficient: from −0.495 to +0.432, changes its sign at step 103"
    assert all(upright(panel) == [103] for panel in axes.values())


def test_changes_of_sign_between_two_rows_count(monkeypatch):
    """Rows 50 steps apart of a coefficient that changes every few steps."""
    history = counted([row(50, 3.0), row(100, 3.0)], 20, 25, 77, 81)
    axes = drawn(monkeypatch, history)
    assert title(axes["Coefficient"]) == "Coefficient: from −0.453 to −0.453, 4 changes of sign"
    assert all(upright(panel) == [20, 81] for panel in axes.values())
    assert counted_sign_changes(history) == SignChanges(4, (20, 81), counted=True)
    assert counted_sign_changes(history[:1]) == SignChanges(2, (20, 25), counted=True)
    assert adversary_facts(history) == adversary_facts(history) | {
        "adversary's coefficient": "−0.453 throughout",
        "coefficient's changes of sign": "4, from step 20 to step 81",
    }


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_a_log_that_does_not_count_is_told_as_such(monkeypatch, turns):
    history = [row(10 * (i + 1), 1.5 + (-1) ** i) for i in range(turns + 1)]
    axes = drawn(monkeypatch, [*history, row(1000, 1.5 + (-1) ** turns)])
    assert title(axes["Coefficient"]).endswith(
        f", {turns or 'no'} change{'' if turns == 1 else 's'} of sign in the log"
    )
    assert upright(axes["Loss"]) == [20, 10 * (turns + 1)][: min(turns, 2)]


@pytest.mark.parametrize("reached", [1e-4, 30.0])
def test_an_accuracy_that_stays_is_drawn_within_0_and_100_percent(monkeypatch, reached):
    axes = drawn(monkeypatch, [row(10 * i, reached) for i in range(1, 21)])["Accuracy"]
    low, high = axes.get_ylim()
    assert all(0 <= tick <= 1 for tick in axes.get_yticks() if low <= tick <= high)


def test_a_constant_coefficient_without_a_threshold_is_told_in_words(monkeypatch):
    axes = drawn(monkeypatch, soft(20), None)
    assert list(axes) == ["Loss", "Accuracy"]
    assert texts(axes["Loss"]) == ["The coefficient is −0.500 throughout: the model helps the classifier."]
    assert "threshold" not in title(axes["Loss"])


@pytest.mark.parametrize(
    ("history", "threshold"),
    [
        (soft(20), THRESHOLD),  # adaptive, with a coefficient that happens to stay
        (falling(20), None),
        ([{key: value for key, value in one.items() if key != "class-adversary_loss"} for one in soft(5)], None),
    ],
)
def test_otherwise_the_coefficient_has_its_panel(monkeypatch, history, threshold):
    assert "Coefficient" in drawn(monkeypatch, history, threshold)


@pytest.mark.parametrize("value", [0.0, 1e-9, -1e-9])
def test_a_coefficient_of_nothing_is_drawn(monkeypatch, value):
    history = [row(i, 1.5, coefficient=value) for i in (1, 2, 3)]
    low, high = drawn(monkeypatch, history)["Coefficient"].get_ylim()
    assert low < 0 < high


def test_a_measure_without_values_has_no_panel(monkeypatch):
    assert list(drawn(monkeypatch, [row(1, 2.0, loss=math.nan), row(2, 1.0, loss=None)])) == ["Coefficient", "Accuracy"]


def test_a_single_row_is_seen(monkeypatch):
    for axes in drawn(monkeypatch, falling(1)).values():
        assert axes.lines[0].get_marker() == "o"
    assert axes.get_xlabel() == "step"


@given(st.lists(st.sampled_from([-0.3, 0.0, 0.4]), max_size=12))
def test_changes_of_sign_are_those_a_loop_finds(values):
    expected, last = [], 0.0
    for step, value in enumerate(values):
        if value * last < 0:
            expected.append(step)
        last = value or last
    assert sign_changes((np.arange(len(values)), np.array(values))).tolist() == expected


def test_the_facts_tell_both_ends_and_the_change_of_sign():
    assert adversary_facts([row(10, 4.0), row(20, 2.0), row(1030, 1.0), row(1040, 0.5)]) == {
        "adversary's coefficient": "−0.493 at first, +0.381 at last",
        "coefficient's changes of sign": "1 in the log, at step 1,030",
        "classifier's loss": "0.500 at the end",
        "classifier's accuracy": "60.7 % at the end",
    }
    assert list(adversary_facts(soft(3)).items())[:2] == [
        ("adversary's coefficient", "−0.500 throughout"),
        ("classifier's loss", "3.353 at the end"),
    ]
    assert adversary_facts(counted(falling(3)))["coefficient's changes of sign"] == "none"
    assert adversary_facts(falling(3))["coefficient's changes of sign"] == "none in the log"
    assert adversary_facts(counted(falling(30), 1003))["coefficient's changes of sign"] == "none"
    assert adversary_facts(counted(falling(300), 1003))["coefficient's changes of sign"] == "1, at step 1,003"
    many = [row(10 * i, 1.5 + (-1) ** i) for i in range(1, 8)]
    assert adversary_facts(many)["coefficient's changes of sign"] == "6 in the log, from step 20 to step 70"
    assert list(adversary_facts([row(1, 2.0, coefficient=None, accuracy=math.nan)])) == ["classifier's loss"]
