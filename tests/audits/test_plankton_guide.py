"""The guide to open sets of classes: its Python runs on a small ZooScan folder, and its tables read the ledger."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nearkin as nk
from nearkin.errors import DataError
from nearkin.metrics import classification

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = DOCS / "guide" / "plankton.md"
MANY, FEW = 14, 5
TAXA = {
    "Calanoida": MANY,
    "Oncaeidae": MANY,
    "bubble": MANY,
    "detritus": MANY,
    "Aglaura": FEW,
    "badfocus__artefact": FEW,
}


def blocks():
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A folder as it is published, and what runs the first block on it with other numbers."""
    rng = np.random.default_rng(0)
    root = tmp_path / "data" / "ZooScanNet"
    for taxon, count in TAXA.items():
        (root / "imgs" / taxon).mkdir(parents=True)
        pattern = rng.integers(0, 256, (16, 16))
        for item in range(count):
            pixels = np.clip(pattern + rng.normal(0, 30, (16, 16)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / "imgs" / taxon / f"{taxon}{item}.png")
    monkeypatch.setenv("NEARKIN_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)

    def run(numbers):
        code = blocks()[0]
        assert code.count("500, 100, 1000") == 1
        names = {}
        exec(compile(code.replace("500, 100, 1000", numbers), str(GUIDE), "exec"), names)
        return names | {"folder": tmp_path, "root": root}

    return run


@pytest.fixture
def tables(published):
    return published("10, 4, 8")


def test_most_may_be_all_and_the_next_command_is_printed(published, capsys):
    tables = published("10, 4, None")
    learn = nk.open_data(tables["root"] / "learn.csv")
    counts = dict(zip(*np.unique(learn.labels, return_counts=True), strict=True))
    assert counts == {**dict.fromkeys(tables["trained"], MANY - 4), **dict.fromkeys(tables["unseen"], 4)}
    assert f"\nnearkin train {tables['root'] / 'learn.csv'} --recipe plankton.yaml" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"learn\.csv"):  # as the page says
        published("10, 4, None")


def test_large_classes_train_and_artefacts_and_small_ones_do_not(tables):
    assert tables["trained"] == ["Calanoida", "Oncaeidae", "bubble"]
    assert tables["unseen"] == ["Aglaura", "badfocus__artefact", "detritus"]
    learn, seen = (nk.open_data(tables["root"] / name) for name in ("learn.csv", "seen.csv"))
    assert dict(zip(*np.unique(seen.labels, return_counts=True), strict=True)) == dict.fromkeys(tables["trained"], 4)
    counts = dict(zip(*np.unique(learn.labels, return_counts=True), strict=True))
    assert counts == {**dict.fromkeys(tables["trained"], 8), **dict.fromkeys(tables["unseen"], 4)}
    assert not set(learn.manifest.paths) & set(seen.manifest.paths)


def test_its_recipe_trains_on_them_and_both_audits_can_be_had(tables, tiny):
    changes = [change for change in tiny if not change.startswith("data.split=fraction")]
    changes = [change for change in changes if "test_classes" not in change and "val_classes" not in change]
    small = [
        *changes,
        "model.channels=1",
        "data.classes_per_batch=3",
        "objective.parameters.margins=[[0, 1.0], [6, 1.5]]",
    ]
    run = tables["folder"] / "run"
    nk.fit(tables["root"] / "learn.csv", "plankton.yaml", out=run, overrides=small, progress=False)
    model = nk.load(run)
    assert model.card["classes"] == {"train": tables["trained"], "val": [], "test": tables["unseen"]}
    unseen = nk.audit(model, tables["root"] / "learn.csv", suites=["classification"], progress=False)
    assert set(unseen.per_class["macro F1, centroid"]) == set(tables["unseen"])
    seen = nk.audit(model, tables["root"] / "seen.csv", suites=["classification"], progress=False)
    assert seen.subject.seen == dict.fromkeys(tables["trained"], "train")


def test_the_example_with_embeddings_runs(capsys, monkeypatch):
    monkeypatch.setattr("nearkin.metrics.classification_metrics", classification.classification_metrics, raising=False)
    exec(compile(blocks()[1], str(GUIDE), "exec"), {})
    assert "Confusion(true=" in capsys.readouterr().out


def test_the_page_names_what_there_is():
    text = GUIDE.read_text(encoding="utf-8")
    for key in ("cluster_radius", "centroid_drift", "centroid_accuracy", "audit.classification_k", "plankton-triplet"):
        assert key in text
    assert re.findall(r"<!-- generated: (\w+) -->", text) == ["plankton", "plankton_confusions"]


def test_its_tables_are_those_of_the_ledger(monkeypatch):
    specification = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    generate = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(generate)

    def cell(value, recipe="new"):
        part = {
            "classes": 100,
            "values": {"macro F1, centroid": value, "accuracy, centroid": value + 0.01},
            "untrained": {"macro F1, centroid": 0.5, "accuracy, centroid": 0.52},
            "F1": {"centroid": {"001.Black_tern": value}},
            "confusions": [["001.Black_tern", "002.Common_tern", 0.3]],
        }
        return {"seed": 0, "recipe": recipe, "seen": part, "unseen": part | {"confusions": []}}

    cells = json.loads(json.dumps([cell(0.1, "old"), cell(0.6), cell(0.7)]))
    monkeypatch.setattr("generators.studies.ledger", lambda name: cells)
    page = generate.on_page_markdown("<!-- generated: plankton -->\n\n<!-- generated: plankton_confusions -->")
    assert "| seen, 100 | centroid | 65.0 (60.0 to 70.0) | 50.0 | 66.0 (61.0 to 71.0) |" in page
    assert "| Black tern for Common tern | 30 % |  |  |" in page
