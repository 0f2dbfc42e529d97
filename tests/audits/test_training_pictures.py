"""The picture of clusters in a report: where margins grew, and a run whose clusters cannot be read."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nearkin.api import fit_run
from nearkin.audits import training_pictures
from nearkin.audits import training_pictures as module
from nearkin.audits.training_pictures import draw_contest, draw_watched_clusters, turning_loss
from nearkin.cli.audit import audit_run, write_audit
from nearkin.objectives import ObjectiveSection
from nearkin.recipe import load_recipe
from nearkin.spaces import Sphere
from nearkin.training import Run
from nearkin.training.clusters import Clusters


def seen(last):
    """Three looks at two classes, the last of them after so many steps."""
    steps = np.array([last - 2, last - 1, last])
    return Clusters(steps, ("a", "b"), np.ones((2, 2, 3)), np.ones((3, 2)), np.ones((2, 2)), np.ones(3), Sphere())


def marks(monkeypatch, last, loss, parameters):
    kept = []
    monkeypatch.setattr(training_pictures, "draw_clusters", lambda *_, **given: kept.append(given["marks"]) or b"png")
    draw_watched_clusters(seen(last), ObjectiveSection(loss=loss, parameters=parameters))
    return kept[0]


def test_marks_are_at_the_steps_of_the_recipe(monkeypatch):
    margins = load_recipe("plankton-triplet").objective.parameters
    assert marks(monkeypatch, 4000, "growing-triplet", margins) == {2000: "margin 1.3", 3000: "margin 1.5"}


@pytest.mark.parametrize("parameters", [{}, {"margins": None}])
def test_without_margins_they_are_those_of_the_loss(monkeypatch, parameters):
    expected = {500: "margin 1.3", 750: "margin 1.5"}
    assert marks(monkeypatch, 1500, "growing-triplet", parameters) == expected


@pytest.mark.parametrize(("last", "expected"), [(750, [500]), (751, [500, 750]), (500, [])])
def test_a_margin_that_never_held_has_no_mark(monkeypatch, last, expected):
    assert list(marks(monkeypatch, last, "growing-triplet", {})) == expected


def test_other_losses_have_none(monkeypatch):
    assert marks(monkeypatch, 1500, "triplet", {"margin": 0.2}) == {}


def test_a_run_that_did_not_watch_has_no_picture():
    assert draw_watched_clusters(None, ObjectiveSection(loss="growing-triplet")) == []


def test_damaged_clusters_are_left_out_of_a_report_that_says_so(photos, tiny, tmp_path):
    run = Run(tmp_path / "run")
    fit_run(photos, load_recipe("growing-triplet", [*tiny, "training.cluster_items=2"]), run, progress=False)
    result = audit_run(run, names=["retrieval"], progress=False)
    write_audit(run, result, run.report_file, run.audit_file)
    title, said = "<h2>Clusters during training", "left out: the run's clusters.npz is damaged"
    assert title in run.report_file.read_text()
    assert not any(said in note for note in result.notes)
    (run.path / "clusters.npz").write_text("nothing of the kind")
    write_audit(run, result, run.report_file, run.audit_file)
    assert title not in run.report_file.read_text()
    assert any(said in note for note in result.notes)
    assert run.audit_file.exists()


def objective(*terms):
    return ObjectiveSection(loss="contrastive", regularisers=[*terms])


def adversary(**parameters):
    return {"name": "class-adversary", "weight": 0.5, "parameters": parameters}


@pytest.mark.parametrize(
    ("section", "loss"),
    [
        (objective(adversary()), 1.5),
        (objective(adversary(threshold=2)), 2.0),
        (objective({"name": "koleo"}, adversary(kind="adaptive", threshold=0.5)), 0.5),
        (objective(adversary(kind="soft")), None),
        (objective({"name": "koleo"}), None),
        (objective(), None),
    ],
)
def test_the_turning_loss_is_that_of_an_adaptive_adversary(section, loss):
    assert turning_loss(section) == loss


@pytest.mark.parametrize(
    ("kind", "threshold", "said"), [("adaptive", 1.5, "dashed"), ("soft", None, "smoothed labels")]
)
def test_the_caption_is_of_the_kind(monkeypatch, kind, threshold, said):
    seen = []
    monkeypatch.setattr(module, "draw_adversary", lambda *given, **named: seen.append((given, named)) or b"png")
    history = [{"step": 1, "class-adversary_loss": math.log(9)}]
    figure = draw_contest(history, objective(adversary(kind=kind)))
    assert seen == [((history,), {"threshold": threshold})]
    assert figure.png == b"png"
    assert said in figure.caption
    assert ("oefficient" in figure.alt) == (kind == "adaptive")


def test_a_log_without_an_adversary_makes_no_picture():
    assert draw_contest([{"step": 1, "loss": 1.0}], objective()).png == b""


ADVERSARY = "objective.regularisers=[{name: class-adversary, weight: 0.5, parameters: {epoch_steps: 3}}]"


@pytest.mark.parametrize(("settings", "shown"), [([], False), ([ADVERSARY], True)])
def test_the_report_shows_an_adversary_only_where_there_was_one(photos, tiny, tmp_path, monkeypatch, settings, shown):
    monkeypatch.setattr("nearkin.audits.result.draw_subject", lambda _: [])  # slow, and drawn elsewhere
    run = Run(tmp_path / "run")
    fit_run(photos, load_recipe("contrastive", [*tiny, *settings]), run, progress=False)
    write_audit(run, audit_run(run, names=["retrieval"], progress=False), run.report_file, run.audit_file)
    page = run.report_file.read_text()
    assert "<h2>Training curves" in page
    parts = ("<h2>Class adversary", "<dt>adversary&#39;s coefficient", "<dt>classifier&#39;s accuracy")
    assert [part in page for part in parts] == [shown] * 3
    assert "in the log" not in page
