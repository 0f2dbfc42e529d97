"""What the book says of Gürbüz' thesis must follow from the kept ledgers."""

from __future__ import annotations

import importlib
import json
import math
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies"


@pytest.fixture(scope="module")
def imported():
    """Modules of `studies`."""
    return importlib.import_module


@pytest.fixture(scope="module")
def document(imported):
    return imported("studies.claims.generalize").DOCUMENT


@pytest.fixture(scope="module")
def claims(document):
    return {claim.key: claim for claim in document.claims}


@pytest.fixture(scope="module")
def verdict(imported):
    module = imported("studies.claims.claim")
    return lambda claim: module.verdict_of(claim.evidence())


def lines_of(name):
    return [json.loads(line) for line in (STUDIES / name).read_text(encoding="utf-8").splitlines()]


def class_means(book, recipe, kind="separate", metric="MAP@R"):
    """Mean over folds of each class, by loops."""
    cells = [
        line
        for line in lines_of(f"{'gsp' if book.startswith('gsp') else 'ccp'}/{book}/ledger.jsonl")
        if (line["recipe"], line["kind"]) == (recipe, kind)
    ]
    columns = zip(*(cell["per_class"][metric] for cell in cells), strict=True)
    return [sum(column) / len(column) for column in columns]


def test_keys_are_unique_and_plain(document, claims):
    assert document.slug == "generalize"
    assert len(claims) == len(document.claims)
    assert all(key == key.lower() and " " not in key and "+" not in key for key in claims)


def test_pictures_pages_and_scripts_exist(document):
    for claim in document.claims:
        assert not claim.picture or (ROOT / "docs" / "images" / claim.picture).exists(), claim.key
        assert not claim.page or (ROOT / "docs" / claim.page).exists(), claim.key
        assert not claim.command or (ROOT / claim.command.split()[1]).exists(), claim.key
        assert claim.setting or claim.evidence is None, claim.key


def test_evidence_is_the_same_again(document):
    again = next(claim for claim in document.claims if claim.key == "cub-contrastive-same-rate")
    assert again.evidence() == again.evidence()


def test_tables_of_the_print_have_a_number_in_every_column(document):
    for claim in document.claims:
        if claim.theirs is not None:
            assert all(len(row) == len(claim.theirs.head) for row in claim.theirs.rows), claim.key


@pytest.mark.parametrize(
    ("table", "method", "dataset", "numbers"),
    [
        ("TABLE_31", "C2+CCP-L", "CUB", ["69.73", "28.02", "62.39", "22.67"]),
        ("TABLE_31", "C1+XBM+L", "Cars196", ["83.68", "27.93", "72.13", "18.83"]),
        ("TABLE_31", "SoftTriplet-S/L", "SOP", ["78.48", "50.77", "74.66", "45.75"]),
        ("TABLE_51", "MS+GSP", "CUB", ["65.50 ± 0.33", "25.09 ± 0.21", "57.39 ± 0.15", "20.34 ± 0.22"]),
        ("TABLE_51", "C1+CCP+GSP", "In-shop", ["88.84 ± 0.11", "60.43 ± 0.12", "86.12 ± 0.12", "56.27 ± 0.17"]),
    ],
)
def test_columns_of_the_print_are_those_of_their_data_set(imported, table, method, dataset, numbers):
    module = imported("studies.claims.generalize_numbers")
    [row] = module.theirs(getattr(module, table), (method,), dataset).rows
    assert row == [method, *numbers]


@pytest.mark.parametrize(
    ("key", "book", "first", "second"),
    [
        ("cub-contrastive-same-rate", "cub", "contrastive-ccp", "contrastive"),
        ("cub-triplet-own-rate", "cub", "triplet-ccp, lr 1e-4", "triplet, lr 1e-4"),
        ("cub-contrastive-own-rate", "cub", "contrastive-ccp", "contrastive, lr 1e-4"),
        ("alternating-problems", "ablation", "ccp", "ccp, one problem"),
        ("components-loss", "gsp-cub", "contrastive + ZS", "contrastive"),
    ],
)
def test_gains_are_mean_differences_of_classes(claims, key, book, first, second):
    found = claims[key].evidence()
    for compared, kind in zip(found.compared, ("separate", "concatenated"), strict=True):
        pairs = zip(class_means(book, first, kind), class_means(book, second, kind), strict=True)
        differences = [100 * (ours - theirs) for ours, theirs in pairs]
        assert compared.value == pytest.approx(sum(differences) / len(differences))
        assert compared.above == 0
        assert compared.below is None


def test_own_rates_are_those_that_the_study_chose(imported):
    module, book = imported("studies.claims.generalize_ccp"), imported("studies.claims.kept_book").kept_book("cub")
    for row in json.loads((STUDIES / "ccp" / "cub" / "best.json").read_text(encoding="utf-8")):
        assert module.tuned(book, row["method"].partition(",")[0]) == row["method"]
        assert module.tuned(book, row["plain"].partition(",")[0]) == row["plain"]


def test_batch_sizes_compare_gains_of_both_methods(claims):
    plain, ours = (
        [b - a for a, b in zip(*(class_means("ablation", f"{kind}, batch {size}") for size in (16, 128)), strict=True)]
        for kind in ("plain", "ccp")
    )
    expected = 100 * sum(a - b for a, b in zip(plain, ours, strict=True)) / len(plain)
    assert claims["batch-size-robust"].evidence().compared[0].value == pytest.approx(expected)


def test_relative_gains_are_of_class_means(claims):
    first = claims["cub-relative-gains"].evidence().compared[0]
    relative = []
    for metric in ("MAP@R", "P@1"):
        ours, plain = (
            class_means("cub", name, metric=metric) for name in ("contrastive-cosine-ccp", "contrastive-cosine")
        )
        relative.append(100 * (sum(ours) / sum(plain) - 1))
    assert first.value == pytest.approx(relative[0] - relative[1])


def test_seeds_are_paired_by_students_t(claims):
    lines = lines_of("ccp_toy/ledger.jsonl")
    radius = {(line["variant"], line["seed"]): line["covering radius"] for line in lines}
    differences = [radius["CCP", seed] - radius["single proxy problem", seed] for seed in (0, 1, 2)]
    mean = sum(differences) / 3
    deviation = math.sqrt(sum((each - mean) ** 2 for each in differences) / 2)
    [found] = claims["toy-covering-radius"].evidence().compared
    assert found.value == pytest.approx(mean)
    assert found.high - mean == pytest.approx(4.302653 * deviation / math.sqrt(3))
    assert not found.shown
    assert not found.opposed


def test_more_steps_are_ratios_of_folds(claims):
    cells = [line for line in lines_of("ccp/cub/ledger.jsonl") if line["kind"] == "separate"]
    steps = {(line["recipe"], line["fold"]): line["steps"] for line in cells}
    folds = {fold for _, fold in steps}
    more = [steps["triplet-ccp", fold] / steps["triplet", fold] - 1 for fold in folds]
    found = next(each for each in claims["more-steps"].evidence().compared if each.what.startswith("triplet"))
    assert found.value == pytest.approx(100 * sum(more) / 4)
    assert (found.above, found.below) == (10, 35)


def test_another_ledger_of_seeds_changes_a_verdict(claims, verdict, imported, tmp_path, monkeypatch):
    claim = claims["toy-covering-radius"]
    assert verdict(claim) == "does not hold"
    lines = lines_of("ccp_toy/ledger.jsonl")
    single = {line["seed"]: line["covering radius"] for line in lines if line["variant"] == "single proxy problem"}
    for line in lines:
        if line["variant"] == "CCP":
            line["covering radius"] = single[line["seed"]] - 0.02 + 0.001 * line["seed"]
    (tmp_path / "ccp_toy.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    monkeypatch.setattr(
        imported("studies.claims.generalize_reading"), "located", lambda path: tmp_path / f"{path.split('/')[1]}.jsonl"
    )
    assert verdict(claim) == "holds"


def test_another_book_changes_a_verdict(claims, verdict, imported, tmp_path, monkeypatch):
    claim = claims["collage-both"]
    assert verdict(claim) == "does not hold"
    shutil.copytree(STUDIES / "gsp_collage" / "collage", tmp_path / "collage")
    path = tmp_path / "collage" / "ledger.jsonl"
    lines = lines_of("gsp_collage/collage/ledger.jsonl")
    [base] = [line for line in lines if line["recipe"] == "GAP"]
    for line in lines:
        if line["recipe"] == "GSP+ZS":
            line["per_class"]["MAP@R"] = [value + 0.01 for value in base["per_class"]["MAP@R"]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    kept = imported("studies.claims.kept_book").KeptBook
    monkeypatch.setattr(
        imported("studies.claims.generalize_reading"), "kept_book", lambda name: kept(name, tmp_path / name)
    )
    assert verdict(claim) == "holds"


def test_a_study_that_was_not_run_says_so(imported, tmp_path, monkeypatch):
    reading = imported("studies.claims.generalize_reading")
    monkeypatch.setattr(reading, "located", lambda path: tmp_path / path)
    command = "python studies/some/run.py"
    assert reading.if_kept("some.jsonl", 2, dict, command, "a minute") == {
        "why_not": f"not run: `{command}`, a minute."
    }
    (tmp_path / "some.jsonl").write_text("{}\n", encoding="utf-8")
    assert "why_not" in reading.if_kept("some.jsonl", 2, dict, command, "a minute")
    (tmp_path / "some.jsonl").write_text("{}\n{}\n", encoding="utf-8")
    assert reading.if_kept("some.jsonl", 2, dict, command, "a minute") == {"evidence": dict, "command": command}
