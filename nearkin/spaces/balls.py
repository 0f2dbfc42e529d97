"""Balls: the Lipschitz ball, which shortens long vectors only, and the Poincaré ball of hyperbolic space.

The Poincaré ball: hyperbolic space, where room grows with depth as it does in a tree.
With curvature tau, the gyrovector sum of x and y is
`((1 + 2 tau x.y + tau |y|^2) x + (1 - tau |x|^2) y) / (1 + 2 tau x.y + tau^2 |x|^2 |y|^2)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from nearkin.errors import ModelError
from nearkin.spaces.space import StraightSpace, euclidean_distance, spaces, widen


@spaces.register("lipschitz-ball")
@dataclass(frozen=True)
class LipschitzBall(StraightSpace):
    """The closed unit ball with Euclidean distance, entered by a map that never stretches.

    `project(f) = f` if `|f| <= 1`, else `f / |f|`. Its gradient is the identity inside and the tangent projection over
    `|f|` outside, so losses on it stay Lipschitz, which plain normalisation does not give. The ball is convex: means
    stay inside.

    Reference: Gürbüz 2022, section 3.2.4.
    """

    name: ClassVar[str] = "lipschitz-ball"

    def project(self, f: Tensor) -> Tensor:
        """Shorten embeddings (..., d) to length one at most."""
        wide = widen(f)
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        return (wide / torch.where(norm <= 1, torch.ones_like(norm), norm)).to(f.dtype)


_RIM = 1 - 1e-5


@spaces.register("poincare-ball")
@dataclass(frozen=True)
class PoincareBall(StraightSpace):
    """The ball `tau |x|^2 < 1` with the geodesic distance `2/sqrt(tau) artanh(sqrt(tau) |-x (+) y|)`.

    Norms are kept within `(1 - 1e-5)/sqrt(tau)`.

    Reference: Kim 2023, section 2.3; Khrulkov et al. 2020.

    Args:
        curvature: tau, positive; small values come close to Euclidean space.
    """

    name: ClassVar[str] = "poincare-ball"
    curvature: float = 1.0

    def __post_init__(self) -> None:
        if not (isinstance(self.curvature, Real) and 0 < self.curvature < math.inf):
            raise ModelError(f"The curvature of a Poincaré ball must be a positive number, not {self.curvature!r}.")

    def project(self, f: Tensor) -> Tensor:
        """Exponential map at 0 of embeddings (..., d): `tanh(sqrt(tau)|f|) f / (sqrt(tau)|f|)`."""
        wide = widen(f)
        length = math.sqrt(self.curvature) * torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        safe = torch.where(length == 0, torch.ones_like(length), length)
        shrink = torch.where(length == 0, torch.ones_like(length), safe.tanh().clamp(max=_RIM) / safe)
        return (shrink * wide).to(f.dtype)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """The gyrovector sum (..., d) of points (..., d) and (..., d)."""
        tau = self.curvature
        xx, yy, xy = _dot(x, x), _dot(y, y), _dot(x, y)
        above = (1 + 2 * tau * xy + tau * yy) * x + (1 - tau * xx) * y
        return above / (1 + 2 * tau * xy + tau**2 * xx * yy)

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (..., n, m) between points (..., n, d) and (..., m, d)."""
        x, y = self._inside(widen(x)), self._inside(widen(y))
        # |-x (+) y|^2 = |x-y|^2 / ((1-tau|x|^2)(1-tau|y|^2) + tau|x-y|^2) needs no (n, m, d) tensor;
        # artanh(a/sqrt(b+a^2)) = asinh(a/sqrt(b)) does not cancel near the rim.
        room = self._room(x).sqrt().unsqueeze(-1) * self._room(y).sqrt().unsqueeze(-2)
        root = math.sqrt(self.curvature)
        return 2 / root * torch.asinh(root * euclidean_distance(x, y) / room)

    def mean(self, xs: Tensor) -> Tensor:
        """Einstein midpoint (..., d) of points (..., n, d): the Klein model's mean weighted by Lorentz factors."""
        x = self._inside(xs.double())  # Lorentz factors reach 1e5 at the rim; their squares must still differ by 1.
        room = self._room(x).unsqueeze(-1)
        lorentz = ((2 - room) / room).sum(dim=-2)
        weighted = (2 * x / room).sum(dim=-2)  # Lorentz factor times the Klein point 2x / (1 + tau|x|^2)
        # From Klein back to Poincaré, k / (1 + sqrt(1 - tau|k|^2)), with the factor sum carried through.
        back = lorentz + (lorentz**2 - self.curvature * _dot(weighted, weighted)).sqrt()
        return self._inside(weighted / back).to(xs.dtype)

    def clarity(self, points: Tensor) -> Tensor:
        """How far (...) points (..., d) are from the centre, where what is unclear or new is found to lie.

        Reference: Khrulkov et al. 2020, section 4; Kim 2023, section 2.3.
        """
        root = math.sqrt(self.curvature)
        return 2 / root * torch.atanh(root * torch.linalg.vector_norm(self._inside(widen(points)), dim=-1))

    def as_euclidean(self, points: Tensor) -> tuple[Tensor, Tensor | None]:
        """The points, weighted by `1 - tau |y|^2`."""
        inside = self._inside(points)
        return inside, self._room(inside)

    def _inside(self, x: Tensor) -> Tensor:
        """Pull points (..., d) back from the rim, where the distance is infinite."""
        limit = _RIM / math.sqrt(self.curvature)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * torch.where(norm > limit, limit / norm.clamp(min=limit), torch.ones_like(norm))

    def _room(self, x: Tensor) -> Tensor:
        """`1 - tau |x|^2` (...) of points (..., d)."""
        return 1 - self.curvature * x.square().sum(dim=-1)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(dim=-1, keepdim=True)
