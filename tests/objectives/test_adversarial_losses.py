"""Losses of perturbed points against loops, values by hand and their limits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from nearkin.objectives.proxy.scores import (
    negative_margin_loss,
    negative_margins,
    prediction_cross_entropy,
    prediction_divergence,
)

SCALE = 10.0


def drawn(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(row):
    largest = max(row)
    parts = [math.exp(value - largest) for value in row]
    return [part / sum(parts) for part in parts]


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_predictions_are_compared_as_loops_say(scale):
    clean, perturbed = drawn(4, 5, scale=scale), drawn(4, 5, seed=1, scale=scale)
    crossed, diverged = prediction_cross_entropy(clean, perturbed), prediction_divergence(clean, perturbed)
    for row in range(4):
        p, q = softmax(clean[row].tolist()), softmax(perturbed[row].tolist())
        expected = -sum(a * math.log(b) for a, b in zip(p, q, strict=True))
        entropy = -sum(a * math.log(a) for a in p)
        assert crossed[row].item() == pytest.approx(expected)
        assert diverged[row].item() == pytest.approx(expected - entropy)


@given(st.integers(0, 2**20))
def test_a_prediction_does_not_diverge_from_itself_and_else_always(seed):
    clean, perturbed = drawn(3, 4, seed=seed), drawn(3, 4, seed=seed + 1)
    assert (prediction_divergence(clean, perturbed) > 0).all()
    torch.testing.assert_close(prediction_divergence(clean, clean), torch.zeros(3, dtype=torch.float64))


def test_the_divergence_is_torchs():
    clean, perturbed = drawn(6, 4), drawn(6, 4, seed=1)
    expected = functional.kl_div(
        perturbed.log_softmax(dim=1), clean.log_softmax(dim=1), reduction="none", log_target=True
    ).sum(dim=1)
    torch.testing.assert_close(prediction_divergence(clean, perturbed), expected)


@pytest.mark.parametrize("function", [prediction_cross_entropy, prediction_divergence])
def test_gradients_flow_to_both_predictions(function):
    clean, perturbed = drawn(3, 4).requires_grad_(), drawn(3, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(function, (clean, perturbed))
    function(clean, perturbed).sum().backward()
    assert clean.grad.abs().min() > 0
    assert perturbed.grad.abs().min() > 0


def test_only_the_cross_entropy_makes_equal_predictions_surer():
    scores = drawn(3, 4).requires_grad_()
    prediction_divergence(scores, scores).sum().backward()
    torch.testing.assert_close(scores.grad, torch.zeros_like(scores))
    prediction_cross_entropy(scores, scores).sum().backward()
    assert (scores.grad.gather(1, scores.argmax(dim=1, keepdim=True)) < 0).all()


# The negative margin.


def test_margins_are_half_the_angle_to_the_nearest_other_proxy():
    angles = torch.tensor([0.0, 40.0, 100.0, 250.0]).deg2rad()
    proxies = 3 * torch.stack([angles.cos(), angles.sin()], dim=1)
    nearest = torch.tensor([40.0, 40.0, 60.0, 110.0]).deg2rad()
    torch.testing.assert_close(negative_margins(proxies), -nearest / 2 + 1e-3, rtol=0, atol=1e-5)


def test_margins_have_no_gradient():
    assert not negative_margins(drawn(4, 3).requires_grad_()).requires_grad


def scores_at(degrees, others=(0.2, -0.5)):
    """Scores of one point at an angle from its proxy, class 1, and with these cosines to the others."""
    cosines = [others[0], math.cos(math.radians(degrees)), others[1]]
    return SCALE * torch.tensor([cosines], dtype=torch.float64)


@pytest.mark.parametrize(
    ("degrees", "seen_at"),
    [(10.0, 0.0), (29.0, 0.0), (31.0, 1.0), (80.0, 50.0), (170.0, 140.0)],  # with a margin of 30 degrees
)
def test_the_own_logit_by_hand(degrees, seen_at):
    margins = torch.tensor([9.0, -math.radians(30.0), 9.0], dtype=torch.float64)
    logits = [SCALE * 0.2, SCALE * math.cos(math.radians(seen_at)), SCALE * -0.5]
    expected = -math.log(softmax(logits)[1])
    found = negative_margin_loss(scores_at(degrees), torch.tensor([1]), margins, SCALE)
    assert found.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("degrees", [5.0, 29.0])
def test_within_half_the_way_nothing_pulls_or_pushes(degrees):
    scores = scores_at(degrees).requires_grad_()
    margins = torch.full((3,), -math.radians(30.0), dtype=torch.float64)
    negative_margin_loss(scores, torch.tensor([1]), margins, SCALE).backward()
    assert scores.grad[0, 1] == 0
    assert (scores.grad[0, [0, 2]] > 0).all()


@given(st.integers(0, 2**20))
def test_without_margins_it_is_normface(seed):
    scores = SCALE * drawn(5, 4, seed=seed).tanh()
    labels = torch.arange(5) % 4
    found = negative_margin_loss(scores, labels, torch.zeros(4), SCALE)
    torch.testing.assert_close(found, functional.cross_entropy(scores, labels), rtol=1e-5, atol=1e-5)


def test_a_negative_margin_never_costs_more_than_none():
    scores, labels = SCALE * drawn(8, 4).tanh(), torch.arange(8) % 4
    margins = negative_margins(drawn(4, 6, seed=1))
    assert (margins < 0).all()
    assert negative_margin_loss(scores, labels, margins, SCALE) < functional.cross_entropy(scores, labels)


def test_gradient_of_the_negative_margin():
    scores = (SCALE * drawn(5, 4).tanh()).requires_grad_()
    labels, margins = torch.arange(5) % 4, negative_margins(drawn(4, 6, seed=1))
    assert torch.autograd.gradcheck(lambda given: negative_margin_loss(given, labels, margins, SCALE), scores)


def test_the_gradient_is_finite_on_a_proxy_and_opposite_to_it():
    scores = torch.tensor([[SCALE, 0.0], [0.0, -SCALE]], requires_grad=True)
    negative_margin_loss(scores, torch.tensor([0, 1]), torch.zeros(2), SCALE).backward()
    assert scores.grad.isfinite().all()
