"""The moving average of weights."""

from __future__ import annotations

import torch
from torch import nn

from nearkin.training.ema import WeightAverage


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
