"""Training a pooling that learns: its first prototypes, the zero-shot loss beside any schedule, caches and audits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.audits import subject_of_model
from nearkin.errors import ModelError, RecipeError
from nearkin.models import Embedder, FeatureCache
from nearkin.models.pooling import list_poolings
from nearkin.recipe import load_recipe
from nearkin.training import Run, train
from nearkin.training.run import load_state

SMALL = [
    "model.backbone=resnet20",
    "model.local_dimension=8",
    "model.dimension=null",
    "model.pooling_parameters={prototypes: 4}",
]
FROZEN = ["model.freeze=all", "model.cache=true", "model.cache_views={flip: true}"]


def fit(patterns, path, recipe, *overrides):
    return train(
        patterns,
        load_recipe(recipe, list(overrides)),
        Run(path / "run"),
        source="patterns",
        cache_directory=path / "cache",
        progress=False,
    ).embedder


@pytest.mark.parametrize("more", [[], FROZEN])
@pytest.mark.parametrize("recipe", ["contrastive-gsp", "proxy-anchor-gsp", "contrastive-ccp-gsp"])
def test_recipes_train(recipe, more, patterns, tiny, tmp_path):
    embedder = fit(patterns, tmp_path, recipe, *tiny, *SMALL, *more)
    assert embedder.dimension == 8
    loaded = Embedder.load(Run(tmp_path / "run").model_file)
    assert loaded.fingerprint() == embedder.fingerprint()
    rows = Run(tmp_path / "run").history()
    assert all(np.isfinite(row["loss"]) for row in rows if "loss" in row)


def test_cross_batch_memory_takes_the_zero_shot_loss(patterns, tiny, tmp_path):
    settings = ["training.schedule=cross-batch-memory", "training.cross_batch_memory={batches: 2, warmup_steps: 3}"]
    fit(patterns, tmp_path, "contrastive-gsp", *tiny, *SMALL, *FROZEN, *settings)
    rows = [row for row in Run(tmp_path / "run").history() if "loss" in row]
    assert rows[-1]["step"] == 12
    assert all(np.isfinite(row["loss"]) for row in rows)
    tensors, _ = load_state(Run(tmp_path / "run").state_file)
    assert int(tensors["objective"]["regularisers.zero-shot.steps"]) == 12


def test_prototypes_start_on_local_features_of_the_training_classes(patterns, tiny, tmp_path, monkeypatch):
    seen = []

    def watch(self, features, seed=0):
        plain(self, features, seed)
        seen.append((features, self.prototypes.detach().clone()))

    from nearkin.models.pooling.gsp import GeneralizedSumPooling

    plain = GeneralizedSumPooling.init_from
    monkeypatch.setattr(GeneralizedSumPooling, "init_from", watch)
    fit(patterns, tmp_path, "contrastive-gsp", *tiny, *SMALL, *FROZEN)
    ((features, prototypes),) = seen
    assert features.shape[1:] == (8, 4, 4)
    local = features.flatten(2).transpose(1, 2).flatten(0, 1)
    local = local / local.norm(dim=1, keepdim=True).clamp(min=1)
    assert torch.cdist(prototypes, local, compute_mode="donot_use_mm_for_euclid_dist").amin(1).max() < 1e-5


def test_the_prototypes_and_class_vectors_learn(patterns, tiny, tmp_path, monkeypatch):
    from nearkin.training.loop import Loop

    states = []
    plain = Loop._step

    def watch(self, inputs, labels):
        states.append(
            [self.embedder.pooling.prototypes.detach().clone()]
            + [vectors.detach().clone() for vectors in self.objective.regularisers.parameters()]
        )
        return plain(self, inputs, labels)

    monkeypatch.setattr(Loop, "_step", watch)
    fit(patterns, tmp_path, "contrastive-gsp", *tiny, *SMALL, *FROZEN)
    for first, last in zip(states[0], states[-1], strict=True):
        assert (last - first).abs().max() > 1e-4


def test_first_prototypes_come_from_all_classes_where_there_are_many():
    from nearkin.models import build_embedder
    from nearkin.models.section import ModelSection
    from nearkin.training.batches import TrainingPool

    embedder = build_embedder(ModelSection(backbone="conv4", channels=3, size=16))
    asked = []

    class Batches:
        start = None

        def plain(self, positions):
            asked.extend(positions.tolist())
            return torch.zeros(len(positions), 3, 16, 16)

    class_ids = np.repeat(np.arange(300), 2)
    TrainingPool(Batches(), embedder, class_ids, seed=0).local_features(64)
    chosen = class_ids[asked]
    assert len(chosen) == len(set(chosen)) == 64
    assert chosen.max() > 200
    asked.clear()
    assert len(TrainingPool(Batches(), embedder, np.arange(10) % 5, seed=0).local_features(64)) == len(asked) == 10
    asked.clear()
    TrainingPool(Batches(), embedder, np.array([0] + [1] * 100), seed=0).local_features(64)
    assert len(asked) == len(set(asked))


def test_too_many_prototypes_leave_nothing_behind(patterns, tiny, tmp_path):
    settings = [*tiny, *SMALL, *FROZEN]
    with pytest.raises(ModelError, match=r"model\.pooling_parameters\.prototypes"):
        fit(patterns, tmp_path, "contrastive-gsp", *settings, "model.pooling_parameters={prototypes: 5000}")
    assert not Run(tmp_path / "run").exists
    fit(patterns, tmp_path, "contrastive-gsp", *settings)


def test_small_maps_bring_more_items(patterns, tiny, tmp_path, monkeypatch):
    """A map of one position gives one local feature an item: all training items are looked at, 32 of them."""
    monkeypatch.setattr("nearkin.training.start._INITIAL_ITEMS", 8)
    fit(patterns, tmp_path, "contrastive-gsp", *tiny, "model.pooling_parameters={prototypes: 30}")


@pytest.mark.parametrize("pooling", ["gap", "gem", "netvlad"])
def test_zero_shot_needs_attributes(pooling, patterns, tiny, tmp_path):
    terms = "objective.regularisers=[{name: zero-shot}]"
    with pytest.raises(RecipeError, match=r"model\.pooling"):
        fit(patterns, tmp_path, "contrastive", *tiny, f"model.pooling={pooling}", terms)


@pytest.mark.parametrize("pooling", [name for name in list_poolings() if name != "stats"])
def test_every_pooling_trains_from_cached_maps_and_reloads(pooling, patterns, tiny, tmp_path):
    more = ["training.max_steps=2", "model.backbone=resnet20", "model.local_dimension=8"]
    few = {"gsp": "prototypes", "gsp+gmp": "prototypes", "netvlad": "clusters", "ot": "references"}.get(pooling)
    parameters = [f"model.pooling_parameters={{{few}: 3}}"] if few else []
    embedder = fit(patterns, tmp_path, "contrastive", *tiny, *FROZEN, *more, f"model.pooling={pooling}", *parameters)
    loaded = Embedder.load(Run(tmp_path / "run").model_file)
    images = patterns.select(np.arange(4))
    np.testing.assert_array_equal(loaded.encode(images, progress=False), embedder.encode(images, progress=False))


def test_average_pooling_before_and_after_the_linear_map_are_the_same(patterns):
    from nearkin.models import build_embedder
    from nearkin.models.section import ModelSection

    local = build_embedder(ModelSection(backbone="resnet20", local_dimension=8, dimension=None)).eval()
    head = build_embedder(ModelSection(backbone="resnet20", dimension=8)).eval()
    head.backbone.load_state_dict(local.backbone.state_dict())
    with torch.no_grad():
        head.head.weight.copy_(local.local.weight[:, :, 0, 0])
        head.head.bias.copy_(local.local.bias)
        x = torch.randn(2, 3, 32, 32)
        torch.testing.assert_close(head(x), local(x), rtol=1e-4, atol=1e-5)


def test_audits_of_cached_maps_read_the_cache(patterns, tiny, tmp_path, monkeypatch):
    embedder = fit(patterns, tmp_path, "contrastive-gsp", *tiny, *SMALL, *FROZEN)
    first = subject_of_model(embedder, patterns, cache_directory=tmp_path / "cache", progress=False)
    built = []
    plain = FeatureCache.build.__func__
    monkeypatch.setattr(
        FeatureCache, "build", classmethod(lambda cls, *a, **k: built.append(plain(cls, *a, **k)) or built[-1])
    )
    again = subject_of_model(embedder, patterns, cache_directory=tmp_path / "cache", progress=False)
    assert built
    assert all(cache.reused for cache in built)
    np.testing.assert_array_equal(again.embeddings, first.embeddings)
    plainly = embedder.encode(patterns.select(np.flatnonzero(np.isin(patterns.labels, again.labels))), progress=False)
    np.testing.assert_allclose(first.embeddings, plainly, atol=2e-3)  # the cache is in half precision


def test_classes_that_the_starting_model_knew_are_told(patterns, tiny, tmp_path):
    """A model of other classes lends its backbone: an audit on classes it was trained on says so."""
    first = fit(patterns, tmp_path / "first", "contrastive", *tiny)
    start = f"model.weights={tmp_path / 'first' / 'run'}"
    embedder = fit(patterns, tmp_path / "second", "contrastive", *tiny, start, "training.seed=3")
    known = set(first.card["classes"]["train"]) & set(embedder.card["classes"]["test"])
    assert known
    subject = subject_of_model(embedder, patterns, cache_directory=tmp_path, baseline=False, progress=False)
    assert any("optimistic" in note and str(len(known)) in note for note in subject.notes)
    unknown = subject_of_model(first, patterns, cache_directory=tmp_path, baseline=False, progress=False)
    assert not any("optimistic" in note for note in unknown.notes)
