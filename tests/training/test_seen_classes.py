"""Training on all classes: accuracy chooses the weights, the tree is watched, and proxies are kept with the model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from nearkin.audits.subject import subject_of_model
from nearkin.data.hierarchy import Hierarchy
from nearkin.data.splits import resolve_split
from nearkin.errors import DataError, NearkinError, RecipeError, RunError
from nearkin.metrics.hierarchy import class_prototypes
from nearkin.protocol.candidates import divide
from nearkin.recipe import load_recipe
from nearkin.spaces import Sphere
from nearkin.training import Run, train
from nearkin.training.loop import Loop

TREE = {
    "even": {"low": ["class00", "class02"], "high": ["class04", "class06", "class08"]},
    "odd": {"low": ["class01", "class03"], "high": ["class05", "class07"], "highest": ["class09"]},
}
SEEN = ["data.split=items", "data.val_items=0.25", "data.test_items=0.25"]


@pytest.fixture
def tree(tmp_path):
    path = tmp_path / "tree.json"
    path.write_text(json.dumps(TREE))
    return path


def trained(patterns, recipe, path):
    return train(patterns, recipe, Run(path), source="patterns", cache_directory=path.parent, progress=False)


@pytest.fixture
def run(patterns, tiny, tree, tmp_path):
    recipe = load_recipe("proxy-dr", [*tiny, *SEEN, f"data.hierarchy={tree}", "training.hierarchy_items=3"])
    return recipe, trained(patterns, recipe, tmp_path / "run"), Run(tmp_path / "run")


def test_accuracy_is_measured_by_the_proxies_and_chooses_the_weights(patterns, run):
    recipe, result, kept = run
    split = resolve_split(patterns.manifest, recipe.data, recipe.training.seed)
    part = patterns.select(split.val)
    points = torch.from_numpy(result.embedder.encode(part, progress=False))
    proxies = torch.from_numpy(kept.class_vectors().proxies)
    nearest = torch.cdist(points, proxies).argmin(dim=1).numpy()
    accuracy = float((np.array(patterns.classes)[nearest] == part.labels).mean())
    rows = [row for row in kept.history() if "val_accuracy" in row]
    assert result.embedder.card["validation"]["val_accuracy"] == pytest.approx(accuracy)
    assert accuracy == max(row["val_accuracy"] for row in rows)
    assert result.state.best_step == next(row["step"] for row in rows if row["val_accuracy"] == accuracy)
    assert result.embedder.card["selected_on"] == "other items of the same classes"


def test_the_proxies_that_are_kept_are_those_of_the_best_weights(run):
    _, result, kept = run
    vectors = kept.class_vectors()
    assert vectors.names == tuple(f"class{number:02d}" for number in range(10))
    assert np.allclose(np.linalg.norm(vectors.proxies, axis=1), 1, atol=1e-5)
    best = next(row for row in kept.history() if row["step"] == result.state.best_step and "MC_proxies" in row)
    chords = Sphere().distance(torch.from_numpy(vectors.proxies), torch.from_numpy(vectors.proxies)).numpy()
    known = Hierarchy.from_nested(TREE).distances(vectors.names)
    assert best["MC_proxies"] == pytest.approx(correlation(known, chords), abs=1e-4)


def correlation(first, second):
    """By a loop over classes: Spearman of each row without the class itself, averaged as Fisher's z."""
    others = [np.delete(np.arange(len(first)), row) for row in range(len(first))]
    found = [spearmanr(first[row, rest], second[row, rest]).statistic for row, rest in enumerate(others)]
    return np.tanh(np.arctanh(np.array(found)).mean())


def test_prototypes_of_all_training_items_give_the_logged_correlation(patterns, tiny, tree, tmp_path, monkeypatch):
    monkeypatch.setattr(Loop, "_validate_start", lambda self, known: None)  # so that the last weights are kept
    more = [*SEEN, "data.test_items=0", f"data.hierarchy={tree}", "training.hierarchy_items=99"]
    recipe = load_recipe("normface", [*tiny, *more, "training.max_steps=4"])
    result = trained(patterns, recipe, tmp_path / "run")
    split = resolve_split(patterns.manifest, recipe.data, recipe.training.seed)
    part = patterns.select(split.train)
    names, points = class_prototypes(result.embedder.encode(part, progress=False), part.labels)
    between = Sphere().distance(torch.from_numpy(points), torch.from_numpy(points)).numpy()
    (logged,) = [row["MC_prototypes"] for row in Run(tmp_path / "run").history() if "MC_prototypes" in row]
    assert logged == pytest.approx(correlation(Hierarchy.from_nested(TREE).distances(names), between), abs=1e-4)


def test_the_audit_looks_at_the_test_items_and_knows_the_training_ones(patterns, run, tmp_path):
    recipe, result, _ = run
    subject = subject_of_model(result.embedder, patterns, cache_directory=tmp_path, baseline=False, progress=False)
    split = resolve_split(patterns.manifest, recipe.data, recipe.training.seed)
    assert subject.labels.tolist() == patterns.labels[split.test].tolist()
    embeddings, labels = subject.known()
    assert labels.tolist() == patterns.labels[split.train].tolist()
    assert np.allclose(embeddings, result.embedder.encode(patterns.select(split.train), progress=False), atol=1e-5)
    assert any("class" in note for note in subject.notes)
    assert result.embedder.card["hierarchy"] == Hierarchy.from_nested(TREE).to_newick()


def test_a_pair_loss_is_still_chosen_by_retrieval(patterns, tiny, tmp_path):
    result = trained(patterns, load_recipe("triplet", [*tiny, *SEEN]), tmp_path / "run")
    assert "val_accuracy" not in result.embedder.card["validation"]
    assert Run(tmp_path / "run").class_vectors() is None


def test_a_tree_that_lacks_a_class_is_refused_before_anything_is_written(patterns, tiny, tmp_path):
    (tmp_path / "short.json").write_text(json.dumps({"even": ["class00", "class02"], "odd": ["class01"]}))
    recipe = load_recipe("normface", [*tiny, *SEEN, f"data.hierarchy={tmp_path / 'short.json'}"])
    with pytest.raises(DataError, match="class03"):
        trained(patterns, recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["corr", "hxe"])
def test_a_loss_of_trees_without_a_tree_says_what_to_set(name, patterns, tiny, tmp_path):
    with pytest.raises(RecipeError, match=r"data\.hierarchy"):
        trained(patterns, load_recipe(name, [*tiny, *SEEN]), tmp_path / "run")


def test_protocols_refuse_seen_classes(patterns, tiny):
    with pytest.raises(RecipeError, match=r"data\.split"):
        divide(patterns, load_recipe("normface", [*tiny, *SEEN]).data, "fair", 2)


def test_damaged_proxies_are_told(run):
    _, _, kept = run
    (kept.path / "classes.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RunError, match=r"classes\.safetensors"):
        kept.class_vectors()


def test_a_distortion_needs_proxies_that_learn(patterns, tiny, tree, tmp_path):
    term = "objective.regularisers=[{name: distortion}]"
    with pytest.raises(NearkinError, match="proxies"):
        trained(patterns, load_recipe("triplet", [*tiny, *SEEN, f"data.hierarchy={tree}", term]), tmp_path / "run")
    result = trained(patterns, load_recipe("normface", [*tiny, *SEEN, f"data.hierarchy={tree}", term]), tmp_path / "ok")
    assert result.state.step == 12


def test_one_validation_item_a_class_is_enough_to_classify_but_not_to_retrieve(patterns, tiny, tmp_path):
    more = [*SEEN, "data.val_items=0.01"]
    result = trained(patterns, load_recipe("proxy-dr", [*tiny, *more]), tmp_path / "run")
    assert list(result.embedder.card["validation"]) == ["val_accuracy"]
    with pytest.raises(DataError, match=r"data\.val_items"):
        trained(patterns, load_recipe("triplet", [*tiny, *more]), tmp_path / "other")


@pytest.mark.parametrize("name", ["hxe", "normface"])
def test_a_run_is_not_resumed_with_another_tree(name, patterns, tiny, tree, tmp_path):
    recipe = load_recipe(name, [*tiny, *SEEN, f"data.hierarchy={tree}"])
    trained(patterns, recipe, tmp_path / "run")
    card = (tmp_path / "run" / "card.json").read_text()
    tree.write_text(json.dumps({"all": sorted(f"class{number:02d}" for number in range(10))}))
    with pytest.raises(RunError, match="tree"):
        train(
            patterns,
            recipe,
            Run(tmp_path / "run"),
            source="patterns",
            cache_directory=tmp_path,
            resume=True,
            progress=False,
        )
    assert (tmp_path / "run" / "card.json").read_text() == card
