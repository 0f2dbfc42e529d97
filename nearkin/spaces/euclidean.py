"""Euclidean space: embeddings as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from nearkin.spaces.pairwise import euclidean_distance, widen
from nearkin.spaces.registry import spaces


@spaces.register("euclidean")
@dataclass(frozen=True)
class Euclidean:
    """The whole of R^d with `d(x, y) = |x - y|`.

    Reference: Kim 2023, section 2.3.
    """

    name: ClassVar[str] = "euclidean"

    def project(self, f: Tensor) -> Tensor:
        """Return the embeddings (..., d) unchanged."""
        return f

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (..., n, m) between points (..., n, d) and (..., m, d)."""
        return euclidean_distance(x, y)

    def mean(self, xs: Tensor) -> Tensor:
        """The arithmetic mean (..., d) of points (..., n, d)."""
        return widen(xs).mean(dim=-2).to(xs.dtype)

    def as_euclidean(self, points: Tensor) -> tuple[Tensor, Tensor | None]:
        """The points themselves, unweighted."""
        return points, None

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": self.name}
