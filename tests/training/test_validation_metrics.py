"""Metrics that a recipe asks its validations for: refused when misspelt, logged, drawn, and of no effect on weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.splits import resolve_split
from nearkin.data.stores import ArrayStore
from nearkin.errors import NearkinError, RecipeError, UnknownNameError
from nearkin.metrics import clustering_metrics, pair_violations, retrieval_metrics
from nearkin.recipe import load_recipe
from nearkin.training import Run, train

ASKED = ["NMI", "Recall@1", "Recall@4", "kNN-Acc", "R-precision"]


def trained(dataset, tiny, path, *overrides, recipe="triplet"):
    recipe = load_recipe(recipe, [*tiny, *overrides])
    train(dataset, recipe, Run(path), source="patterns", cache_directory=path.parent / "cache", progress=False)
    return Run(path)


@pytest.fixture(scope="module")
def noisy():
    """Images of nothing but noise: neighbours are of any class, so that metrics differ from each other."""
    images = np.random.default_rng(0).integers(0, 256, (80, 16, 16, 3), dtype=np.uint8)
    names = [f"class{item // 8:02d}/{item % 8:02d}.png" for item in range(80)]
    return Dataset(Manifest.from_rows(names, [name[:7] for name in names]), ArrayStore(images, names), name="noisy")


@pytest.fixture(scope="module")
def asked(noisy, tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("asked") / "run"
    return trained(noisy, tiny, path, f"training.validation_metrics=[{', '.join(ASKED)}]", "audit.knn=3")


def test_every_validation_logs_what_was_asked_for(asked):
    rows = [row for row in asked.history() if "val_MAP@R" in row]
    assert [row["step"] for row in rows] == [0, 4, 8, 12]
    names = ["val_MAP@R", "val_P@1", *(f"val_{name}" for name in ASKED)]
    assert all([key for key in row if key.startswith("val_")] == names for row in rows)
    assert all(row["val_Recall@1"] == row["val_P@1"] <= row["val_Recall@4"] for row in rows)


def test_the_values_are_those_of_the_validation_classes(asked, noisy):
    recipe = asked.recipe()
    items = noisy.select(resolve_split(noisy.manifest, recipe.data, recipe.training.seed).val)
    embeddings = asked.model().encode(items, progress=False)
    expected = retrieval_metrics(embeddings, items.labels, knn=3).values | clustering_metrics(embeddings, items.labels)
    found = json.loads(asked.card_file.read_text())["validation"]
    assert found == pytest.approx({f"val_{name}": expected[name] for name in ["MAP@R", "P@1", *ASKED]}, abs=1e-6)
    usual = retrieval_metrics(embeddings, items.labels, knn=5).values  # what would be found without the recipe's knn
    assert abs(usual["kNN-Acc"] - expected["kNN-Acc"]) > 0.01


def test_without_them_training_is_the_same(asked, noisy, tiny, tmp_path):
    plain = trained(noisy, tiny, tmp_path / "run")
    kept = ("step", "loss", "lr", "val_MAP@R", "val_P@1")
    assert plain.history() == [{key: row[key] for key in kept if key in row} for row in asked.history()]
    ours, theirs = plain.model().state_dict(), asked.model().state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_metric_that_is_there_anyway_is_there_once(patterns, tiny, tmp_path):
    run = trained(patterns, tiny, tmp_path / "run", "training.validation_metrics=[P@1, AMI, AMI]")
    assert [key for key in run.history()[-1] if key.startswith("val_")] == ["val_MAP@R", "val_P@1", "val_AMI"]


def test_the_covering_radius_of_chance_constrained_training_stands_beside_them(patterns, tiny, tmp_path):
    few = "training.chance_constrained={proxies: 2, pool: 3}"
    run = trained(patterns, tiny, tmp_path / "run", few, "training.validation_metrics=[NMI]", recipe="contrastive-ccp")
    row = next(row for row in run.history() if "val_NMI" in row)
    assert 0 <= row["val_NMI"] <= 1
    assert np.isfinite(row["val_covering_radius"])
    assert 0 <= row["val_violation"] <= row["val_violation_bound"]


def test_violations_are_those_of_the_margins_that_were_asked_for(noisy, tiny, tmp_path):
    settings = ["training.chance_constrained={proxies: 2, pool: 3}", "training.max_steps=4"]
    run = trained(noisy, tiny, tmp_path / "run", *settings, "audit.pair_margins=[0.1, 0.7]", recipe="triplet-ccp")
    recipe = run.recipe()
    items = noisy.select(resolve_split(noisy.manifest, recipe.data, recipe.training.seed).val)
    expected = pair_violations(run.model().encode(items, progress=False), items.labels, pos_margin=0.1, neg_margin=0.7)
    best = json.loads(run.card_file.read_text())["validation"]
    assert best["val_violation"] == pytest.approx(expected.values["violation"], abs=1e-6)
    assert best["val_violation_bound"] == pytest.approx(expected.values["violation bound"], abs=1e-6)
    reached = [row for row in run.history() if "instance" in row]
    assert all(0 <= row["instance_violation"] <= row["instance_violation_bound"] for row in reached)
    plain = trained(noisy, tiny, tmp_path / "plain", *settings, recipe="triplet-ccp")
    assert not any("val_violation" in row for row in plain.history())  # a triplet loss draws no line between distances


@pytest.mark.parametrize(
    ("given", "error", "word"),
    [
        ("[NMI, Recal@4]", UnknownNameError, "Recall@4"),
        ("[nmi]", UnknownNameError, "NMI"),
        ("[beauty]", UnknownNameError, "beauty"),
        ("[Recall@0]", UnknownNameError, "Recall@0"),
        ("NMI", RecipeError, r"training\.validation_metrics"),
        ("[1]", RecipeError, r"training\.validation_metrics"),
        ("null", RecipeError, r"training\.validation_metrics"),
    ],
)
def test_a_wrong_one_is_told_when_the_recipe_is_read(given, error, word):
    with pytest.raises(error, match=word) as refused:
        load_recipe("triplet", [f"training.validation_metrics={given}"])
    assert isinstance(refused.value, NearkinError)
    assert "\n" not in str(refused.value)


def test_a_recipe_with_them_reads_back_equal(tmp_path):
    recipe = load_recipe("triplet", [f"training.validation_metrics=[{', '.join(ASKED)}]"])
    recipe.save(tmp_path / "again.yaml")
    assert load_recipe(tmp_path / "again.yaml") == recipe
    assert load_recipe("triplet").training.validation_metrics == []
