"""What stands for a class of which a few points are known: their mean, or whichever of them is nearest."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from nearkin.spaces.base import Space

Representation = Literal["mean", "nearest"]
"""The mean of the support points (prototypical networks), or the nearest of them (1-NN)."""


def class_distances(space: Space, support: Tensor, query: Tensor, representation: Representation = "mean") -> Tensor:
    """Distances (..., Q, C) of queries to classes, differentiable in both.

    Args:
        space: where the points lie.
        support: points (..., C, K, d), K of each class.
        query: points (..., Q, d).
        representation: what stands for a class.
    """
    if representation == "mean":
        return space.distance(query, space.mean(support))
    each = space.distance(query, support.flatten(-3, -2))
    return each.unflatten(-1, support.shape[-3:-1]).amin(dim=-1)
