"""What the page on robustness says must follow from its ledger: tables, statistics, and recipes of now."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies"
PAGE = ROOT / "docs" / "results" / "robustness.md"


@pytest.fixture(scope="module")
def modules():
    names = {
        "robustness": "studies.robustness.run",
        "robustness_parts": "studies.robustness.parts",
        "robustness_measures": "studies.robustness.measures",
        "robustness_pages": "studies.robustness.page",
        "robustness_toy": "studies.robustness.toy",
    }
    return {name: importlib.import_module(module) for name, module in names.items()}


@pytest.fixture(scope="module")
def lines(modules):
    return modules["robustness"].read_ledger()


def test_every_line_is_of_a_recipe_of_now(lines):
    kept = (STUDIES / "robustness" / "ledger.jsonl").read_text().splitlines()
    assert len(lines) == len(kept)
    places = [(line["part"], line["cell"], line["seed"], line.get("norm")) for line in lines]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    "name", ["toy", "fashion", "masking", "claims", "trades", "cifar", "changes", "correlations", "cub", "runs"]
)
def test_tables_follow_from_the_ledger(modules, lines, name):
    made = getattr(modules["robustness_pages"], f"{name}_table")(lines)
    assert (STUDIES / "robustness" / "tables" / f"{name}.md").read_text(encoding="utf-8").strip() == made
    assert f"<!-- generated: robustness_{name} -->" in PAGE.read_text(encoding="utf-8")


def test_intervals_are_students(modules):
    told = modules["robustness_pages"]._percent({0: 0.5, 1: 0.6, 2: 0.55})
    values = np.array([50.0, 60.0, 55.0])
    half = stats.t.interval(0.95, 2, values.mean(), stats.sem(values))[1] - values.mean()
    assert told == f"{values.mean():.1f} ± {half:.1f}"


def test_the_worst_is_no_better_than_any(lines, modules):
    measures = modules["robustness_measures"]
    found = [line for line in lines if line["part"] in ("fashion", "trades")]
    assert found
    for line in found:
        for eps in measures.EPSILONS:
            for way in ("SIM", "DOL", "softmax"):
                worst = line["values"].get(f"{way}, {measures.WORST} {eps:g}")
                others = [
                    value for name, value in line["values"].items() if re.match(rf"{way}, .* {eps:g}$", name)
                ]  # fmt: skip
                assert worst is None or worst <= min(others) + 1e-9


def test_the_nearest_neighbour_holds_in_every_cell(lines):
    found = [line for line in lines if line["part"] == "toy"]
    assert len(found) == 4
    for line in found:
        assert line["VAA"] == [1.0] * len(line["epsilons"])
        assert line["global Voronoi robustness"] == 1.0
        assert line["SAA"] == sorted(line["SAA"], reverse=True)
        assert line["SAA"][-1] == 0


def test_the_toy_is_the_articles(modules):
    points, labels = modules["robustness_toy"].toy()
    gaps = np.linalg.norm(points[:, None].numpy() - points[None].numpy(), axis=2)
    assert gaps[gaps > 0].min() == 1.0
    assert dict(zip(*np.unique(labels, return_counts=True), strict=True)) == {"A": 5, "B": 3}


def test_the_benchmark_of_cells_is_kept(monkeypatch):
    kept = json.loads((ROOT / "benchmarks" / "vaa.json").read_text())
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    bars = importlib.import_module("vaa").BARS
    assert kept["bars"] == {name: list(bar) for name, bar in bars.items()}
    assert all(kept["figures"][name] >= bar for name, (_, _, bar) in bars.items())
