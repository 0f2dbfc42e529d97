"""Generalized sum pooling: average only what matters.

p_j = sigmoid(a_j + tau) / (n mu) with a_j = logsumexp_i(-eps |w_i - f_j|): positions near one of the prototypes w share
a budget mu of the map, the others get hardly any weight. The threshold tau, one a map, makes the mean gate
sigmoid(a_j + tau) the budget; it is the one unknown of the paper's entropic transport problem.
Derivation: docs/methods/gsp.md.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.models.pooling.base import Pooling, doubled, pick_centers, poolings
from nearkin.registry import Count, Positive, Share
from nearkin.spaces import LipschitzBall
from nearkin.spaces.space import widen

STEPS = 100
"""Far more than it takes: half a dozen steps are usual, and bisection alone would need about sixty."""

TOLERANCE = 1e-12
"""On the mean gate, relative to the budget or to what it leaves."""


def soft_minimum(costs: Tensor, sharpness: float) -> Tensor:
    """Scores (..., N) of positions from their costs (..., N, M) to M prototypes: logsumexp_i(-sharpness c_i)."""
    return _SoftMinimum.apply(costs, sharpness)


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


@poolings.register("gsp")
class GeneralizedSumPooling(Pooling):
    """The weighted mean of the positions that look like one of a few learned prototypes.

    Prototypes and local features are compared inside the unit ball; what is averaged is the map as it comes.

    Reference: Gürbüz 2022, chapter 5.
    Needs: a map of more than a handful of positions, and local features of the size that is embedded: set
        `model.local_dimension`, and `model.dimension` to null.
    Use when: images share background that average pooling would mix into every embedding.

    Args:
        channels: channels of the map.
        prototypes: how many things to look for; 64, or 128 for thousands of classes.
        budget: share mu of the positions to keep, in (0, 1]; 1 is average pooling.
        sharpness: eps; low spreads the weights, high selects. 5 with pair losses, 0.5 with proxy losses.
    """

    gives_attributes = True

    def __init__(self, channels: int, prototypes: Count = 64, budget: Share = 0.3, sharpness: Positive = 5.0) -> None:
        super().__init__(channels)
        self._check(prototypes=prototypes, budget=budget, sharpness=sharpness)
        self.budget = float(budget)
        self.sharpness = float(sharpness)
        self.prototypes = nn.Parameter(torch.randn(prototypes, channels) / math.sqrt(channels))

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C)."""
        if self.budget == 1:
            # Known to autograd: prototypes that do nothing have a gradient of zeros in one process as in several.
            return features.mean(dim=(2, 3)) + 0.0 * self.prototypes.sum()
        return _weighted_mean(features, spend(self._scores(features), self.budget))

    def weights(self, features: Tensor) -> Tensor:
        """Pooling weights (B, H, W), summing to 1, of a map (B, C, H, W)."""
        return spend(self._scores(features), self.budget).unflatten(1, features.shape[2:])

    def with_attributes(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The pooled vectors (B, C), and the share (B, M) of the pooled weight that went to each prototype."""
        weights, shares = self._weights_and_shares(features)
        pooled = features.mean(dim=(2, 3)) if self.budget == 1 else _weighted_mean(features, weights)
        return pooled, _mixed(weights, shares)

    def plan(self, features: Tensor) -> Tensor:
        """The transport plan (B, M, H, W): which share of the map's mass went from where to which prototype.

        It sums to the budget; what it leaves at a position, 1/(H W) minus its sum there, was discarded.
        """
        weights, shares = self._weights_and_shares(features)
        return (self.budget * weights.unsqueeze(2) * shares).transpose(1, 2).unflatten(2, features.shape[2:])

    @torch.no_grad()
    def init_from(self, features: Tensor, seed: int = 0) -> None:
        """Put the prototypes on local features of maps (B, C, H, W), far apart from each other (greedy k-center)."""
        points = LipschitzBall().project(_local(features.float())).flatten(0, 1)
        self.prototypes.copy_(pick_centers(points, len(self.prototypes), seed, "prototypes"))

    def _scores(self, features: Tensor) -> Tensor:
        return soft_minimum(local_costs(features, self.prototypes), self.sharpness)

    def _weights_and_shares(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (B, N) of the positions, and how each is shared among the prototypes (B, N, M)."""
        costs = local_costs(features, self.prototypes)
        shares = torch.softmax(-self.sharpness * costs, dim=2)
        return spend(soft_minimum(costs, self.sharpness), self.budget), shares


@poolings.register("gsp+gmp")
class GeneralizedSumMaxPooling(GeneralizedSumPooling):
    """Generalized sum pooling plus the maximum of each channel; see `GeneralizedSumPooling` for the parameters.

    Reference: Gürbüz 2022, section 5.3.5.
    Use when: a small detail decides as well, wherever it is.
    """

    def weights(self, features: Tensor) -> None:  # type: ignore[override]
        """None: the maximum takes a position of its own for every channel."""

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C)."""
        return super().forward(features) + features.amax(dim=(2, 3))

    def with_attributes(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The pooled vectors (B, C), and the share (B, M) of the pooled weight that went to each prototype."""
        pooled, attributes = super().with_attributes(features)
        return pooled + features.amax(dim=(2, 3)), attributes


def local_costs(features: Tensor, prototypes: Tensor) -> Tensor:
    """Distances (B, N, M) of the local features of a map (B, C, H, W) to prototypes (M, C), all shortened to length 1.

    In single precision whatever the map is in: a difference of squares needs the digits. Gradients are zero at
    distance zero.
    """
    with torch.autocast(features.device.type, enabled=False):
        points = widen(_local(features))
        centers = LipschitzBall().project(prototypes.to(points.dtype))
        # The long ones among the points are shortened by a factor on their products, not one by one.
        norms = points.square().sum(2, keepdim=True)
        products = (points.flatten(0, 1) @ centers.T).unflatten(0, points.shape[:2]) / norms.clamp(min=1).sqrt()
        return _root(norms.clamp(max=1) + centers.square().sum(1) - 2 * products)


def _root(squares: Tensor) -> Tensor:
    """Square roots, with gradient zero where rounding makes a square zero or less; what is not a number stays so."""
    gone = squares <= 0
    return torch.where(gone, 0.0, torch.where(gone, 1.0, squares).sqrt())


def _local(features: Tensor) -> Tensor:
    """The local features (B, N, C) of a map (B, C, H, W)."""
    return features.flatten(2).transpose(1, 2)


def _weighted_mean(features: Tensor, weights: Tensor) -> Tensor:
    """The mean (B, C) of a map (B, C, H, W) with weights (B, N), in the type of the map."""
    return _mixed(weights.to(features.dtype), _local(features))


def _mixed(weights: Tensor, rows: Tensor) -> Tensor:
    """Sums (B, K) of rows (B, N, K) with weights (B, N), in the type they have."""
    with torch.autocast(rows.device.type, enabled=False):
        return torch.bmm(weights.unsqueeze(1), rows).squeeze(1)
