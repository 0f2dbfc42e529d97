"""The examples of the guides to confidence run as they are written, and what the guides name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nearkin import confidence
from nearkin.audits import suites
from nearkin.confidence import as_target, estimators, unknown_scores
from nearkin.metrics import CalibrationResult

DOCS = Path(__file__).parents[2] / "docs"
GUIDE, UNKNOWN = DOCS / "guide" / "confidence.md", DOCS / "guide" / "unknown.md"


def run(page):
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        if "runs/" in block:
            continue  # needs a model; tests/docs has one
        exec(compile(block, str(page), "exec"), names)
    return names


def test_the_examples_of_how_sure_is_it_run(capsys):
    names = run(GUIDE)
    assert names["result"].values["accuracy"] > 0.5
    assert set(names["result"].intervals) == set(names["result"].values)
    assert names["line"].rates["precision"] >= 0.95
    assert names["accepted"].mean() == pytest.approx(names["line"].rates["coverage"])
    assert names["door"].rates["false accept rate"] <= 0.05
    assert "wrong" in capsys.readouterr().out  # the refusal says how much data would do


def test_the_examples_of_i_dont_know_run():
    names = run(UNKNOWN)
    known = names["known"]
    assert names["answer"].known[known].mean() > 0.9
    assert names["answer"].known[~known].mean() < 0.5
    assert names["given"].contains(names["labels"][names["asked"]][known]).mean() > 0.85


def test_the_guides_name_every_estimator_score_and_measure():
    text = GUIDE.read_text(encoding="utf-8")
    for name in estimators:
        assert f"`{name}`" in text
        assert f"`{estimators.get(name).__name__}`" in text
    for name in ("accuracy", *CalibrationResult.lower_is_better):
        assert f"| `{name}` |" in text
    for name in unknown_scores:
        assert f"| `{name}`" in UNKNOWN.read_text(encoding="utf-8")


def test_the_targets_and_suites_of_the_guide_can_be_asked_for():
    text = GUIDE.read_text(encoding="utf-8")
    quoted = re.findall(r'^\| (`".*?) \|', text, flags=re.MULTILINE)
    targets = [target for cell in quoted for target in re.findall(r'`"(.*?)"`', cell)]
    assert len(targets) == 6
    for target in targets:
        as_target(target)
    for command in re.findall(r"^nearkin audit .*--suite (\S+)$", text, flags=re.MULTILINE):
        assert all(name in suites for name in command.split(","))


def test_everything_public_is_exported_and_documented():
    for name in confidence.__all__:
        assert getattr(confidence, name).__doc__, name
