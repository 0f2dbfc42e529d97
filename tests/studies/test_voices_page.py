"""What the page of voices says must follow from its ledger."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page():
    return importlib.import_module("studies.voices.page")


@pytest.fixture(scope="module")
def study():
    return importlib.import_module("studies.voices.run")


def cell(seed, **rates):
    measured = {
        key.replace("_", " ").replace(" SIM", "|SIM"): [rate, rate - 0.02, rate + 0.02] for key, rate in rates.items()
    }
    return {
        "cell": "learned similarity",
        "seed": seed,
        "steps": 10,
        "best_step": 5,
        "processor_seconds": 3.0,
        "EER": measured,
    }


def test_the_page_is_what_the_ledger_says(page, study):
    text = (ROOT / "docs" / "results" / "voices.md").read_text(encoding="utf-8")
    assert page.page_text(study.read_ledger()) == text


def test_every_cell_is_there_once(study):
    lines = [json.loads(line) for line in study.LEDGER.read_text(encoding="utf-8").splitlines()]
    keys = [(line["cell"], line["seed"], line["recipe"]) for line in lines]
    assert len(set(keys)) == len(keys)


def test_the_shipped_recipe_is_what_is_shown(study):
    assert study.CELLS[study.LEARNED] == ("speaker-verification", [])
    assert len({study.digest_of(name, 0) for name in study.CELLS}) == len(study.CELLS)


def test_rates_are_means_over_seeds_and_aims_are_judged(page):
    cells = [cell(0, all_SIM=0.10, same_digit_SIM=0.10), cell(1, all_SIM=0.16, same_digit_SIM=0.12)]
    cells = [one | {"EER": one["EER"] | {"three against three|SIM": [0.06, 0.05, 0.07]}} for one in cells]
    assert page.rate(cells, "all|SIM") == pytest.approx((0.13, 0.11, 0.15))
    told = page.verdict(cells).splitlines()
    assert "13.0 (11.0 to 15.0)" in told[0]
    assert [line.rsplit("**", 2)[1] for line in told] == ["reached", "missed", "reached"]
    assert page.verdict([]) == "Not measured yet."
