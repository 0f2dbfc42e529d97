"""The study of a learned similarity's forms: what it measures against the library, and whose trunk it takes."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nearkin.metrics import retrieval_metrics
from nearkin.models import Card, LearnedSpace, ModelSection, build_embedder
from nearkin.models.card import CardParts
from nearkin.spaces import Sphere

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def study():
    return importlib.import_module("studies.similarity_forms.run")


@pytest.fixture
def model():
    section = ModelSection(
        backbone="lenet", channels=1, size=28, dimension=6, space="euclidean", similarity={"form": "difference"}
    )
    return build_embedder(section, classes=["a", "b"]).eval()


def test_every_way_is_measured_as_by_a_search(study, model):
    rng = np.random.default_rng(0)
    points, labels = rng.normal(size=(40, 6)).astype(np.float32), np.repeat(list("abcdefgh"), 5)
    found = study.ways_compared(model, points, labels)
    for way in study.WAYS:
        space = Sphere() if way == "cosine" else LearnedSpace(model.base, model.network, way)
        expected = retrieval_metrics(points, labels, metrics=["MAP@R", "Recall@1"], space=space).values
        for measure, value in expected.items():
            assert found[f"{measure}, {way}"] == pytest.approx(value, abs=1e-6)
        assert 0 < found[f"EER, {way}"] < 1


def test_recipes_of_a_part_differ_in_what_their_cells_say(study):
    for name, part in study.PARTS.items():
        keys = [json.dumps(study.Cell(name, cell, 0, part.cases[0]).key(None)) for cell in part.cells]
        assert len(set(keys)) == len(keys)
        trained = [study.Cell(name, cell, 0).recipe() for cell in part.cells if cell != study.UNTRAINED]
        assert len({recipe.training.max_steps for recipe in trained}) == 1, "all are trained for as long"


def test_a_trunk_is_taken_with_its_own_validation_classes(study, model, tmp_path, patterns):
    names = patterns.classes
    parts = CardParts(train=names[:3], val=names[3:5], test=names[5:])
    model.card = Card(classes=parts)
    model.save(tmp_path / "model.safetensors")
    trunk = study.Trunk.read(tmp_path, "")
    assert trunk.overrides()[0] == "model.backbone=lenet"
    split = trunk.split(patterns)
    for rows, wanted in ((split.train, parts.train), (split.val, parts.val), (split.test, parts.test)):
        assert set(patterns.labels[rows]) == set(wanted)
    assert study.Cell("cub", study.DIFFERENCE, 0).recipe(trunk).model.weights == str(tmp_path)
    with pytest.raises(SystemExit, match="sketch"):
        study.Trunk.read(tmp_path, "sketch")
    model.card = replace(model.card, domains=CardParts(train=["photo"], val=["photo"], test=["sketch"]))
    model.save(tmp_path / "model.safetensors")
    assert study.Trunk.read(tmp_path, "sketch").model.card.domains.test == ["sketch"]
    with pytest.raises(SystemExit, match="photo"):
        study.Trunk.read(tmp_path, "photo")


def test_tables_are_those_of_the_ledger(study, tmp_path, monkeypatch):
    page = importlib.import_module("studies.similarity_forms.page")
    monkeypatch.setattr(page, "TABLES", tmp_path)
    page.write_tables(study.read_ledger())
    kept = ROOT / "studies" / "similarity_forms" / "tables"
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(file.name for file in kept.iterdir())
    for file in tmp_path.iterdir():
        assert file.read_text() == (kept / file.name).read_text(), "run studies/similarity_forms/run.py --pages"


SMALL = [
    *("model.backbone=lenet", "model.pretrained=false", "model.channels=1", "model.size=28", "model.head_start=random"),
    *("data.split=auto", "data.classes_per_batch=2", "data.per_class=2"),
    *("training.max_steps=2", "training.evaluate_every=1"),
]


@pytest.mark.parametrize("name", ["concatenation", "difference", "softmax"])
def test_a_cell_is_trained_and_judged_on_unseen_classes(study, patterns, monkeypatch, tmp_path, name):
    monkeypatch.setattr(study, "cache_directory", lambda: tmp_path)
    line = study.measured(patterns, study.Cell("cub", name, 0), None, SMALL)
    ways = ["cosine"] if name == "softmax" else study.WAYS
    assert {f"MAP@R, {way}" for way in ways} <= line["values"].keys()
    assert all(0 <= value <= 1 for value in line["values"].values())
    assert sum(line["items"].values()) == len(patterns)
    assert json.loads(json.dumps(line))["validation"]
