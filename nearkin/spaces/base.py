"""What a space is: a place for embeddings with a distance and a mean."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Space(Protocol):
    """How two vectors are compared.

    All methods are differentiable and work on leading batch dimensions. Equal points are at distance
    zero, with zero gradient.
    Half-precision inputs are computed in float32: `project` and `mean` give back the input's type, `distance` float32.
    """

    name: ClassVar[str]

    def project(self, f: Tensor) -> Tensor:
        """Raw embeddings (..., d) to points of the space (..., d)."""
        ...

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (..., n, m) between points (..., n, d) and (..., m, d)."""
        ...

    def mean(self, xs: Tensor) -> Tensor:
        """The mean (..., d), or prototype, of points (..., n, d)."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters, so that `make_space(**space.to_dict())` builds the space again."""
        ...


@runtime_checkable
class EuclideanOrder(Protocol):
    """A space whose neighbours can be ranked by Euclidean distances, hence by one matrix product."""

    def as_euclidean(self, points: Tensor) -> tuple[Tensor, Tensor | None]:
        """Vectors (n, d) and weights (n,) or None.

        For every x, ordering the points y by `|x - y|^2 / weight_y` is ordering them by `distance(x, y)`.
        """
        ...
