"""Optimiser groups and the learning rate over the steps."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nearkin.models import build_embedder
from nearkin.objectives import make_objective
from nearkin.recipe import TrainingSection, load_recipe
from nearkin.training.step import WeightAverage, learning_rate_scale, make_optimiser, set_learning_rates


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
