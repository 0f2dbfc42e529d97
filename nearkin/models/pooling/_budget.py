"""Spend a budget of weight on the positions of a map: the solver behind generalized sum pooling.

The entropic transport problem of the paper has one unknown a map, a threshold tau: positions with scores a_j get gates
s_j = sigmoid(a_j + tau), with tau such that the mean gate is the budget; their weights are s_j / (n budget).
Derivation: docs/methods/gsp.md.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nearkin.models.pooling._precision import doubled

STEPS = 100
"""Far more than it takes: half a dozen steps are usual, and bisection alone would need about sixty."""

TOLERANCE = 1e-12
"""On the mean gate, relative to the budget or to what it leaves."""


def soft_minimum(costs: Tensor, sharpness: float) -> Tensor:
    """Scores (..., N) of positions from their costs (..., N, M) to M prototypes: logsumexp_i(-sharpness c_i)."""
    scores: Tensor = _SoftMinimum.apply(costs, sharpness)
    return scores


def spend(scores: Tensor, budget: float) -> Tensor:
    """Weights (B, N) that sum to 1 from scores (B, N): high scores up to a shared threshold, the rest hardly any.

    Solved in double precision: at high sharpness the scores are so large that single precision could not meet the
    budget.

    Args:
        scores: (B, N), N at least 1.
        budget: share of the positions that the weights may stand on, in (0, 1]; at 1 all weights are equal.
    """
    positions = scores.shape[1]
    if budget == 1:
        return torch.full_like(scores, 1.0 / positions)
    precise = doubled(scores)
    gates = torch.sigmoid(precise + threshold(precise, budget))
    return (gates / (positions * budget)).to(scores)


@torch.library.custom_op("nearkin::threshold", mutates_args=())
def threshold(scores: Tensor, budget: float) -> Tensor:
    """The tau (B, 1) with mean_j sigmoid(a_j + tau) = budget for scores a (B, N), float64.

    Newton's method on logit(mean gate) = logit(budget), whose left side is nearly a line in tau; where a step would
    leave the bracket [logit(budget) - max a, logit(budget) - min a], as it shrinks, it is halved instead.
    """
    goal = math.log(budget) - math.log1p(-budget)
    low, high = goal - scores.amax(1, keepdim=True), goal - scores.amin(1, keepdim=True)
    tau = goal - scores.mean(1, keepdim=True)
    accepted = TOLERANCE * min(budget, 1 - budget)
    for _ in range(STEPS):
        gates = torch.sigmoid(scores + tau)
        spent = gates.mean(1, keepdim=True)
        excess = spent - budget
        if bool((excess.abs() <= accepted).all()):
            break
        low, high = torch.where(excess < 0, tau, low), torch.where(excess < 0, high, tau)
        slope = (gates - gates.square()).mean(1, keepdim=True)
        newton = tau - (torch.logit(spent) - goal) * (spent - spent.square()) / slope
        # The ends count as inside: a solved map must stay where it is while others go on.
        inside = (newton >= low) & (newton <= high)
        following = torch.where(inside, newton, 0.5 * (low + high))
        if torch.equal(following, tau):
            break
        tau = following
    return tau


@threshold.register_fake
def _(scores: Tensor, budget: float) -> Tensor:
    return scores.new_empty(scores.shape[0], 1)


def _keep(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _implicit(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    """d tau / d a_j = -r_j, r = softmax(log(s (1 - s))): from the logarithm, since the product itself underflows."""
    scores, tau = ctx.saved_tensors
    x = scores + tau
    return -gradient * torch.softmax(-functional.softplus(x) - functional.softplus(-x), dim=1), None


threshold.register_autograd(_implicit, setup_context=_keep)


class _SoftMinimum(torch.autograd.Function):
    """`soft_minimum`, which keeps the costs and nothing else of their size for the backward pass."""

    @staticmethod
    def forward(ctx: Any, costs: Tensor, sharpness: float) -> Tensor:
        ctx.save_for_backward(costs)
        ctx.sharpness = sharpness
        exponents = costs * -sharpness
        # The fused log_softmax is twice as fast as logsumexp; at the largest exponent their difference is exact.
        return exponents.amax(-1) - torch.log_softmax(exponents, dim=-1).amax(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (costs,) = ctx.saved_tensors
        shares = torch.softmax(costs * -ctx.sharpness, dim=-1)
        return shares * (-ctx.sharpness * gradient).unsqueeze(-1), None
