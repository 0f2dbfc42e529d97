"""The recipes of the class adversary: the paper's settings, and variants that differ in nothing but their method."""

from __future__ import annotations

import pytest

from nearkin.recipe import load_recipe
from nearkin.training.fit import make_learner

LOSSES = ("triplet", "angular", "proxy-nca")
ATTENDED = ("triplet-gdfl", *(f"{loss}-{kind}-adv" for loss in LOSSES for kind in ("soft", "adapt")))


@pytest.mark.parametrize("name", [*ATTENDED, "triplet-energy"])
def test_sizes_are_the_papers(name):
    recipe = load_recipe(name)
    assert recipe.model.dimension == 64
    assert recipe.data.classes_per_batch * recipe.data.per_class == 64
    assert recipe.objective.loss == next(loss for loss in LOSSES if name.startswith(loss))
    if recipe.objective.loss == "triplet":
        assert (recipe.objective.parameters, recipe.objective.miner) == ({"margin": 0.01}, "semi-hard")


@pytest.mark.parametrize("name", ATTENDED)
def test_attention_is_the_papers_and_its_maps_are_cached(name):
    model = load_recipe(name).model
    assert (model.attention.score, model.attention.matrices) == ("additive", 1)
    assert (model.attention.fusion, model.attention.append, model.attention.normalise) == ("concatenate", False, False)
    assert (model.freeze, model.cache, model.cache_dtype) == ("all", True, "float16")


@pytest.mark.parametrize("loss", LOSSES)
def test_soft_and_adaptive_differ_in_the_adversary_only(loss):
    soft, adaptive = load_recipe(f"{loss}-soft-adv"), load_recipe(f"{loss}-adapt-adv")
    (first,), (second,) = soft.objective.regularisers, adaptive.objective.regularisers
    assert (first.name, second.name) == ("class-adversary", "class-adversary")
    assert first.weight == second.weight == 0.5
    assert first.parameters == {"kind": "soft", "dropout": 0.1, "smoothing": 0.15}
    assert second.parameters == {"kind": "adaptive", "dropout": 0.1, "threshold": 1.5}
    alone = {"name": "", "objective": soft.objective.model_copy(update={"regularisers": []})}
    assert soft.model_copy(update=alone) == adaptive.model_copy(update=alone)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_is_that_of_its_plain_recipe_but_for_the_papers_margin(loss):
    plain, ours = load_recipe(loss), load_recipe(f"{loss}-adapt-adv")
    assert ours.training == plain.training
    if loss != "triplet":
        assert ours.objective.parameters == plain.objective.parameters


@pytest.mark.parametrize("name", [*ATTENDED, "triplet-energy"])
def test_each_can_be_trained(name):
    embedder, objective, _ = make_learner(load_recipe(name), "image", 100, validated=True, items=1000)
    attended = {"stage5": 112, "stage6": 192, "stage7": 320}
    assert embedder.attended_stages == ([] if name == "triplet-energy" else list(attended))
    if name in ATTENDED:
        assert embedder.feature_size == sum(attended.values())
    assert objective.takers("features") == (["class-adversary"] if name.endswith("-adv") else [])
