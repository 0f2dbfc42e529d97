"""What the page of one model says must follow from the ledger: statistics, verdicts, tables, and what is unfinished."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from nearkin.metrics import holm, verification_from_scores

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
SIZES = [30, 20, 50]


@pytest.fixture(scope="module")
def modules():
    sys.path.insert(0, str(BENCHMARKS))
    names = ("unified", "unified_parts", "unified_measures", "unified_statistics", "unified_claims", "unified_pages")
    yield {name: importlib.import_module(name) for name in names}
    sys.path.remove(str(BENCHMARKS))


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


def test_packing_keeps_every_bit(measures):
    for count in (1, 7, 8, 1001):
        hits = np.random.default_rng(count).random(count) < 0.4
        np.testing.assert_array_equal(measures.unpack(measures.pack(hits), count), hits)


@pytest.mark.parametrize("decimals", [6, 1], ids=["distinct scores", "ties"])
def test_equal_errors_are_those_of_the_metric(measures, decimals):
    rng = np.random.default_rng(0)
    same = rng.random(400) < 0.2
    scores = (rng.normal(size=400) + 1.2 * same).round(decimals)
    order = np.argsort(scores)[::-1]
    found = measures.equal_error(*measures._error_curve(scores[order], same[order]))
    assert found == pytest.approx(verification_from_scores(scores, same).values["EER"], abs=1e-12)


def test_resampled_speakers_count_as_often_as_they_were_drawn(measures):
    rng = np.random.default_rng(1)
    speakers = np.repeat(np.arange(5), 4)
    first, second = np.triu_indices(len(speakers), k=1)
    first_of, second_of = speakers[first], speakers[second]
    scores = rng.normal(size=len(first)) + 0.8 * (first_of == second_of)
    found = measures.resampled_errors(scores, first_of, second_of, 3)
    draws = np.random.default_rng(0)
    for value in found:
        weights = np.bincount(draws.integers(5, size=5), minlength=5)
        own = first_of == second_of
        times = np.where(own, weights[first_of], weights[first_of] * weights[second_of])
        repeated = verification_from_scores(np.repeat(scores, times), np.repeat(own, times), fpr=(1.0,))
        assert value == pytest.approx(repeated.values["EER"], abs=1e-12)


def test_parity_is_tested_against_the_margin(statistics, parts, measures):
    gaps = np.array([-0.004, 0.001, -0.002, 0.003])
    lines = []
    for seed, gap in enumerate(gaps):
        lines.append(line(measures, "cifar", parts.SOFTMAX, seed, values={"accuracy, softmax": 0.7}))
        lines.append(line(measures, "cifar", parts.LEARNED, seed, values={"accuracy, SIM": 0.7 + gap}))
    claim = statistics.Claim(
        "as good", "cifar", (parts.LEARNED, "accuracy, SIM"), (parts.SOFTMAX, "accuracy, softmax"), "as good"
    )
    (found,) = statistics.findings(lines, [claim])
    assert found.p == pytest.approx(stats.ttest_1samp(gaps, -statistics.MARGIN, alternative="greater").pvalue)
    assert found.verdict == statistics.HOLDS


@pytest.mark.parametrize(
    ("kind", "mean", "high", "corrected", "expected"),
    [
        ("higher", 0.1, 0.2, 0.01, "HOLDS"),
        ("higher", -0.1, 0.0, 0.01, "FAILS"),
        ("higher", 0.1, 0.2, 0.06, "OPEN"),
        ("lower", -0.1, 0.0, 0.01, "HOLDS"),
        ("lower", 0.1, 0.2, 0.01, "FAILS"),
        ("as good", -0.005, 0.001, 0.01, "HOLDS"),
        ("as good", -0.03, -0.01, 0.9, "FAILS"),
        ("as good", -0.03, 0.01, 0.9, "OPEN"),
    ],
)
def test_verdicts(statistics, kind, mean, high, corrected, expected):
    claim = statistics.Claim("", "cifar", ("a", "b"), ("c", "d"), kind)
    test = statistics.PairedTest(3, mean, mean - 1, high, 0.5)
    assert statistics.verdict(claim, test, corrected) == getattr(statistics, expected)


def test_claims_are_corrected_together_and_paired_by_domain_and_seed(statistics, pages, parts, measures):
    found = statistics.findings(ledger(parts, measures), pages.CLAIMS)
    assert [one.claim.part for one in found] == ["fashion", "cifar", "pacs", "speakers", "speakers"]
    assert [one.corrected for one in found] == pytest.approx(holm([one.p for one in found]))
    assert found[2].test.seeds == 12
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


@pytest.mark.parametrize("part", ["fashion", "cifar", "pacs", "speakers", "cub", "omniglot"])
def test_methods_of_a_part_differ_in_nothing_but_the_method(parts, part):
    case = parts.PARTS[part].cases[0]
    first, second = (parts.Cell(part, name, 0, case).recipe() for name in (parts.SOFTMAX, parts.LEARNED))
    assert first.data == second.data
    assert first.training == second.training
    assert first.model == second.model.model_copy(update={"similarity": None})


def test_ablations_come_last_and_have_three_seeds(parts):
    cells = list(parts.cells_of("fashion", {}))
    ablations = [cell.name in parts.ABLATIONS for cell in cells]
    assert ablations == sorted(ablations)
    assert {cell.seed for cell in cells if cell.name == parts.NO_PAIRS} == {0, 1, 2}
    assert {cell.seed for cell in cells if cell.name == parts.SOFTMAX} == {0, 1, 2, 3, 4}


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
    assert ("verifies better" in tables["claims"]) == (seeds > 1)
    assert ("ProtoNet" in tables["omniglot"]) == (seeds > 0)
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == ({"unified-classes.png", "unified-pacs.png", "unified-det.png"} if seeds else set())


def test_the_committed_tables_follow_from_the_committed_ledger(pages, unified, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    monkeypatch.setattr(pages, "IMAGES", tmp_path)
    lines = unified.read_ledger()
    assert len(lines) == len(unified.LEDGER.read_text(encoding="utf-8").splitlines())
    pages.write_pages(lines)
    capsys.readouterr()
    kept = {path.name: path.read_text(encoding="utf-8") for path in (BENCHMARKS / "unified").glob("*.md")}
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.md")} == kept


def test_the_page_asks_for_tables_and_pictures_that_exist():
    page = (ROOT / "docs" / "results" / "one-model.md").read_text(encoding="utf-8")
    asked = re.findall(r"<!-- generated: unified_(\w+) -->", page)
    made = {path.stem for path in (BENCHMARKS / "unified").glob("*.md")}
    assert set(asked) == made
    generate = (ROOT / "docs" / "generate.py").read_text(encoding="utf-8")
    assert all(f'"{name}"' in generate for name in asked)
