"""How near a point is to each proxy, as a number that a scale makes a score: cosine, -d^2 or -ln d.

`exp(s u)` with u = cos is NormFace's share of a class, with u = -d^2 that of SD-softmax, with u = -ln d that of a
distance ratio, d^-s. All take points (B, d) and proxies (C, d) to (B, C).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from nearkin.spaces import Space, distance_ratio_scores, sd_softmax_scores

Nearness = Callable[[Tensor, Tensor], Tensor]

COSINE_LIMIT = 1 - 1e-6
"""acos has no slope at 1, where rounding takes the cosine of an embedding that sits on its proxy."""

_STABILITY = 1e-12


def cosines(points: Tensor, proxies: Tensor) -> Tensor:
    """Cosines; the sphere's points are an epsilon shorter than 1, so they are normalised to the last digit here."""
    return functional.normalize(points) @ functional.normalize(proxies).mT


@dataclass(frozen=True)
class SubCentreCosines:
    """The largest cosine to any of the `centres` proxies of each class, which stand class by class."""

    centres: int

    def __call__(self, points: Tensor, proxies: Tensor) -> Tensor:
        """Cosines (B, C) of points (B, d) and proxies (C K, d)."""
        return cosines(points, proxies).unflatten(1, (-1, self.centres)).amax(dim=2)


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


@dataclass(frozen=True)
class SpaceNearness:
    """`-ln sqrt(d^2 + 1e-10)` with the distance of a space."""

    space: Space

    def __call__(self, points: Tensor, proxies: Tensor) -> Tensor:
        """Nearness (B, C) of points (B, d) and proxies (C, d)."""
        return distance_ratio_scores(self.space.distance(points, proxies), 1.0)


def negative_squares(space: Space) -> Nearness:
    """`-d^2` with the distance of a space; with chords on the sphere, whatever its search measures by."""
    return _chord_squares if space.name == "sphere" else _SpaceSquares(space)


def _chord_squares(points: Tensor, proxies: Tensor) -> Tensor:
    return 2 * cosines(points, proxies) - 2


@dataclass(frozen=True)
class _SpaceSquares:
    space: Space

    def __call__(self, points: Tensor, proxies: Tensor) -> Tensor:
        return sd_softmax_scores(self.space.distance(points, proxies))
