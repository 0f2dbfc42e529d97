"""What a space is: a place for embeddings with a distance and a mean; spaces by name, Euclidean and the unit sphere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from nearkin.checks import is_real
from nearkin.errors import ModelError, suggestion
from nearkin.registry import Registry


def widen(x: Tensor) -> Tensor:
    """The same values in float32 or better: halves and integers cannot carry a distance."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


_SQUARES = (1e-18, 1e18)
"""Between which float32 numbers have float32 squares."""


def squarable(distances: Tensor) -> Tensor:
    """The same distances, any shape, in float64 where their squares would leave float32."""
    wide = widen(distances)
    if wide.dtype == torch.float64 or not wide.numel():
        return wide
    low, high = (float(end) for end in torch.aminmax(wide.detach()))
    largest = max(-low, high)
    return wide if largest == 0 or _SQUARES[0] < largest < _SQUARES[1] else wide.double()


def euclidean_distance(x: Tensor, y: Tensor) -> Tensor:
    """Distances (..., n, m) between points (..., n, d) and (..., m, d).

    Differences are summed directly, without an (n, m, d) tensor: the shortcut by a matrix product cannot tell close
    from equal points, and would run in half precision under autocast. The gradient at distance zero is zero.
    """
    return torch.cdist(widen(x), widen(y), compute_mode="donot_use_mm_for_euclid_dist")


@runtime_checkable
class Space(Protocol):
    """How two vectors are compared.

    All methods are differentiable and work on leading batch dimensions. Equal points are at distance zero, with zero
    gradient.

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


spaces: Registry[Callable[..., Space]] = Registry("space")


def make_space(name: str, **parameters: Any) -> Space:
    """Build a space: `make_space("sphere", metric="angle")`."""
    spaces.check(name, parameters)
    return spaces.get(name)(**parameters)


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


class StraightSpace:
    """Base of spaces: points are compared along straight lines, unless a space says otherwise."""

    name: ClassVar[str]

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
        return {"name": self.name, **vars(self)}


@spaces.register("euclidean")
@dataclass(frozen=True)
class Euclidean(StraightSpace):
    """The whole of R^d with `d(x, y) = |x - y|`.

    Reference: Kim 2023, section 2.3.
    """

    name: ClassVar[str] = "euclidean"

    def project(self, f: Tensor) -> Tensor:
        """Return the embeddings (..., d) unchanged."""
        return f


_STABILITY = 1e-6
_LARGEST_RADIUS = 1000.0


@spaces.register("sphere")
@dataclass(frozen=True)
class Sphere(StraightSpace):
    """Directions, compared by chord `|x - y|` or by angle.

    Distances are those of directions, so raw vectors may be given as well. The mean projects its inputs again.

    Reference: Kim 2023, section 2.3.

    Args:
        metric: "chord" (0 to 2) or "angle" (0 to pi). Both give the same neighbours.
        radius: length of embeddings and means; distances are those of directions whatever it is.
    """

    name: ClassVar[str] = "sphere"
    metric: str = "chord"
    radius: float = 1.0

    def __post_init__(self) -> None:
        metrics = ("chord", "angle")
        if self.metric not in metrics:
            raise ModelError(f"The sphere has no metric '{self.metric}'.{suggestion(str(self.metric), metrics)}")
        if not (is_real(self.radius) and 0 < self.radius <= _LARGEST_RADIUS):
            raise ModelError(
                f"The radius of a sphere must be a number above 0 and at most {_LARGEST_RADIUS:g}, not {self.radius!r}."
            )

    def __repr__(self) -> str:
        radius = "" if self.radius == 1 else f", radius={self.radius:g}"
        return f"Sphere(metric={self.metric!r}{radius})"

    def project(self, f: Tensor) -> Tensor:
        """Normalise embeddings (..., d): `f / (|f| + 1e-6)` times the radius; zero stays zero without gradient."""
        wide = widen(f)
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        points = torch.where(norm == 0, torch.zeros_like(wide), wide / (norm + _STABILITY))
        return (points if self.radius == 1 else self.radius * points).to(f.dtype)

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
        """Name and parameters; the usual radius goes without saying, as before there was another."""
        told = super().to_dict()
        return told if self.radius != 1 else {key: value for key, value in told.items() if key != "radius"}


def _direction(x: Tensor) -> Tensor:
    """Vectors (..., d) at length one, whatever their length; zero stays zero, without gradient."""
    largest = x.detach().abs().amax(dim=-1, keepdim=True)
    # Squares of what is scaled to 1 neither overflow nor vanish; the direction does not depend on the scale.
    x = x / torch.where(largest == 0, torch.ones_like(largest), largest)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / torch.where(norm == 0, torch.ones_like(norm), norm))
