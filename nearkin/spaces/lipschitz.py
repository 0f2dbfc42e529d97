"""The Lipschitz ball: long vectors are shortened to length one, short ones keep their length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nearkin.spaces.pairwise import euclidean_distance, widen
from nearkin.spaces.registry import spaces


@spaces.register("lipschitz-ball")
@dataclass(frozen=True)
class LipschitzBall:
    """The closed unit ball with Euclidean distance, entered by a map that never stretches.

    `project(f) = f` if `|f| <= 1`, else `f / |f|`. Its gradient is the identity inside and the tangent projection over
    `|f|` outside, so losses on it stay Lipschitz, which plain normalisation does not give.

    Reference: Gürbüz 2022, section 3.2.4.
    """

    name: ClassVar[str] = "lipschitz-ball"

    def project(self, f: Tensor) -> Tensor:
        """Shorten embeddings (..., d) to length one at most."""
        wide = widen(f)
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        return (wide / torch.where(norm <= 1, torch.ones_like(norm), norm)).to(f.dtype)

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (..., n, m) between points (..., n, d) and (..., m, d)."""
        return euclidean_distance(x, y)

    def mean(self, xs: Tensor) -> Tensor:
        """The arithmetic mean (..., d) of points (..., n, d); a ball is convex, so it stays inside."""
        return widen(xs).mean(dim=-2).to(xs.dtype)

    def as_euclidean(self, points: Tensor) -> tuple[Tensor, Tensor | None]:
        """The points themselves, unweighted."""
        return points, None

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": self.name}
