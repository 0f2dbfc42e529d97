"""What the page of one model says must follow from the ledger: statistics, verdicts, tables, and what is unfinished."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from nearkin.metrics import holm

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies"
SIZES = [30, 20, 50]


@pytest.fixture(scope="module")
def modules():
    names = {
        "unified": "studies.unified.run",
        "unified_parts": "studies.unified.parts",
        "unified_measures": "studies.unified.measures",
        "unified_statistics": "studies.unified.stats",
        "unified_claims": "studies.unified.claims",
        "unified_pages": "studies.unified.page",
    }
    return {name: importlib.import_module(module) for name, module in names.items()}


@pytest.fixture(scope="module")
def unified(modules):
    return modules["unified"]


@pytest.fixture(scope="module")
def parts(modules):
    return modules["unified_parts"]


@pytest.fixture(scope="module")
def measures(modules):
    return modules["unified_measures"]


@pytest.fixture(scope="module")
def statistics(modules):
    return modules["unified_statistics"]


@pytest.fixture(scope="module")
def pages(modules):
    return modules["unified_pages"]


def hits_of(share, seed):
    return np.random.default_rng(seed).random(sum(SIZES)) < share


def line(measures, part, cell, seed, case="", rate=None, shares=None, values=None):
    """A finished cell; `shares` are of right items by measure, `values` anything else."""
    right = {name: hits_of(share, [seed, len(cell), len(case)]) for name, share in (shares or {}).items()}
    found = {
        "part": part,
        "cell": cell,
        "case": case,
        "seed": seed,
        "seconds": 10.0,
        "best_step": 10,
        "parameters": 1000 + len(cell),
        "items": {"train": 300, "val": 30, "test": sum(SIZES)},
        "classes": 3,
        "values": {name: float(hits.mean()) for name, hits in right.items()} | (values or {}),
        "right": {name: measures.pack(hits) for name, hits in right.items()},
        "sizes": SIZES,
    }
    return found if rate is None else {**found, "rate": rate}


def ledger(parts, measures, seeds=3):
    """Something of every part."""
    lines = []
    for seed in range(seeds):
        both = {"accuracy, SIM": 0.8, "accuracy, DOL": 0.7}
        noise = np.random.default_rng(seed).normal(0, 0.01, 40)
        for part in ("fashion", "cifar"):
            lines += [
                line(measures, part, parts.SOFTMAX, seed, rate=1e-3, shares={"accuracy, softmax": 0.8}),
                line(measures, part, parts.LEARNED, seed, rate=1e-3, shares=both),
                line(measures, part, parts.NO_AUXILIARY, seed, rate=1e-3, shares={"accuracy, SIM": 0.5}),
            ]
        for domain in parts.DOMAINS:
            lines.append(line(measures, "pacs", parts.SOFTMAX, seed, domain, 1e-3, {"accuracy, softmax": 0.5}))
            lines.append(line(measures, "pacs", parts.LEARNED, seed, domain, 1e-3, {"accuracy, SIM": 0.9}))
        errors = {"EER, cosine": 0.2 + noise[0], "EER, SIM": 0.18 + noise[1], "EER, cosine + SIM": 0.1 + noise[2]}
        speakers = line(measures, "speakers", parts.LEARNED, seed, values=errors)
        rates = measures.FALSE_RATES
        speakers["det"] = {score: (1 - rates**0.3).tolist() for score in measures.SCORES}
        speakers["resampled"] = {name: (value + noise[:20]).tolist() for name, value in errors.items()}
        lines.append(speakers)
        lines.append(line(measures, "cub", parts.SOFTMAX, seed, shares={"Recall@1, cosine": 0.6}))
        lines.append(line(measures, "cub", parts.LEARNED, seed, shares={"Recall@1, SIM": 0.3}))
        few = {f"{way}-way {shot}-shot, {by}": 0.9 for way, shot in measures.SETTINGS for by in ("SIM", "cosine")}
        lines.append(line(measures, "omniglot", parts.LEARNED, seed, values=few))
    for cell, best in ((parts.SOFTMAX, 3e-4), (parts.LEARNED, 3e-3)):
        for rate in parts.RATES:
            validated = {"validation accuracy": 0.9 if rate == best else 0.8}
            lines.append(line(measures, "fashion", cell, parts.RATE_SEED, rate=rate, values=validated))
    return lines


def rows(table):
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


@pytest.mark.parametrize(
    ("gaps", "expected"), [((-0.004, 0.001, -0.002, 0.003), "HOLDS"), ((-0.004, -0.01, 0.0, -0.004), "OPEN")]
)
def test_parity_is_tested_against_the_margin(statistics, parts, measures, gaps, expected):
    gaps = np.array(gaps)
    lines = []
    for seed, gap in enumerate(gaps):
        lines.append(line(measures, "cifar", parts.SOFTMAX, seed, values={"accuracy, softmax": 0.7}))
        lines.append(line(measures, "cifar", parts.LEARNED, seed, values={"accuracy, SIM": 0.7 + gap}))
    claim = statistics.Claim(
        "as good", "cifar", (parts.LEARNED, "accuracy, SIM"), (parts.SOFTMAX, "accuracy, softmax"), "as good"
    )
    (found,) = statistics.findings(lines, [claim])
    assert found.p == pytest.approx(stats.ttest_1samp(gaps, -statistics.MARGIN).pvalue)
    assert (found.p < 0.05) == (found.test.low > -statistics.MARGIN)
    assert found.verdict == getattr(statistics, expected)


def test_claims_are_corrected_together_and_paired_by_seed_or_domain(statistics, pages, parts, measures):
    found = statistics.findings(ledger(parts, measures), pages.CLAIMS)
    assert [one.claim.part for one in found] == ["fashion", "cifar", "pacs", "speakers", "speakers"]
    assert [one.corrected for one in found] == pytest.approx(holm([one.p for one in found]))
    assert [one.test.seeds for one in found] == [3, 3, 4, 3, 3]
    cells = statistics.cells_of(ledger(parts, measures), "pacs")
    first, second = (
        [statistics.seed_means(cells, side, domain).mean() for domain in parts.DOMAINS]
        for side in (found[2].claim.first, found[2].claim.second)
    )
    assert found[2].p == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert found[2].verdict == statistics.HOLDS
    low, high = np.quantile(np.zeros(20), [0.025, 0.975]) + np.mean(
        [run["values"]["EER, cosine + SIM"] - run["values"]["EER, cosine"] for run in ledger(parts, measures)
         if run["part"] == "speakers"]
    )  # fmt: skip
    assert found[3].items == pytest.approx((low, high))


def test_the_interval_over_images_is_of_differences_averaged_over_seeds(statistics, parts, measures):
    lines = ledger(parts, measures)
    claim = statistics.Claim(
        "", "fashion", (parts.LEARNED, "accuracy, DOL"), (parts.SOFTMAX, "accuracy, softmax"), "higher"
    )
    (found,) = statistics.findings(lines, [claim])
    gaps = [
        hits_of(0.7, [seed, len(parts.LEARNED), 0]).astype(float) - hits_of(0.8, [seed, len(parts.SOFTMAX), 0])
        for seed in range(3)
    ]
    mean = np.mean(gaps, axis=0)
    half = 1.96 * stats.sem(mean)
    assert found.items == pytest.approx((mean.mean() - half, mean.mean() + half))
    assert np.mean(found.items) == pytest.approx(found.test.mean)


def test_episodes_are_asked_by_every_distance_and_of_softmax(statistics, pages, parts, measures):
    lines = ledger(parts, measures)
    for run in lines:
        if run["part"] == "omniglot":
            shift = 0.01 * run["seed"]
            run["episodes"] = {"5-way 1-shot, SIM - distance": [0.02 + shift, 0.01 + shift, 0.03 + shift]}
            run["values"] |= {"5-way 1-shot, distance": 0.88 - shift}
            lines = [*lines, {**run, "cell": parts.SOFTMAX}]
    found = {one.claim.words: one for one in statistics.findings(lines, pages.FURTHER) if one.claim.part == "omniglot"}
    assert found["SIM is better than distance, 5-way 1-shot"].items == pytest.approx((0.02, 0.04))
    assert found["SIM is better than cosine, 5-way 1-shot"].items is None
    assert found["SIM answers as well as softmax by distance, 5-way 1-shot"].test.mean == pytest.approx(0.03)


def test_seeds_are_told_by_name_where_they_differ(pages, statistics, parts, measures):
    lines = [run for run in ledger(parts, measures) if run["cell"] != parts.NO_AUXILIARY or run["seed"] == 0]
    cells = {"fashion": statistics.cells_of(lines, "fashion"), "cub": statistics.cells_of(lines, "cub")}
    assert [row[2] for row in rows(pages.runs_table(cells))[2:]] == ["3 (ablations 1)", "3"]


def test_seeds_that_lack_a_case_have_no_mean(statistics, parts, measures):
    lines = [run for run in ledger(parts, measures) if (run["case"], run["seed"]) != ("photo", 2)]
    cells = statistics.cells_of(lines, "pacs")
    assert len(statistics.seed_means(cells, (parts.LEARNED, "accuracy, SIM"))) == 2
    assert len(statistics.seed_means(cells, (parts.LEARNED, "accuracy, SIM"), "photo")) == 2
    assert len(statistics.seed_means(cells, (parts.LEARNED, "accuracy, SIM"), "sketch")) == 3


def test_models_that_choose_rates_are_in_no_mean(statistics, pages, parts, measures):
    lines = ledger(parts, measures)
    assert len(statistics.cells_of(lines, "fashion")[parts.SOFTMAX]) == 3
    _, _, first, second = rows(pages.rates_table(_keyed(parts, lines)))
    assert first == ["Fashion-MNIST", "softmax", "**90.0**", "80.0", "80.0"]
    assert second == ["Fashion-MNIST", "learned similarity", "80.0", "80.0", "**90.0**"]


def _keyed(parts, lines):
    """The lines with the digests of the recipes of now."""
    told = []
    for run in lines:
        cell = parts.Cell(run["part"], run["cell"], run["seed"], run["case"], run.get("rate"))
        told.append({**run, "recipe": cell.key()["recipe"]})
    return told


def test_ablations_learn_at_the_rate_of_the_whole_loss(unified, parts, measures):
    rates = unified.chosen_rates("fashion", _keyed(parts, ledger(parts, measures)))
    assert rates[parts.SOFTMAX] == 3e-4
    assert rates[parts.LEARNED] == rates[parts.NO_AUXILIARY] == rates[parts.NO_PAIRS] == 3e-3
    assert unified.chosen_rates("fashion", []) is None
    assert unified.chosen_rates("cub", []) == {}


def test_tables_give_means_with_student_intervals(pages, statistics, parts, measures):
    cells = statistics.cells_of(ledger(parts, measures), "fashion")
    head, _, *body = rows(pages.measures_table(cells))
    assert head == ["", "by", "seeds", "accuracy (%)"]
    assert [row[:3] for row in body] == [
        ["softmax", "softmax", "3"],
        ["learned similarity", "SIM", "3"],
        ["learned similarity", "DOL", "3"],
        ["without the auxiliary loss", "SIM", "3"],
    ]
    values = statistics.seed_means(cells, (parts.SOFTMAX, "accuracy, softmax"))
    half = stats.t.ppf(0.975, 2) * stats.sem(values)
    assert body[0][3] == f"{100 * values.mean():.1f} ± {100 * half:.1f}"


@pytest.mark.parametrize("seeds", [0, 1, 3])
def test_pages_of_an_unfinished_ledger(pages, parts, measures, monkeypatch, tmp_path, capsys, seeds):
    monkeypatch.setattr(pages, "FOLDER", tmp_path / "tables")
    monkeypatch.setattr(pages, "IMAGES", tmp_path)
    pages.write_pages(ledger(parts, measures, seeds) if seeds else [])
    capsys.readouterr()
    tables = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "tables").iterdir()}
    assert "nan" not in "".join(tables.values())
    assert ("verifies better" in tables["claims"]) == (seeds > 0)
    assert ("| 1 seed |" in tables["claims"]) == (seeds == 1)
    assert ("12 pairs" in tables["pacs_differences"]) == (seeds == 3)
    assert ("ProtoNet" in tables["omniglot"]) == (seeds > 0)
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == ({"unified-classes.png", "unified-pacs.png", "unified-det.png"} if seeds else set())


def test_the_committed_tables_follow_from_the_committed_ledger(pages, unified, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    for picture in ("classes_picture", "domains_picture", "det_picture"):  # drawn for short ledgers above
        monkeypatch.setattr(pages, picture, lambda *_: b"")
    lines = unified.read_ledger()
    assert len(lines) == len(unified.LEDGER.read_text(encoding="utf-8").splitlines())
    pages.write_pages(lines)
    capsys.readouterr()
    kept = {path.name: path.read_text(encoding="utf-8") for path in (STUDIES / "unified" / "tables").glob("*.md")}
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.md")} == kept


def test_the_page_asks_for_tables_and_pictures_that_exist():
    page = (ROOT / "docs" / "results" / "one-model.md").read_text(encoding="utf-8")
    asked = re.findall(r"<!-- generated: unified_(\w+) -->", page)
    made = {path.stem for path in (STUDIES / "unified" / "tables").glob("*.md")}
    assert set(asked) == made
    tables = (ROOT / "docs" / "generators" / "written.py").read_text(encoding="utf-8")
    assert all(f'"{name}"' in tables for name in asked)
