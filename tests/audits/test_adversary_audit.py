"""The report of a run with a class adversary shows what it did; that of any other run says nothing of it."""

import math

import pytest

from nearkin.api import fit_run
from nearkin.audits import adversary as module
from nearkin.audits.adversary import draw_contest, turning_loss
from nearkin.cli.auditing import audit_run, write_audit
from nearkin.objectives import ObjectiveSection
from nearkin.recipe import load_recipe
from nearkin.training import Run


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
