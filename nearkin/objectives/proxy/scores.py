"""Scores of points for classes, from how near each proxy is: their softmax are the class probabilities.

How near a point is to each proxy, as a number that a scale makes a score: cosine, -d^2 or -ln d.
`exp(s u)` with u = cos is NormFace's share of a class, with u = -d^2 that of SD-softmax, with u = -ln d that of a
distance ratio, d^-s. All take points (B, d) and proxies (C, d) to (B, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.errors import RecipeError
from nearkin.objectives.proxy.scales import (
    ANGLE_LAW,
    CHORD_LAW,
    COSINE_LAW,
    DISTANCE_LAW,
    SCALE_RATE,
    ScaleValue,
    ScoreScale,
    make_scale,
)
from nearkin.spaces import Space, distance_ratio_scores, sd_softmax_scores

Nearness = Callable[[Tensor, Tensor], Tensor]

COSINE_LIMIT = 1 - 1e-6
"""acos has no slope at 1, where rounding takes the cosine of an embedding that sits on its proxy."""

_STABILITY = 1e-12


def cosines(points: Tensor, proxies: Tensor) -> Tensor:
    """Cosines; the sphere's points are an epsilon shorter than 1, so they are normalised to the last digit here."""
    return functional.normalize(points) @ functional.normalize(proxies).mT


def sub_centre_cosines(points: Tensor, proxies: Tensor, centres: int) -> Tensor:
    """The largest cosine (B, C) of points to any of the `centres` proxies of each class, which stand class by class."""
    return cosines(points, proxies).unflatten(1, (-1, centres)).amax(dim=2)


def chord_nearness(points: Tensor, proxies: Tensor) -> Tensor:
    """`-ln(2 - 2 cos + 1e-12) / 2`: minus the logarithm of the chord.

    What rounding cannot tell from zero has no gradient: it would be a huge one in no direction.
    """
    squares = (2 - 2 * cosines(points, proxies)).clamp(min=0)
    apart = squares > 16 * torch.finfo(squares.dtype).eps
    return -0.5 * (torch.where(apart, squares, squares.detach()) + _STABILITY).log()


def angle_nearness(points: Tensor, proxies: Tensor) -> Tensor:
    """`-ln acos(cos)`: minus the logarithm of the angle, which is kept from 0.0014 to as much below pi."""
    return -cosines(points, proxies).clamp(-COSINE_LIMIT, COSINE_LIMIT).acos().log()


def space_nearness(space: Space, points: Tensor, proxies: Tensor) -> Tensor:
    """`-ln sqrt(d^2 + 1e-10)` with the distance of a space."""
    return distance_ratio_scores(space.distance(points, proxies), 1.0)


def negative_distances(space: Space, points: Tensor, proxies: Tensor) -> Tensor:
    """`-d` with the distance of a space, `d` being `sqrt(d^2 + 1e-10)`; with chords on the sphere."""
    return -(1e-10 - negative_squares(space, points, proxies)).clamp(min=1e-10).sqrt()


def negative_squares(space: Space, points: Tensor, proxies: Tensor) -> Tensor:
    """`-d^2` with the distance of a space; with chords on the sphere, whatever its search measures by."""
    if space.name == "sphere":
        return 2 * cosines(points, proxies) - 2
    return sd_softmax_scores(space.distance(points, proxies))


class ScaledScores(nn.Module):
    """Nearness times a scale: points (B, d) and what the bank gives, (C, d), to scores (B, C).

    Args:
        nearness: points (B, d) and proxies (C, d) to numbers (B, C).
        scale: a number, or one that moves.
    """

    def __init__(self, nearness: Nearness, scale: ScoreScale) -> None:
        super().__init__()
        self.nearness = nearness
        self.scale = scale

    def forward(self, points: Tensor, proxies: Tensor) -> Tensor:
        """Scores (B, C)."""
        nearness = self.nearness(points, proxies)
        scale = self.scale()
        return nearness * (scale.to(nearness) if isinstance(scale, Tensor) else scale)


class LinearScores(nn.Module):
    """A linear layer's outputs: inner products with its rows, plus a bias for each class.

    Args:
        classes: C.
        dimension: d.
    """

    def __init__(self, classes: int, dimension: int) -> None:
        super().__init__()
        self.scale = ScoreScale(1.0)
        bound = 1 / math.sqrt(dimension)  # as nn.Linear begins
        self.bias = nn.Parameter(torch.empty(classes).uniform_(-bound, bound))

    def forward(self, points: Tensor, rows: Tensor) -> Tensor:
        """Scores (B, C)."""
        return points @ rows.mT + self.bias


class ConditionalScores(LinearScores):
    """Log-probabilities of classes at the leaves of a tree, from a softmax among the children of every node.

    `ln p(class) = sum over the nodes on the way down to it of ln p(node | parent)`, p(. | parent) being the softmax of
    a linear layer's outputs for the children of that parent.
    Reference: Redmon, Farhadi 2017, YOLO9000: better, faster, stronger, section 4.

    Args:
        siblings: of each of N nodes below the root the number of its parent among the parents, (N,).
        paths: 1 where a node is on the way down to a class, (C, N).
        dimension: d.
    """

    siblings: Tensor
    paths: Tensor

    def __init__(self, siblings: Tensor, paths: Tensor, dimension: int) -> None:
        super().__init__(len(siblings), dimension)
        self.register_buffer("siblings", siblings, persistent=False)
        self.register_buffer("paths", paths, persistent=False)
        self.parents = int(siblings.max()) + 1

    def forward(self, points: Tensor, rows: Tensor) -> Tensor:
        """Log-probabilities (B, C), of points (B, d) and rows (N, d)."""
        logits = super().forward(points, rows)
        group = self.siblings.expand(len(logits), -1)
        shape = (len(logits), self.parents)
        highest = logits.detach().new_full(shape, -torch.inf).scatter_reduce(1, group, logits.detach(), "amax")
        logits = logits - highest.gather(1, group)
        sums = logits.new_zeros(shape).scatter_add(1, group, logits.exp())
        conditionals = logits - sums.log().gather(1, group)
        return conditionals @ self.paths.to(conditionals).mT


def normface_scores(classes: int, scale: ScaleValue, rate: float = SCALE_RATE) -> ScaledScores:
    """`s cos`, for points of the sphere and C classes; `rate` is that of a dynamic scale."""
    return ScaledScores(cosines, make_scale(scale, COSINE_LAW, classes, rate))


def ratio_scores(
    space: Space,
    classes: int,
    scale: ScaleValue,
    distance: Literal["chord", "angle"] = "chord",
    rate: float = SCALE_RATE,
) -> ScaledScores:
    """`-s ln d`, for C classes: by chord or angle on the sphere, by the space's own distance elsewhere.

    `rate` is that of a dynamic scale.
    """
    if space.name == "sphere":
        nearness, law = (chord_nearness, CHORD_LAW) if distance == "chord" else (angle_nearness, ANGLE_LAW)
    elif distance == "chord":
        nearness, law = partial(space_nearness, space), DISTANCE_LAW
    else:
        raise RecipeError(
            f"distance={distance} is for the sphere, but the space '{space.name}' has its own: remove distance, or set "
            "model.space to 'sphere'."
        )
    return ScaledScores(nearness, make_scale(scale, law, classes, rate))


_TINY_ANGLE = 1e-3


def prediction_cross_entropy(scores: Tensor, perturbed: Tensor) -> Tensor:
    """`-sum_y P_y ln P*_y` (B,): how badly perturbed points predict what the points themselves predict.

    Its gradient also lowers the entropy of P: with a large weight, one certain class for all points is a way down.

    Args:
        scores: of the points, (B, C), whose softmax is P; gradients flow to them, too.
        perturbed: scores (B, C) of the perturbed points, whose softmax is P*.
    """
    return -(functional.softmax(scores, dim=1) * functional.log_softmax(perturbed, dim=1)).sum(dim=1)


def prediction_divergence(scores: Tensor, perturbed: Tensor) -> Tensor:
    """`sum_y P_y (ln P_y - ln P*_y)` (B,): that cross-entropy less the entropy of P, the divergence KL(P || P*).

    Reference: Zhang, Yu, Jiao, Xing, El Ghaoui, Jordan 2019, Theoretically principled trade-off between robustness and
        accuracy (TRADES), as in its code.

    Args:
        scores: of the points, (B, C), whose softmax is P; gradients flow to them, too.
        perturbed: scores (B, C) of the perturbed points, whose softmax is P*.
    """
    logs, of_perturbed = functional.log_softmax(scores, dim=1), functional.log_softmax(perturbed, dim=1)
    return (logs.exp() * (logs - of_perturbed)).sum(dim=1)


@torch.no_grad()
def negative_margins(proxies: Tensor) -> Tensor:
    """`m(c) = -angle_min(c) / 2 + 1e-3` (C,): half the angle from each proxy (C, d) to the nearest other, in radians.

    Reference: Kim 2023, section 6.2.1.
    """
    between = cosines(proxies, proxies).fill_diagonal_(-1.0)
    nearest = between.amax(dim=1).clamp(-1.0, 1.0).acos()
    return _TINY_ANGLE - nearest / 2


def negative_margin_loss(scores: Tensor, labels: Tensor, margins: Tensor, scale: float | Tensor) -> Tensor:
    """Mean cross-entropy of `s cos` whose own logit is `s cos(max(angle + m(c), 0))`.

    A point that is nearer to its proxy than half the way to the next one has the best own logit there is, and is pulled
    no nearer. Without the maximum it would be pushed away from its proxy. With margins of 0 this is NormFace.

    Reference: Kim 2023, section 6.2.1.

    Args:
        scores: `s cos` of the points to all proxies, (B, C).
        labels: (B,) int64.
        margins: m of every class (C,), in radians.
        scale: s.
    """
    index = labels.unsqueeze(1)
    own = (scores.gather(1, index) / scale).clamp(-COSINE_LIMIT, COSINE_LIMIT)
    angles = (own.acos() + margins[labels].to(own).unsqueeze(1)).clamp(min=0.0)
    return functional.cross_entropy(scores.scatter(1, index, scale * angles.cos()), labels)
