"""Scores of points for classes: their softmax are the class probabilities."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from nearkin.errors import RecipeError
from nearkin.objectives.proxy.nearness import Nearness, SpaceNearness, angle_nearness, chord_nearness, cosines
from nearkin.objectives.proxy.scales import ANGLE_LAW, CHORD_LAW, COSINE_LAW, DISTANCE_LAW, Scale, ScaleLaw, make_scale
from nearkin.spaces import Space


class Scores(nn.Module):
    """Base of the scores: points (B, d) and what the bank gives, (C, d), to scores (B, C)."""

    def watch(self, scores: Tensor, labels: Tensor) -> None:
        """Take note of a batch in training, scores (B, C) without gradient and labels (B,); nothing by default."""

    def stepped(self) -> None:
        """Move by what was watched last; nothing by default."""

    def readings(self) -> dict[str, float]:
        """What the log shall say; nothing by default."""
        return {}


class ScaledScores(Scores):
    """Nearness times a scale.

    Args:
        nearness: points (B, d) and proxies (C, d) to numbers (B, C).
        scale: a number, or one that moves.
    """

    def __init__(self, nearness: Nearness, scale: Scale) -> None:
        super().__init__()
        self.nearness = nearness
        self.scale = scale

    def forward(self, points: Tensor, proxies: Tensor) -> Tensor:
        """Scores (B, C)."""
        nearness = self.nearness(points, proxies)
        scale = self.scale()
        return nearness * (scale.to(nearness) if isinstance(scale, Tensor) else scale)

    def watch(self, scores: Tensor, labels: Tensor) -> None:
        """Let the scale see scores (B, C) and labels (B,)."""
        self.scale.watch(scores, labels)

    def stepped(self) -> None:
        """Let the scale move."""
        self.scale.stepped()

    def readings(self) -> dict[str, float]:
        """`scale`, where it moves."""
        return self.scale.readings()


class LinearScores(Scores):
    """A linear layer's outputs: inner products with its rows, plus a bias for each class.

    Args:
        classes: C.
        dimension: d.
    """

    def __init__(self, classes: int, dimension: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(dimension)  # as nn.Linear begins
        self.bias = nn.Parameter(torch.empty(classes).uniform_(-bound, bound))

    def forward(self, points: Tensor, rows: Tensor) -> Tensor:
        """Scores (B, C)."""
        return points @ rows.mT + self.bias


def normface_scores(classes: int, scale: float | Literal["dynamic"]) -> ScaledScores:
    """`s cos`, for points of the sphere and C classes."""
    return ScaledScores(cosines, make_scale(scale, COSINE_LAW, classes))


def ratio_scores(
    space: Space, classes: int, scale: float | Literal["dynamic"], distance: Literal["chord", "angle"] = "chord"
) -> ScaledScores:
    """`-s ln d`, for C classes: by chord or angle on the sphere, by the space's own distance elsewhere."""
    nearness, law = _ratio_parts(space, distance)
    return ScaledScores(nearness, make_scale(scale, law, classes))


def _ratio_parts(space: Space, distance: Literal["chord", "angle"]) -> tuple[Nearness, ScaleLaw]:
    if space.name != "sphere":
        if distance != "chord":
            raise RecipeError(
                f"distance={distance} is one of the sphere, and the space is '{space.name}', which has its own: leave "
                "distance out, or set model.space to 'sphere'."
            )
        return SpaceNearness(space), DISTANCE_LAW
    return (chord_nearness, CHORD_LAW) if distance == "chord" else (angle_nearness, ANGLE_LAW)
