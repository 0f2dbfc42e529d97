"""Optimiser groups and the learning rate over the steps."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nearkin.models import build_embedder
from nearkin.models.section import ModelSection
from nearkin.objectives import make_objective
from nearkin.objectives.section import ObjectiveSection
from nearkin.recipe import TrainingSection, load_recipe
from nearkin.training.step import (
    WeightAverage,
    learning_rate_scale,
    make_optimiser,
    mean_weights,
    set_learning_rates,
)


@given(st.integers(1, 300), st.integers(0, 50))
def test_cosine_matches_torch(steps, warmup):
    section = TrainingSection(max_steps=steps + warmup, lr_schedule="cosine", warmup_steps=warmup)
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=steps)
    for step in range(1, steps + 1):
        assert learning_rate_scale(warmup + step, section) == pytest.approx(optimiser.param_groups[0]["lr"], abs=1e-9)
        optimiser.step()
        scheduler.step()


def test_warm_up_and_steps_by_hand():
    section = TrainingSection(lr_schedule="step", step_every=10, step_factor=0.5, warmup_steps=4)
    assert [learning_rate_scale(step, section) for step in (1, 2, 4, 5, 14, 15, 25)] == [
        0.25, 0.5, 1.0, 1.0, 1.0, 0.5, 0.25
    ]  # fmt: skip


def test_groups_have_their_own_rates_and_the_backbone_rests_during_the_heads_warm_up(tiny):
    recipe = load_recipe("proxy-anchor", [*tiny, "training.lr=0.1", "training.backbone_lr_factor=0.01"])
    section = recipe.training.model_copy(update={"proxy_lr_factor": 100.0, "head_warmup_steps": 3})
    embedder = build_embedder(recipe.model, seed=0)
    objective = make_objective(recipe.objective, dimension=16, classes=5, space=embedder.space, seed=0)
    optimiser = make_optimiser(embedder, objective, section)
    rates = {}
    for step in (3, 4):
        set_learning_rates(optimiser, step, section)
        rates[step] = {group["name"]: group["lr"] for group in optimiser.param_groups}
    assert rates[3]["backbone"] == 0.0
    assert rates[4] == pytest.approx({"head": 0.1, "proxies": 10.0, "backbone": 0.001})
    decays = {group["name"]: group["weight_decay"] for group in optimiser.param_groups}
    assert decays["proxies"] == 0.0
    assert decays["head"] > 0.0
    counted = sum(p.numel() for group in optimiser.param_groups for p in group["params"])
    assert counted == sum(p.numel() for module in (embedder, objective) for p in module.parameters())
    assert math.isfinite(counted)


@given(
    st.lists(st.sampled_from([0.1, 0.2, 0.3, math.nan]), max_size=30), st.integers(0, 4), st.sampled_from([0.1, 0.5])
)
def test_plateaus_match_torch(values, patience, factor):
    section = TrainingSection(
        lr_schedule="plateau", plateau_patience=patience, step_factor=factor, patience=None, warmup_steps=10
    )
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimiser, mode="max", factor=factor, patience=patience, threshold=0.0, threshold_mode="abs", eps=0.0
    )
    validated = [(0, 1.0), (5, 1.0)]  # during the warm-up: they neither wait nor are the best
    for place, value in enumerate(values):
        scheduler.step(value)
        validated.append((10 * (place + 1), value))
        assert learning_rate_scale(500, section, validated) == pytest.approx(optimiser.param_groups[0]["lr"])
        assert learning_rate_scale(5, section) == 0.5


@pytest.mark.parametrize("freeze", [None, "stage2"])
def test_layer_wise_decay_by_hand(freeze):
    embedder = build_embedder(ModelSection(backbone="resnet20", size=16, dimension=4, freeze=freeze))
    objective = make_objective(ObjectiveSection(loss="triplet"), dimension=4, classes=3, space=embedder.space)
    section = TrainingSection(lr=0.8, backbone_lr_factor=0.5, layer_decay=0.25, head_warmup_steps=2)
    optimiser = make_optimiser(embedder, objective, section)
    set_learning_rates(optimiser, 3, section)
    found = {id(p): group["lr"] for group in optimiser.param_groups for p in group["params"]}
    rates = {"stage3": 0.4, "stage2": 0.1, "stage1": 0.025, "stem": 0.00625}
    for name, parameter in embedder.named_parameters():
        stage = name.split(".")[2] if name.startswith("backbone.") else ""
        if freeze and stage in ("stem", "stage1", "stage2"):
            assert id(parameter) not in found
        else:
            assert found.pop(id(parameter)) == pytest.approx(rates.get(stage, 0.8)), name
    assert not found
    set_learning_rates(optimiser, 2, section)
    resting = {group["name"]: group["lr"] == 0.0 for group in optimiser.param_groups}
    assert all(rests == name.startswith("backbone") for name, rests in resting.items())


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_betas_reach_the_optimiser(optimizer):
    embedder = build_embedder(ModelSection(backbone="lenet", dimension=4))
    objective = make_objective(ObjectiveSection(loss="triplet"), dimension=4, classes=3, space=embedder.space)
    section = TrainingSection(optimizer=optimizer, betas=(0.5, 0.9))
    assert {group["betas"] for group in make_optimiser(embedder, objective, section).param_groups} == {(0.5, 0.9)}


@given(st.integers(1, 5))
def test_the_mean_of_weights_is_the_naive_one(count):
    states = []
    for seed in range(count):
        torch.manual_seed(seed)
        states.append(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)).state_dict())
        states[-1]["1.num_batches_tracked"] += seed
    mean = mean_weights(states)
    for name, value in mean.items():
        wanted = states[-1][name] if "tracked" in name else sum(state[name] for state in states) / count
        torch.testing.assert_close(value, wanted)
        assert value.dtype == states[0][name].dtype


def test_matches_the_recurrence_and_restores():
    module = nn.Linear(3, 2)
    average = WeightAverage(module, decay=0.75)
    expected = module.weight.detach().clone()
    for step in range(5):
        with torch.no_grad():
            module.weight.copy_(torch.full((2, 3), float(step)))
        average.update()
        expected = 0.75 * expected + 0.25 * module.weight.detach()
    before = module.weight.detach().clone()
    with average.applied():
        assert torch.allclose(module.weight, expected)
    assert torch.equal(module.weight, before)


def test_frozen_parameters_are_left_out():
    module = nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    assert list(WeightAverage(module, decay=0.5).shadow) == ["weight"]
