"""Claims of the papers on prototypes and on NED: evidence from the ledgers, figures against plain loops over them."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies"
T_95 = {1: 12.7062, 2: 4.30265, 4: 2.77645}
"""Student's t for 95 %, by degrees of freedom."""


@pytest.fixture(scope="module")
def modules():
    names = {
        "claims": "studies.claims.claim",
        "ned": "studies.ned.run",
        "ned_losses": "studies.ned_losses.run",
        "unified": "studies.unified.run",
        "robustness": "studies.robustness.run",
        "similarity_attacks": "studies.similarity_attacks.run",
        "seeds.prototypes": "studies.claims.prototypes",
        "seeds.prototypes_evidence": "studies.claims.prototypes_evidence",
        "seeds.confidence": "studies.claims.confidence",
        "seeds.confidence_evidence": "studies.claims.confidence_evidence",
    }
    return {name: importlib.import_module(module) for name, module in names.items()}


@pytest.fixture(scope="module")
def documents(modules):
    return [modules[f"seeds.{name}"].DOCUMENT for name in ("prototypes", "confidence")]


@pytest.fixture(scope="module")
def claims(documents):
    return {(document.slug, claim.key): claim for document in documents for claim in document.claims}


@pytest.fixture
def forgetful(modules):
    """Ledgers are read anew, before and after."""
    readers = [getattr(modules["seeds.prototypes_evidence"], name) for name in ("unified_lines", "attack_lines")]
    for reader in readers:
        reader.cache_clear()
    yield
    for reader in readers:
        reader.cache_clear()


def raw(name):
    return [json.loads(line) for line in (STUDIES / name / "ledger.jsonl").read_text().splitlines()]


def students(values):
    half = T_95[len(values) - 1] * stdev(values) / math.sqrt(len(values))
    return mean(values), mean(values) - half, mean(values) + half


def told(compared):
    return compared.value, compared.low, compared.high


def test_documents_are_named_and_keys_are_unique(documents):
    assert [document.slug for document in documents] == ["prototypes", "confidence"]
    for document in documents:
        keys = [claim.key for claim in document.claims]
        assert len(set(keys)) == len(keys)
        assert all(key == key.lower() and " " not in key for key in keys)


def test_claims_name_files_that_are_there(claims):
    for claim in claims.values():
        for folder, name in (("images", claim.picture), ("", claim.page)):
            assert not name or (ROOT / "docs" / folder / name).is_file(), claim.key
        scripts = [word for word in claim.command.split() if word.startswith(("benchmarks/", "studies/"))]
        assert all((ROOT / script).is_file() for script in scripts)


def test_numbers_of_the_documents_fill_their_tables(claims):
    for claim in claims.values():
        assert claim.theirs is None or all(len(row) == len(claim.theirs.head) for row in claim.theirs.rows), claim.key


@pytest.mark.parametrize(("key", "part"), [("matches-mnist", "fashion"), ("matches-cifar", "cifar")])
def test_classification_against_a_loop_over_the_ledger(claims, key, part):
    accuracy = {"softmax": {}, "learned similarity": {}}
    for line in raw("unified"):
        if line["part"] == part and line["seed"] != 100 and line["cell"] in accuracy:
            measure = "accuracy, softmax" if line["cell"] == "softmax" else "accuracy, SIM"
            accuracy[line["cell"]][line["seed"]] = 100 * line["values"][measure]
    gaps = [accuracy["learned similarity"][seed] - accuracy["softmax"][seed] for seed in sorted(accuracy["softmax"])]
    assert told(claims["prototypes", key].evidence().compared[0]) == pytest.approx(students(gaps), abs=1e-3)


@pytest.mark.parametrize(("key", "domain"), [("pacs-photo", "photo"), ("pacs-art", "art_painting")])
def test_single_domains_are_paired_by_seed(claims, key, domain):
    values = {}
    for line in raw("unified"):
        if line["part"] == "pacs" and line["case"] == domain and line["seed"] != 100:
            for way in ("SIM", "softmax"):
                if line["cell"] in ("softmax", "learned similarity") and f"accuracy, {way}" in line["values"]:
                    values[way, line["seed"]] = 100 * line["values"][f"accuracy, {way}"]
    gaps = [values["SIM", seed] - values["softmax", seed] for seed in (0, 1, 2)]
    assert told(claims["prototypes", key].evidence().compared[0]) == pytest.approx(students(gaps), abs=1e-3)


def test_what_adversarial_training_costs_is_a_difference_of_differences(claims):
    clean = {}
    for line in raw("robustness"):
        if line["part"] == "fashion":
            for name, value in line["values"].items():
                if name.endswith(", clean"):
                    clean[line["cell"], name.partition(", ")[0], line["seed"]] = 100 * value
    gaps = []
    for seed in (0, 1, 2):
        own = clean["learned similarity + AT", "SIM", seed] - clean["learned similarity", "SIM", seed]
        gaps.append(own - (clean["softmax + AT", "softmax", seed] - clean["softmax", "softmax", seed]))
    found = claims["prototypes", "defended-clean-mnist"].evidence().compared[0]
    assert told(found) == pytest.approx(students(gaps), abs=1e-3)


def test_ned_against_others_turns_the_ledgers_sign(claims):
    (cell,) = (line for line in raw("ned") if (line["data"], line["part"]) == ("omniglot", "clean"))
    found = claims["confidence", "scarce-ece"].evidence().compared
    for compared, vote in zip(found, ("kNN", "WkNN (Dudani)", "WkNN (Gou)"), strict=True):
        value, low, high = (-100 * number for number in cell["minus NED"][vote]["ECE"])
        assert told(compared) == pytest.approx((value, high, low))
        means = [100 * cell["means"][name]["ECE"][0] for name in ("NED", vote)]
        assert compared.value == pytest.approx(means[0] - means[1], abs=0.02)


def test_accuracy_at_k_against_a_loop_over_classes(claims):
    (line,) = (line for line in raw("ned_losses") if line["loss"] == "normalized-softmax")
    asked, hits = line["asked by class"], line["hits by class and k"]["kNN"]

    def gap(classes):
        total = sum(asked[one] for one in classes)
        return 100 * sum(hits["200"][one] - hits["10"][one] for one in classes) / total

    (compared,) = claims["confidence", "k-plain-falls"].evidence().compared
    assert compared.value == pytest.approx(gap(range(len(asked))))
    rng = np.random.default_rng(5)
    drawn = [gap(rng.integers(len(asked), size=len(asked))) for _ in range(1000)]
    assert (compared.low, compared.high) == pytest.approx(np.quantile(drawn, (0.025, 0.975)), abs=0.3)


def test_half_widths_add_up_where_draws_were_not_kept_together(modules):
    evidence = modules["seeds.confidence_evidence"]
    assert evidence.difference((0.5, 0.4, 0.7), (0.2, 0.1, 0.25)) == pytest.approx((0.3, 0.15, 0.6))


def test_a_spread_is_centred_on_what_was_found(modules):
    evidence = modules["seeds.confidence_evidence"]
    cell = {"asked by class": [10] * 40}
    hits = np.random.default_rng(0).integers(0, 10, (5, 40))
    value, low, high = evidence.resampled(
        cell, lambda w: np.ptp([evidence.share(cell, row, w) for row in hits], axis=0)
    )
    assert value == pytest.approx(np.ptp(hits.sum(axis=1)) / 400)
    assert low < value < high


def test_another_ledger_gives_another_verdict_of_ned(modules, claims, monkeypatch, tmp_path):
    claim, verdict_of = claims["confidence", "accuracy-least"], modules["claims"].verdict_of
    assert verdict_of(claim.evidence()) == "holds"
    lines = raw("ned")
    for line in lines:
        if (line["data"], line["part"]) == ("omniglot", "clean"):
            line["minus NED"]["1NN"]["accuracy"] = [-0.004, -0.006, -0.002]
    changed = tmp_path / "ned.jsonl"
    changed.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(modules["ned"], "LEDGER", changed)
    assert verdict_of(claim.evidence()) == "does not hold"


def test_another_ledger_gives_another_verdict_of_prototypes(modules, claims, forgetful, monkeypatch, tmp_path):
    claim, verdict_of = claims["prototypes", "matches-mnist"], modules["claims"].verdict_of
    assert verdict_of(claim.evidence()) == "holds"
    lines = raw("unified")
    for line in lines:
        if (line["part"], line["cell"]) == ("fashion", "learned similarity"):
            line["values"]["accuracy, SIM"] -= 0.02
    changed = tmp_path / "unified.jsonl"
    changed.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(modules["unified"], "LEDGER", changed)
    modules["seeds.prototypes_evidence"].unified_lines.cache_clear()
    assert verdict_of(claim.evidence()) == "does not hold"
