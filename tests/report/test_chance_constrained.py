"""Instances of a chance-constrained training: which rows count, and what is drawn of them."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

from nearkin.api import fit_run
from nearkin.audits.training_pictures import absent_snapshots, draw_course, draw_geometry
from nearkin.cli.audit import audit_run, write_audit
from nearkin.errors import DataError
from nearkin.recipe import load_recipe
from nearkin.report.canvas import Plane
from nearkin.report.chance_constrained import ProxyPanel, draw_instances, draw_proxies, evenly_spaced
from nearkin.report.values import LOWER
from nearkin.spaces import LipschitzBall, Sphere
from nearkin.training import Run
from nearkin.training.run import read_snapshots

VIOLATED = {f"Violated pairs {LOWER}"}
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


def drawn_instances(monkeypatch, history):
    """The axes of the picture, by the first words of their titles."""
    kept = []
    monkeypatch.setattr("nearkin.report.canvas.to_png", lambda figure: kept.append(figure) or b"")
    draw_instances(history)
    return {axes.get_title(loc="left").partition(":")[0]: axes for axes in kept[0].axes}


@pytest.mark.parametrize("count", [1, 90])
def test_the_instances_are_a_retina_png_that_depends_on_nothing_else(count):
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
def test_no_instances_give_no_bytes(history):
    assert draw_instances(history) == b""


def test_violated_pairs_and_their_bound_have_a_panel_where_they_were_measured(monkeypatch):
    history = [row(i, violation=0.1 / i, violation_bound=0.4 / i) for i in (1, 2, 4)]
    panel = drawn_instances(monkeypatch, history)[next(iter(VIOLATED))]
    bound, violation = (line.get_ydata() for line in panel.lines[:2])
    np.testing.assert_allclose(violation, [0.1, 0.05, 0.025])
    np.testing.assert_allclose(bound, 4 * violation)
    assert panel.get_ylim()[1] > 0.4
    assert "10.0 % to 2.5 %" in panel.get_title(loc="left")
    assert not drawn_instances(monkeypatch, [row(1), row(2)]).keys() & VIOLATED


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
    axes = drawn_instances(monkeypatch, history)
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
    assert list(drawn_instances(monkeypatch, history)) == ["Validation MAP@R", "Steps"]


def test_a_missing_value_leaves_a_gap_and_cannot_be_the_best(monkeypatch):
    axes = drawn_instances(monkeypatch, [row(1), row(2, **{"MAP@R": math.nan}), row(3)])
    assert np.isnan(axes["Validation MAP@R"].lines[0].get_ydata()).tolist() == [False, True, False]
    assert "instance 3" in axes["Validation MAP@R"].get_title(loc="left")


def test_whole_instances_are_ticked(monkeypatch):
    for count in (1, 2, 3, 50):
        axes = drawn_instances(monkeypatch, [row(i) for i in range(1, count + 1)])["Steps"]
        low, high = axes.get_xlim()
        ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert ticks
        assert all(tick == int(tick) and 1 <= tick <= count for tick in ticks)


def panels(count, *, d=2, classes=3, each=5, k=2, seed=0):
    rng = np.random.default_rng(seed)
    return [
        ProxyPanel(
            rng.normal(size=(classes * each, d)),
            np.repeat(np.arange(classes), each),
            rng.normal(size=(classes, k, d)),
            rng.normal(size=(classes, k, d)),
            f"instance {i + 1}",
            0.5,
            0.25,
        )
        for i in range(count)
    ]


def names(count=3):
    return [f"class {i}" for i in range(count)]


def figure_of(monkeypatch, *arguments):
    kept = []
    monkeypatch.setattr("nearkin.report.canvas.to_png", lambda figure: kept.append(figure) or b"")
    draw_proxies(*arguments)
    return kept[0]


def marks(axes):
    """Coordinates of boxes and of circles, each (m, 2), in the order of classes."""
    by_order = {5: [], 6: []}
    for collection in axes.collections:
        by_order.setdefault(collection.get_zorder(), []).append(np.asarray(collection.get_offsets()))
    return np.concatenate(by_order[6]), np.concatenate(by_order[5])


@pytest.mark.parametrize(("count", "d"), [(1, 1), (1, 7), (2, 2), (4, 7), (5, 1), (9, 2)])
def test_the_picture_is_a_retina_png_that_depends_on_nothing_else(count, d):
    png = draw_proxies(panels(count, d=d), names())
    assert png.startswith(SIGNATURE)
    assert Image.open(io.BytesIO(png)).width == 2 * 720
    assert draw_proxies(panels(count, d=d), names()) == png


def test_nothing_to_draw_gives_no_bytes():
    assert draw_proxies([], []) == b""
    empty = ProxyPanel(np.zeros((0, 2)), np.zeros(0), np.zeros((0, 4, 2)), np.zeros((0, 4, 2)))
    assert draw_proxies([empty], []) == b""


def test_two_dimensions_are_drawn_as_they_are(monkeypatch):
    given_panels = panels(2)
    figure = figure_of(monkeypatch, given_panels, names())
    for axes, panel in zip(figure.axes, given_panels, strict=True):
        boxes, circles = marks(axes)
        np.testing.assert_allclose(boxes, panel.converged.reshape(-1, 2))
        np.testing.assert_allclose(circles, panel.upcoming.reshape(-1, 2))


def test_the_plane_is_that_of_the_principal_components_of_all_points(monkeypatch):
    from sklearn.decomposition import PCA

    given_panels = panels(3, d=6)
    machine = PCA(2, svd_solver="full").fit(np.concatenate([panel.points for panel in given_panels]))
    figure = figure_of(monkeypatch, given_panels, names())
    for axes, panel in zip(figure.axes, given_panels, strict=True):
        boxes, _ = marks(axes)
        expected = machine.transform(panel.converged.reshape(-1, 6))
        np.testing.assert_allclose(np.abs(boxes), np.abs(expected), atol=1e-9)


@given(st.integers(3, 12), st.integers(1, 20), st.integers(0, 99))
def test_a_plane_never_lengthens_a_distance(d, n, seed):
    points = np.random.default_rng(seed).normal(size=(n, d))
    flat = Plane(points)(points)
    before = np.linalg.norm(points[:, None] - points[None], axis=-1)
    after = np.linalg.norm(flat[:, None] - flat[None], axis=-1)
    assert flat.shape == (n, 2)
    assert (after <= before + 1e-9).all()


@pytest.mark.parametrize("d", [2, 5])
def test_all_panels_have_one_square_frame_that_holds_everything(monkeypatch, d):
    given_panels = panels(4, d=d)
    given_panels[2] = replace(given_panels[2], upcoming=9 * given_panels[2].upcoming)
    figure = figure_of(monkeypatch, given_panels, names())
    frames = {(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes}
    assert len(frames) == 1
    (left, right), (low, high) = frames.pop()
    assert right - left == pytest.approx(high - low)
    for axes in figure.axes:
        offsets = np.concatenate([np.asarray(c.get_offsets()).reshape(-1, 2) for c in axes.collections])
        assert ((offsets > (left, low)) & (offsets < (right, high))).all()


def test_points_that_all_coincide_are_drawn():
    same = [replace(p, **{k: 0 * getattr(p, k) for k in ("points", "converged", "upcoming")}) for p in panels(2, d=4)]
    assert draw_proxies(same, names()).startswith(SIGNATURE)


def test_headings_tell_the_instance_and_what_is_known(monkeypatch):
    first, second = panels(2)
    figure = figure_of(monkeypatch, [first, replace(second, map_at_r=np.nan)], names())
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["instance 1", "instance 2"]
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["MAP@R 50.0 %, radius 0.250", "radius 0.250"]


def test_the_legend_explains_box_and_circle_and_names_the_classes(monkeypatch):
    def words(given_panels, classes):
        figure = figure_of(monkeypatch, given_panels, classes)
        return [text.get_text() for legend in figure.legends for text in legend.get_texts()]

    assert words(panels(1), names()) == ["converged proxies", "next proxies (k-center)", *names()]
    without = replace(panels(1)[0], upcoming=np.zeros((3, 0, 2)))
    assert words([without], names()) == ["converged proxies", *names()]


def test_ten_classes_have_ten_colours_and_more_are_grey(monkeypatch):
    figure = figure_of(monkeypatch, panels(1, classes=13), names(13))
    boxes, _ = marks(figure.axes[0])
    assert len(boxes) == 2 * 10
    colours = {tuple(c.get_facecolor()[0]) for c in figure.axes[0].collections if c.get_zorder() == 6}
    assert len(colours) == 10
    assert figure.legends[1].get_texts()[-1].get_text() == "3 more"


@given(st.integers(0, 500), st.integers(2, 9))
def test_evenly_spaced_keeps_both_ends(count, most):
    chosen = evenly_spaced(count, most)
    assert len(chosen) == min(count, most)
    assert chosen == sorted(set(chosen))
    if count:
        assert chosen[0] == 0
        assert chosen[-1] == count - 1
    if count > 1:
        gaps = np.diff(chosen)
        assert gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"points": np.zeros(15)}, "points"),
        ({"points": np.full((15, 2), np.nan)}, "points"),
        ({"points": "abc"}, "numbers"),
        ({"labels": np.zeros(3)}, "labels"),
        ({"labels": np.full(15, 3)}, "classes"),
        ({"labels": np.full(15, -1)}, "classes"),
        ({"converged": np.zeros((2, 4, 2))}, "converged"),
        ({"upcoming": np.zeros((3, 4, 5))}, "upcoming"),
        ({"upcoming": np.full((3, 1, 2), np.inf)}, "upcoming"),
    ],
)
def test_what_does_not_fit_together_is_told(change, match):
    with pytest.raises(DataError, match=match):
        draw_proxies([replace(panels(1)[0], **change)], names())


def test_panels_of_several_dimensions_are_told():
    with pytest.raises(DataError, match="dimension"):
        draw_proxies([*panels(1, d=2), *panels(1, d=3)], names())


def snapshots(count, d=4):
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "instance": torch.tensor(number),
            "points": 3 * torch.randn(12, d, generator=generator),
            "labels": torch.tensor([2, 5, 7]).repeat(4),
            "classes": torch.tensor([2, 5, 7]),
            "converged": 3 * torch.randn(3, 2, d, generator=generator),
            "next": 3 * torch.randn(3, 2, d, generator=generator),
        }
        for number in range(1, count + 1)
    ]


@pytest.mark.parametrize("space", [Sphere(), LipschitzBall()])
def test_snapshots_are_drawn_in_the_space_of_the_model(monkeypatch, space):
    taken = snapshots(8, d=2)
    seen = []
    monkeypatch.setattr("nearkin.audits.training_pictures.draw_proxies", lambda *given: seen.append(given) or b"png")
    history = [{"step": 9, "instance": i, "instance_MAP@R": i / 10, "instance_covering_radius": 1 / i} for i in (1, 8)]
    figure = draw_geometry(taken, history, space, [f"bird {i}" for i in range(7)])
    assert figure.png == b"png"
    drawn, classes = seen[0]
    assert classes == ["bird 2", "bird 5", "7"]
    assert [panel.title for panel in drawn] == [f"instance {i}" for i in (1, 2, 4, 5, 7, 8)]
    assert (drawn[-1].map_at_r, drawn[-1].radius) == (0.8, 1 / 8)
    assert np.isnan(drawn[1].radius)
    assert drawn[0].labels.tolist() == [0, 1, 2] * 4
    np.testing.assert_allclose(drawn[-1].converged, space.project(taken[-1]["converged"]).numpy())
    assert np.linalg.norm(drawn[0].points, axis=1).max() <= 1 + 1e-6


def test_snapshots_make_a_picture_and_none_make_none():
    assert draw_geometry(snapshots(3), [], Sphere(), [str(i) for i in range(9)]).png.startswith(SIGNATURE)
    assert draw_geometry([], [], Sphere(), []).png == b""
    assert draw_course([{"step": 1, "loss": 1.0}]).png == b""


def test_a_panel_is_called_by_its_instance_whatever_is_missing(monkeypatch):
    history = [{"step": 9, "instance": i, "instance_MAP@R": i / 10} for i in (1, 2, 3, 4)]
    seen = []
    monkeypatch.setattr("nearkin.audits.training_pictures.draw_proxies", lambda *given: seen.append(given) or b"png")
    figure = draw_geometry(snapshots(4)[1::2], history, Sphere(), [])
    assert [(panel.title, panel.map_at_r) for panel in seen[0][0]] == [("instance 2", 0.2), ("instance 4", 0.4)]
    assert "MAP@R and radius above a panel are those of the validation classes" in figure.caption
    assert absent_snapshots(snapshots(4)[1::2], history) == [1, 3]
    assert absent_snapshots(snapshots(4), history[:2]) == []


def written(folder, **changes):
    """Three snapshots in a folder, the second one with changes."""
    folder.mkdir()
    for number, tensors in enumerate(snapshots(3), start=1):
        del tensors["instance"]
        changed = tensors | (changes if number == 2 else {})
        save_file(
            {name: value for name, value in changed.items() if value is not None},
            folder / f"{number:04d}.safetensors",
        )
    return folder


def numbers(folder):
    return [int(snapshot["instance"]) for snapshot in read_snapshots(folder)]


def test_snapshots_are_read_in_order_and_other_files_left_alone(tmp_path):
    folder = written(tmp_path / "instances")
    (folder / "0003.safetensors").rename(folder / "10000.safetensors")
    (folder / "notes.safetensors").write_text("mine")
    assert numbers(folder) == [1, 2, 10000]
    assert torch.equal(read_snapshots(folder)[0]["points"], snapshots(1)[0]["points"])
    assert read_snapshots(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"points": None},
        {"points": torch.zeros(12)},
        {"points": torch.full((12, 4), torch.nan)},
        {"labels": torch.zeros(3)},
        {"labels": torch.full((12,), 3)},
        {"classes": torch.zeros(())},
        {"converged": torch.zeros(3, 2, 5)},
        {"next": torch.zeros(2, 2, 4)},
        {"next": torch.full((3, 2, 4), torch.inf)},
    ],
)
def test_a_snapshot_that_does_not_hold_what_it_should_is_left_out(changes, tmp_path):
    assert numbers(written(tmp_path / "instances", **changes)) == [1, 3]


@pytest.mark.parametrize("damage", [b"", b"not a snapshot", None])
def test_a_damaged_snapshot_is_left_out(damage, tmp_path):
    file = written(tmp_path / "instances") / "0001.safetensors"
    file.write_bytes(file.read_bytes()[:-40] if damage is None else damage)
    assert numbers(file.parent) == [2, 3]
    file.unlink()
    file.mkdir()
    assert numbers(file.parent) == [2, 3]


@pytest.mark.parametrize(("schedule", "shown"), [("plain", False), ("chance-constrained", True)])
def test_the_report_of_a_chance_constrained_run_shows_both_pictures(photos, tiny, tmp_path, schedule, shown):
    settings = [
        f"training.schedule={schedule}",
        *(["training.chance_constrained={proxies: 2, pool: 3, patience: 1}"] if shown else []),
        "training.max_steps=6",
        "training.evaluate_every=1",
        "training.patience=null",
    ]
    run = Run(tmp_path / "run")
    fit_run(photos, load_recipe("contrastive", [*tiny, *settings]), run, progress=False)
    assert bool(run.instances()) == shown
    result = audit_run(run, progress=False)
    write_audit(run, result, run.report_file, run.audit_file)
    page = run.report_file.read_text()
    assert [f"<h2>{title}" in page for title in ("Training curves", "Instances", "Proxies")] == [True, shown, shown]
    assert not any("leaves out" in note for note in result.notes)
    if shown:
        audit_with_damaged_snapshots(run)
        audit_that_cannot_be_drawn(run)


def audit_with_damaged_snapshots(run):
    """It is written all the same, and says what is missing."""
    first, *others = sorted(run.instances_folder.iterdir())
    first.write_bytes(first.read_bytes()[:100])
    result = audit_run(run, progress=False)
    write_audit(run, result, run.report_file, run.audit_file)
    said = "The picture of the proxies leaves out instance 1: missing or damaged in instances/."
    assert said in result.notes
    assert said in run.report_file.read_text()
    for file in others:
        file.unlink()
    write_audit(run, result, run.report_file, run.audit_file)
    assert "<h2>Proxies" not in run.report_file.read_text()


def audit_that_cannot_be_drawn(run):
    """It leaves what was there."""
    result = audit_run(run, progress=False)
    result.values["MAP@R"] = 0.123
    before = run.audit_file.read_text(), run.report_file.read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nearkin.audits.training_pictures.draw_geometry", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_audit(run, result, run.report_file, run.audit_file)
    assert (run.audit_file.read_text(), run.report_file.read_text()) == before
