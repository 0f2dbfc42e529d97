"""The unit sphere: only directions count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nearkin.errors import ModelError, suggestion
from nearkin.spaces.pairwise import euclidean_distance, widen
from nearkin.spaces.registry import spaces

_STABILITY = 1e-6


@spaces.register("sphere")
@dataclass(frozen=True)
class Sphere:
    """Directions, compared by chord `|x - y|` or by angle.

    Distances are those of directions, so raw vectors may be given as well. The mean projects its inputs again.

    Reference: Kim 2023, section 2.3.

    Args:
        metric: "chord" (0 to 2) or "angle" (0 to pi). Both give the same neighbours.
    """

    name: ClassVar[str] = "sphere"
    metric: str = "chord"

    def __post_init__(self) -> None:
        metrics = ("chord", "angle")
        if self.metric not in metrics:
            raise ModelError(f"The sphere has no metric '{self.metric}'.{suggestion(str(self.metric), metrics)}")

    def project(self, f: Tensor) -> Tensor:
        """Normalise embeddings (..., d): `f / (|f| + 1e-6)`; zero, having no direction, stays zero without gradient."""
        wide = widen(f)
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        return torch.where(norm == 0, torch.zeros_like(wide), wide / (norm + _STABILITY)).to(f.dtype)

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (..., n, m) between points (..., n, d) and (..., m, d)."""
        x, y = _direction(widen(x)), _direction(widen(y))
        chord = euclidean_distance(x, y)
        if self.metric == "chord":
            return chord
        # Half the angle from both diagonals of the rhombus: exact and smooth where acos is neither (0 and pi).
        across = euclidean_distance(x, -y)
        across = torch.where((chord == 0) & (across == 0), torch.ones_like(across), across)
        return 2 * torch.atan2(chord, across)

    def mean(self, xs: Tensor) -> Tensor:
        """The normalised mean (..., d) of normalised points (..., n, d)."""
        return self.project(self.project(widen(xs)).mean(dim=-2)).to(xs.dtype)

    def as_euclidean(self, points: Tensor) -> tuple[Tensor, Tensor | None]:
        """The directions: chord and angle grow together."""
        return _direction(widen(points)), None

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": self.name, "metric": self.metric}


def _direction(x: Tensor) -> Tensor:
    """Vectors (..., d) at length one, whatever their length; zero stays zero, without gradient."""
    largest = x.detach().abs().amax(dim=-1, keepdim=True)
    # Squares of what is scaled to 1 neither overflow nor vanish; the direction does not depend on the scale.
    x = x / torch.where(largest == 0, torch.ones_like(largest), largest)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / torch.where(norm == 0, torch.ones_like(norm), norm))
