"""The study of fine-tuning: how its folds are cut, what its cells are, and that two processes share them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.sources import open_data
from nearkin.data.stores import ArrayStore
from nearkin.storage import WriterLock
from nearkin.training.fit import make_learner
from studies.fine_tune import candidates, prepare, run

LEDGER = Path(run.__file__).with_name("ledger.jsonl")


@pytest.fixture
def birds():
    """Twenty classes, the first ten of which train, three items of each, in no order."""
    rows = [(f"{label:03d}.Bird", item) for label in range(1, 21) for item in range(3)]
    rows = [rows[place] for place in np.random.default_rng(0).permutation(len(rows))]
    names = [f"{label}/{item}.png" for label, item in rows]
    manifest = Manifest.from_rows(
        names, [label for label, _ in rows], split=["train" if int(label[:3]) <= 10 else "test" for label, _ in rows]
    )
    return Dataset(manifest, ArrayStore(np.zeros((60, 4, 4, 3), np.uint8), names))


def test_folds_are_runs_of_the_sorted_training_classes(birds):
    seen = []
    for fold, size in zip(range(1, 5), (3, 3, 2, 2), strict=True):
        split = run.division(birds, fold)
        validates = sorted(set(birds.labels[split.val]))
        assert len(validates) == size
        seen += validates
        assert not set(birds.labels[split.train]) & set(validates)
        assert set(birds.labels[split.test]) == {f"{label:03d}.Bird" for label in range(11, 21)}
        assert sorted([*split.train, *split.val, *split.test]) == list(range(60))
    assert seen == [f"{label:03d}.Bird" for label in range(1, 11)]


@pytest.mark.parametrize("stage", candidates.STAGES)
def test_candidates_are_valid_recipes_and_differ(stage):
    made = candidates.STAGES[stage]()
    recipes = [candidate.load() for candidate in made]
    assert len({candidate.name for candidate in made}) == len({recipe.to_yaml() for recipe in recipes}) == len(made)
    assert all(recipe.training.max_steps > recipe.training.head_warmup_steps for recipe in recipes)
    for recipe in recipes:
        make_learner(recipe, "image", 75, validated=True, items=4400)  # refuses what could not be trained


def test_a_cell_that_another_process_has_is_left_to_it(birds, tmp_path, monkeypatch):
    done = []
    three = [candidates.Candidate(name, folds=(1, 2) if name == "b" else (1,)) for name in "abc"]
    monkeypatch.setattr(run, "STAGES", {"pilots": lambda: three})
    monkeypatch.setattr(run, "LEDGER", tmp_path / "ledger.jsonl")
    monkeypatch.setattr(
        run, "finish", lambda dataset, candidate, fold, folder: done.append((candidate.name, fold)) or {}
    )
    held = tmp_path / "pilots" / "b-fold1"
    held.mkdir(parents=True)
    with WriterLock(held).held():
        assert run.work("pilots", birds, tmp_path)
    assert done == [("a", 1), ("c", 1), ("b", 2)]
    assert run.work("pilots", birds, tmp_path)
    assert done[3:] == [("b", 1)]  # only what was left
    assert len(run.read_ledger()) == 4


def test_an_interrupted_cell_stops_the_work_and_is_not_in_the_ledger(birds, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "LEDGER", tmp_path / "ledger.jsonl")
    monkeypatch.setattr(run, "finish", lambda *_: None)
    assert not run.work("pilots", birds, tmp_path)
    assert run.read_ledger() == []


def test_prepared_images_open_as_the_published_data_set(tmp_path, monkeypatch):
    full = tmp_path / "full"
    monkeypatch.setattr(prepare, "IMAGES", 4)
    monkeypatch.setattr(prepare, "CLASSES", 2)
    for part, label, size in (
        ("train", "001.A", (500, 375)),
        ("test", "001.A", (200, 300)),
        ("train", "002.B", (300, 600)),
        ("test", "002.B", (256, 256)),
    ):
        (full / part / label).mkdir(parents=True)
        Image.new("RGB", size, "red").save(full / part / label / f"{label}_{part}.jpg")
    monkeypatch.setattr("sys.argv", ["prepare.py", str(full), str(tmp_path / "out")])
    assert prepare.main() == 0
    dataset = open_data("cub200", data_root=tmp_path / "out")
    sizes = {dataset.manifest.paths[place]: dataset.image(place).size for place in range(4)}
    assert sorted(sizes.values()) == [(200, 300), (256, 256), (256, 512), (341, 256)]
    assert sorted(dataset.classes) == ["001.A", "002.B"]
    parts = dict(zip(dataset.manifest.paths, dataset.manifest.column("published_split"), strict=True))
    assert all(part in path for path, part in parts.items())
    monkeypatch.setattr(prepare, "CLASSES", 3)
    assert prepare.main() == 1


@pytest.mark.skipif(not LEDGER.exists(), reason="no cell is finished yet")
def test_the_ledger_has_cells_of_the_study_once_and_validation_classes_only():
    rows = [json.loads(line) for line in LEDGER.read_text(encoding="utf-8").splitlines()]
    keys = [(row["stage"], row["candidate"], row["fold"]) for row in rows]
    assert len(set(keys)) == len(keys)
    known = {
        (stage, one.name, fold) for stage, made in candidates.STAGES.items() for one in made() for fold in one.folds
    }
    assert {key for key in keys if key[0] != "report"} <= known
    assert all((int(name[:3]) > 100) == (row["stage"] == "report") for row in rows for name in row["classes"])
