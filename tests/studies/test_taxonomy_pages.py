"""What the pages say of class hierarchies must follow from the ledger: tests, tables, and what is not finished yet."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from nearkin.metrics import holm

STUDIES = Path(__file__).parents[2] / "studies"
MEASURES = ("top-1", "top-5", "AHD@1", "AHD@5", "HP@5", "severity", "HS@50", "HS@250", "AHS@250")
CORRELATIONS = ("MC proxies", "MC prototypes", "MC proxies, with diagonal", "MC prototypes, with diagonal")
CELLS = ("softmax", "NormFace, standard", "ProxyDR, standard", "ProxyDR, dynamic", "ProxyDR, s = 7.899", "CORR, MDS")


@pytest.fixture(scope="module")
def pages():
    return importlib.import_module("studies.taxonomy.page")


@pytest.fixture(scope="module")
def statistics(pages):
    return importlib.import_module("studies.taxonomy.stats")


def line(cell, seed, task="cifar", level=0.0):
    rng = np.random.default_rng([seed, len(cell), sum(map(ord, cell))])
    scale = {"scale": 6.0} if "dynamic" in cell else {}
    return {
        "task": task,
        "cell": cell,
        "seed": seed,
        "seconds": 60.0,
        "items": {"train": 320, "val": 10, "test": 20},
        "classes": 5,
        "values": {name: level + 0.5 + 0.1 * float(rng.random()) for name in (*MEASURES, *CORRELATIONS)},
        "curves": [{"step": step, "val_accuracy": 0.5, "MC_proxies": 0.2, **scale} for step in (10, 20)],
    }


def ledger(seeds=3, cells=CELLS):
    return [line(cell, seed) for seed in range(seeds) for cell in cells]


def rows(table):
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


def test_a_paired_test_is_that_of_scipy(statistics):
    rng = np.random.default_rng(0)
    first, second = rng.normal(1, 1, 6), rng.normal(0, 1, 6)
    found = statistics.paired_t(dict(enumerate(first)), dict(enumerate(second)))
    expected = stats.ttest_rel(first, second)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_only_shared_seeds_are_paired(statistics):
    found = statistics.paired_t({0: 1.0, 1: 3.0, 2: 100.0}, {1: 1.0, 0: 0.5, 7: 9.0})
    assert (found.seeds, found.mean) == (2, pytest.approx(1.25))
    assert statistics.paired_t({0: 1.0}, {0: 0.5}) is None


@pytest.mark.parametrize(("shift", "p"), [(0.0, 1.0), (0.5, 0.0)])
def test_equal_differences_have_the_p_of_the_limit(statistics, shift, p):
    assert statistics.paired_t({0: 1.0 + shift, 1: 2.0 + shift}, {0: 1.0, 1: 2.0}).p == p


def test_a_family_is_corrected_together(statistics):
    cells = statistics.cells_of(ledger(), "cifar")
    pairs = [("ProxyDR, standard", "NormFace, standard"), ("ProxyDR, dynamic", "ProxyDR, standard")]
    tests = statistics.family(cells, [*pairs, ("ProxyDR, EMA", "NormFace, EMA")], ("MC proxies", "MC prototypes"))
    assert list(tests) == pairs
    flat = [test for found in tests.values() for test in found.values()]
    assert [test.corrected for test in flat] == pytest.approx(holm([test.p for test in flat]))


def test_the_last_line_of_a_cell_and_seed_counts(statistics):
    lines = [*ledger(), line("softmax", 1, level=1.0), line("softmax", 1, task="omniglot", level=2.0)]
    values = statistics.seed_values(statistics.cells_of(lines, "cifar")["softmax"], "top-1")
    assert ((values > 1.0) == [False, True, False]).all()


def test_tables_give_means_with_student_intervals(pages, statistics):
    cells = statistics.cells_of(ledger(), "cifar")
    head, _, *body = rows(pages.measures_table(cells, ("top-1", "AHD@5")))
    assert head == ["model", "seeds", "top-1 (%)", "AHD@5 ↓"]
    assert [row[0] for row in body] == [
        "softmax",
        "NormFace, standard",
        "ProxyDR, standard",
        "ProxyDR, s = 7.899",
        "ProxyDR, dynamic",
        "CORR, MDS",
    ]
    values = statistics.seed_values(cells["softmax"], "AHD@5")
    low, high = stats.t.interval(0.95, 2, values.mean(), stats.sem(values))
    assert body[0][3] == f"{values.mean():.3f} ± {(high - low) / 2:.3f}"


def test_a_single_seed_has_no_interval(pages, statistics):
    cells = statistics.cells_of(ledger(seeds=1), "cifar")
    assert "±" not in pages.measures_table(cells, MEASURES)
    assert pages.tests_table(cells, pages.contrasts(cells), CORRELATIONS) == "Not measured yet."


def test_ranks_leave_out_softmax_and_controls(pages, statistics):
    cells = statistics.cells_of(ledger(), "cifar")
    runs = [
        run
        for name in ("NormFace, standard", "ProxyDR, standard", "ProxyDR, dynamic", "CORR, MDS")
        for run in cells[name].values()
    ]
    expected = stats.spearmanr(*([run["values"][name] for run in runs] for name in ("HP@5", "top-1"))).statistic
    head, _, *body = rows(pages.ranks_table(cells, {}))
    (found,) = [row for row in body if row[0] == "HP@5 (%)"]
    assert head[0] == "12 runs"
    assert found[2].strip("*") == f"{expected:+.2f}"


def test_models_and_controls_look_the_same_in_bars_and_curves(pages, statistics, monkeypatch):
    cells = statistics.cells_of(ledger(2, (*CELLS, "NormFace, s = 6.2")), "cifar")
    bars, options = [], {}
    monkeypatch.setattr(pages, "draw_bars", lambda given, columns: bars.extend(given) or b"")
    monkeypatch.setattr(pages, "draw_metric_curves", lambda series, **given: options.update(given) or b"")
    pages.bars_picture(cells, ["top-1"])
    pages.curves_picture(cells, "cifar")
    controls = {bar.name: bar.option for bar in bars if "s =" in bar.name}
    assert controls == {"NormFace, s = 6.2": "s =", "ProxyDR, s = 7.899": "s ="}
    models = list(dict.fromkeys(bar.model for bar in bars))
    assert options["alike"]["ProxyDR, dynamic"] == models.index("ProxyDR")
    assert options["alike"]["NormFace, standard"] == models.index("NormFace")


@pytest.mark.parametrize(
    "lines", [[], ledger(1, CELLS[:1]), ledger(2, CELLS[:3])], ids=["nothing", "one cell", "two seeds"]
)
def test_pages_of_an_unfinished_ledger(pages, monkeypatch, tmp_path, capsys, lines):
    monkeypatch.setattr(pages, "FOLDER", tmp_path / "tables")
    monkeypatch.setattr(pages, "IMAGES", tmp_path)
    pages.write_pages(lines)
    capsys.readouterr()
    tables = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "tables").iterdir()}
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert "spaces" in tables
    assert ("softmax" in tables["cifar"]) == bool(lines)
    assert "nan" not in "".join(tables.values())
    wanted = {"accuracy", "correlation", "informed"} if lines else set()
    wanted |= {"curves"} if len(lines) > 1 else set()
    assert pictures == {f"taxonomy-cifar-{name}.png" for name in wanted}


def test_the_committed_tables_follow_from_the_committed_ledger(pages, tmp_path, monkeypatch):
    taxonomy = importlib.import_module("studies.taxonomy.run")
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    for picture in ("bars_picture", "curves_picture"):  # drawn for short ledgers above
        monkeypatch.setattr(pages, picture, lambda *_: b"")
    lines = taxonomy.read_ledger()
    assert len([line for line in lines if line["task"] not in ("start", "options")]) == 116
    pages.write_pages(lines)
    kept = {path.name: path.read_text() for path in (STUDIES / "taxonomy" / "tables").glob("*.md")}
    assert {path.name: path.read_text() for path in tmp_path.glob("*.md")} == kept
