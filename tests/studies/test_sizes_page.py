"""What the page of sizes says must follow from its ledger."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies"


@pytest.fixture(scope="module")
def page():
    return importlib.import_module("studies.sizes.page")


@pytest.fixture(scope="module")
def cells():
    return [json.loads(line) for line in (STUDIES / "sizes" / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_page_is_what_the_ledger_says(page, cells):
    assert page.page_text(cells) == (ROOT / "docs" / "results" / "sizes.md").read_text(encoding="utf-8")


def test_every_cell_is_there_once(cells):
    keys = [(cell["loss"], cell["training"], cell["seed"]) for cell in cells]
    assert len(set(keys)) == len(keys) == 2 * 6 * 3
    assert {len(values) for cell in cells for values in cell["first"].values()} == {100}


def test_values_are_means_over_seeds(page, cells):
    mine = [c["PCA"]["16"] for c in cells if (c["loss"], c["training"]) == ("proxy-anchor", "plain")]
    found = page.summarise(cells)["proxy-anchor", "PCA", 16]
    np.testing.assert_allclose(found, np.mean(mine, axis=0))


@pytest.mark.parametrize(("gap", "word"), [(0.1, "ahead of"), (-0.1, "behind"), (0.0, "not surely apart")])
def test_the_verdict_follows_the_interval(page, gap, word):
    base = np.linspace(0, 0.5, 50)
    values = {("a", way, size): base for way in ("PCA", "trained prefixes") for size in (8, 16)}
    values["a", "PCA", 8] = base + gap
    assert page._verdict(values, ["a"], [8, 16]).startswith(f"With a, PCA is {word}")
