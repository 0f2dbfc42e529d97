"""What the page of the best recipe says must follow from its ledger, and its recipes be those that were chosen."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from nearkin.recipe import load_recipe

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies"


@pytest.fixture(scope="module")
def modules():
    return importlib.import_module("studies.best.page"), importlib.import_module("studies.best.candidates")


@pytest.fixture(scope="module")
def rows():
    return [json.loads(line) for line in (STUDIES / "best" / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_page_is_what_the_ledger_says(modules, rows):
    page, _ = modules
    assert page.page_text(rows) == (ROOT / "docs" / "results" / "best.md").read_text(encoding="utf-8")


def test_every_cell_is_there_once(modules, rows):
    _, candidates = modules
    keys = [(row["study"], row["candidate"], row["fold"]) for row in rows]
    assert len(set(keys)) == len(keys)
    for study, make in candidates.STUDIES.items():
        wanted = {(study, candidate.name, fold) for candidate in make() for fold in candidate.folds}
        assert {key for key in keys if key[0] == study} == wanted


def test_validation_never_sees_a_test_class(rows):
    chosen = {name for row in rows if row["study"] != "report" for name in row["classes"]}
    judged = {name for row in rows if row["study"] == "report" for name in row["classes"]}
    assert len(chosen) == len(judged) == 100
    assert not chosen & judged


def test_means_and_differences_are_those_of_a_plain_loop(modules, rows):
    page, _ = modules
    folds = [row for row in rows if row["study"] == "report" and row["candidate"] == "best" and row["fold"] in range(5)]
    together = next(row for row in rows if row["candidate"] == "best" and row["fold"] == page.TOGETHER)
    total, gain = [], []
    for name in together["classes"]:
        one = sum(row["classes"][name] for row in folds) / len(folds)
        total.append(100 * one)
        gain.append(100 * (together["classes"][name] - one))
    single = page.per_class(rows, "report", "best", page.FOLDS)
    assert page.over_classes(single)[0] == pytest.approx(np.mean(total))
    mean, low, high = page.difference(page.per_class(rows, "report", "best", (page.TOGETHER,)), single)
    assert mean == pytest.approx(np.mean(gain))
    assert low < mean < high


def test_fixed_sentences_of_the_page_are_true(modules, rows):
    page, _ = modules
    for folds, published in ((page.FOLDS, page.SEED_SEPARATE), ((page.TOGETHER,), page.SEED_CONCATENATED)):
        assert page.over_classes(page.per_class(rows, "report", "best", folds))[0] < published


def test_the_best_recipe_is_the_candidate_that_validation_chose_but_for_its_length(modules, rows):
    """Longer trainings of it validated better and better; the recipe goes on to 720 steps."""
    _, candidates = modules
    mine = {row["candidate"]: row["MAP@R"] for row in rows if row["study"] == "upper"}
    first = max(mine, key=mine.__getitem__)
    (chosen,) = (each for each in candidates.upper() if each.name == first)
    asked = chosen.load().model_dump()
    recipe = load_recipe("best", candidates.CUB).model_dump()
    asked["training"] |= {key: recipe["training"][key] for key in ("max_steps", "evaluate_every")}
    assert {**asked, "name": None} == {**recipe, "name": None}


def test_the_frozen_recipe_is_the_candidate_that_validation_chose(modules, rows):
    _, candidates = modules
    mine = {each.name: [] for each in candidates.head()}
    for row in rows:
        if row["study"] == "head":
            mine[row["candidate"]].append(row["MAP@R"])
    short = {name: values for name, values in mine.items() if "512" not in name}
    first = max(short, key=lambda name: np.mean(short[name]))
    (chosen,) = (each for each in candidates.head() if each.name == first)
    assert {**chosen.load().model_dump(), "name": None} == {
        **load_recipe("best-frozen", candidates.CUB).model_dump(),
        "name": None,
    }
