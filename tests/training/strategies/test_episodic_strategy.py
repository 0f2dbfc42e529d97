"""Training by episodes: what a batch is, what selects the weights, what is recorded, and that it leaves no trace."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from nearkin.data.samplers import EpisodeBatchSampler
from nearkin.data.splits import resolve_split
from nearkin.errors import DataError, RecipeError
from nearkin.metrics import DYNAMICS, episode_dynamics
from nearkin.metrics.fewshot import fewshot_accuracy
from nearkin.recipe import load_recipe
from nearkin.spaces import Sphere
from nearkin.training import Run, train
from nearkin.training.batches import whole
from nearkin.training.fit import make_learner
from nearkin.training.loop import Loop

EPISODES = "training.episodic={way: 4, shot: 1, query: 2, validation_way: 2, validation_episodes: 30, record_every: 3}"


def trained(dataset, tiny, path, *overrides, recipe="protonet-dr"):
    recipe = load_recipe(recipe, [*tiny, EPISODES, *overrides])
    train(dataset, recipe, Run(path), source="patterns", cache_directory=path.parent / "cache", progress=False)
    return Run(path)


@pytest.fixture(scope="module")
def run(patterns, tiny, tmp_path_factory):
    return trained(patterns, tiny, tmp_path_factory.mktemp("episodic") / "run")


def test_the_log_has_accuracy_rho_and_dynamics(run):
    rows = run.history()
    losses = [row for row in rows if "loss" in row]
    assert [row["step"] for row in losses] == [3, 6, 9, 12]
    assert all(0 <= row["accuracy"] <= 1 and row["rho"] > 1 for row in losses)
    moved = [row for row in rows if "norm_ratio" in row]
    assert [row["step"] for row in moved] == [3, 6, 9, 12]
    assert all(set(DYNAMICS) | {"alpha"} <= row.keys() for row in moved)
    assert all(0 <= row["norm_ratio"] <= 1 for row in moved)


def test_accuracy_of_unseen_classes_selects_the_weights(run, patterns):
    rows = {row["step"]: row["val_accuracy"] for row in run.history() if "val_accuracy" in row}
    assert list(rows) == [0, 4, 8, 12]
    card = json.loads(run.card_file.read_text())
    best = max(rows, key=lambda step: (rows[step], -step))
    assert card["best_step"] == best
    recipe = run.recipe()
    items = patterns.select(resolve_split(patterns.manifest, recipe.data, recipe.training.seed).val)
    embeddings = run.model().encode(items, progress=False)
    shape = {"way": 2, "shot": 1, "query": 2, "episodes": 30}
    found = fewshot_accuracy(embeddings, items.labels, space=run.model().space, seed=recipe.training.seed, **shape)
    assert card["validation"]["val_accuracy"] == pytest.approx(found.accuracy, abs=1e-6)
    assert list(card["validation"]) == ["val_accuracy", "val_MAP@R", "val_P@1"]


def test_more_metrics_may_be_asked_for(patterns, tiny, tmp_path):
    run = trained(patterns, tiny, tmp_path / "run", "training.validation_metrics=[Recall@2, NMI]")
    (row, *_) = [row for row in run.history() if "val_accuracy" in row]
    assert [key for key in row if key.startswith("val_")] == [
        *("val_accuracy", "val_MAP@R", "val_P@1", "val_Recall@2", "val_NMI")
    ]


@pytest.mark.parametrize("recipe", ["protonet-dr", "1nn-s"])
def test_recording_changes_nothing_else(recipe, patterns, tiny, tmp_path):
    """Also not the statistics of batch norms, which see every input that passes."""
    often = trained(patterns, tiny, tmp_path / "often", "training.episodic.record_every=1", recipe=recipe)
    never = trained(patterns, tiny, tmp_path / "never", "training.episodic.record_every=null", recipe=recipe)
    ours, theirs = often.model().state_dict(), never.model().state_dict()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    plain = [
        {key: value for key, value in row.items() if key != "alpha" and key not in DYNAMICS} for row in often.history()
    ]
    assert [row for row in plain if row.keys() != {"step"}] == never.history()
    assert not any("norm_ratio" in row for row in never.history())


def test_the_record_is_of_the_episode_before_and_after_its_update(patterns, tiny, tmp_path, monkeypatch):
    seen = []
    plain = Loop._step

    def watched(self, inputs, labels):
        self.module.train()
        kept = {name: value.clone() for name, value in self.embedder.state_dict().items()}
        with torch.no_grad():
            before = self.embedder(whole(inputs))
        self.embedder.load_state_dict(kept)
        loss = plain(self, inputs, labels)
        kept = {name: value.clone() for name, value in self.embedder.state_dict().items()}
        with torch.no_grad():
            after = self.embedder(whole(inputs))
        self.embedder.load_state_dict(kept)
        seen.append((before, after))
        return loss

    monkeypatch.setattr(Loop, "_step", watched)
    run = trained(patterns, tiny, tmp_path / "run", "model.space=sphere", "training.episodic.record_every=5")
    rows = [row for row in run.history() if "norm_ratio" in row]
    assert [row["step"] for row in rows] == [5, 10]
    for row in rows:
        before, after = (Sphere().project(points) for points in seen[row["step"] - 1])
        expected = episode_dynamics(Sphere(), before, after, way=4, shot=1)
        assert {name: row[name] for name in DYNAMICS} == pytest.approx({n: expected[n] for n in DYNAMICS}, rel=1e-4)


def test_batches_are_the_samplers_episodes(patterns, tiny, tmp_path, monkeypatch):
    seen = []
    plain = Loop._step

    def watched(self, inputs, labels):
        seen.append(labels.clone())
        return plain(self, inputs, labels)

    monkeypatch.setattr(Loop, "_step", watched)
    run = trained(patterns, tiny, tmp_path / "run")
    recipe = run.recipe()
    ids = patterns.select(resolve_split(patterns.manifest, recipe.data, recipe.training.seed).train).class_ids()
    sampler = EpisodeBatchSampler(ids, 4, 1, 2, recipe.training.seed)
    for step, labels in enumerate(seen):
        assert np.array_equal(labels.numpy(), ids[sampler.batch(step)])
        assert (labels.view(4, 3) == labels.view(4, 3)[:, :1]).all()


def test_losses_that_know_nothing_of_support_take_episodes_as_batches(patterns, tiny, tmp_path):
    run = trained(patterns, tiny, tmp_path / "run", "objective.loss=supcon", "model.space=sphere")
    rows = run.history()
    assert any("val_accuracy" in row for row in rows)
    assert any("norm_ratio" in row for row in rows)
    assert not any("accuracy" in row for row in rows)


def test_more_processes_must_share_the_classes():
    with pytest.raises(DataError, match=r"training\.episodic\.way"):
        EpisodeBatchSampler(np.repeat(np.arange(8), 4), 5, 1, 2, rank=0, world_size=3)


def test_several_processes_are_refused_where_batch_norm_learns_by_itself(tiny):
    """By itself it would see the classes of one process alone; a frozen network has no such norm."""
    make_learner(load_recipe("protonet-dr", [*tiny, EPISODES]), "image", 6, validated=True, processes=2)
    recipe = load_recipe("protonet-dr", [*tiny, EPISODES, "training.sync_batch_norm=false"])
    with pytest.raises(RecipeError, match=r"training\.sync_batch_norm"):
        make_learner(recipe, "image", 6, validated=True, processes=2)
    make_learner(recipe, "image", 6, validated=True, processes=1)
    make_learner(load_recipe(recipe, ["model.freeze=all"]), "image", 6, validated=True, processes=2)
    make_learner(load_recipe(recipe, ["model.frozen_batch_norm=true"]), "image", 6, validated=True, processes=2)


def test_bad_recipes_get_one_sentence(patterns, tiny, tmp_path):
    with pytest.raises(RecipeError, match=r"data\.per_class"):
        load_recipe("protonet-s", [*tiny, "training.episodic={way: 4, shot: 2, query: 2}"])
    plain = load_recipe("contrastive", [*tiny, "objective.loss=protonet-s"])
    with pytest.raises(RecipeError, match=r"training\.schedule"):
        train(patterns, plain, Run(tmp_path / "plain"), source="", cache_directory=tmp_path, progress=False)
    with pytest.raises(DataError, match=r"training\.episodic\.validation_way"):
        trained(patterns, tiny, tmp_path / "ways", "training.episodic.validation_way=50")
    assert not (tmp_path / "ways" / "recipe.yaml").exists()
    with pytest.raises(RecipeError, match="plain"):
        load_recipe("contrastive", ["training.episodic.way=7"])


def test_the_batch_follows_the_episode_and_a_saved_recipe_too(tmp_path):
    recipe = load_recipe("protonet-s", ["training.episodic.shot=5"])
    assert (recipe.data.classes_per_batch, recipe.data.per_class) == (5, 21)
    recipe.save(tmp_path / "mine.yaml")
    again = load_recipe(tmp_path / "mine.yaml")
    assert again == recipe.model_copy(update={"name": again.name})
    changed = load_recipe(tmp_path / "mine.yaml", ["training.episodic.way=20"])
    assert (changed.data.classes_per_batch, changed.data.per_class) == (20, 21)
