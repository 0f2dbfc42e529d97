"""Norms of perturbations, their balls, and the steepest way up in each: L1, L2, L-infinity, a mixture of L1 and L-inf.

All work on rows of numbers (B, D). Definitions: docs/methods/robustness.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from nearkin.errors import DataError, suggestion

_BISECTIONS = 60
_TINY = 1e-30


class Norm(ABC):
    """How the size of a perturbation is measured."""

    name: str
    sparse: bool = False
    """Whether a step changes only the coordinates of largest gradient: none of them shall be one that a box holds."""

    @abstractmethod
    def length(self, x: Tensor) -> Tensor:
        """Lengths (...) of vectors (..., D)."""

    @abstractmethod
    def distances(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (B, R) of points (B, D) and (R, D)."""

    @abstractmethod
    def project(self, x: Tensor, radius: float) -> Tensor:
        """The points of the ball around zero that are nearest, in L2, to vectors (B, D)."""

    @abstractmethod
    def steepest(self, gradient: Tensor) -> Tensor:
        """Vectors (B, D) of length 1 along which a function of this gradient (B, D) rises the most; zero at zero."""

    @abstractmethod
    def reach(self, dimension: int, side: float = 1.0) -> float:
        """The length of the diagonal of a cube."""

    def draw(self, like: Tensor, radius: float, generator: torch.Generator | None = None) -> Tensor:
        """Random vectors of the ball, of the shape (B, D) of `like`."""
        way = torch.empty_like(like).normal_(generator=generator)
        share = torch.rand(len(like), 1, generator=generator, dtype=like.dtype, device=like.device)
        return way * (radius * share ** (1 / like.shape[1]) / self.length(way).clamp_min(_TINY).unsqueeze(1))


class L2(Norm):
    """The Euclidean norm."""

    name = "l2"

    def length(self, x: Tensor) -> Tensor:
        """Lengths (...) of vectors (..., D)."""
        return torch.linalg.vector_norm(x, dim=-1)

    def distances(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (B, R) of points (B, D) and (R, D), from differences: nothing is lost to cancellation."""
        return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")

    def project(self, x: Tensor, radius: float) -> Tensor:
        """The nearest points (B, D) of the ball."""
        return x * (radius / self.length(x).clamp_min(_TINY)).clamp_max(1.0).unsqueeze(-1)

    def steepest(self, gradient: Tensor) -> Tensor:
        """Gradients (B, D) scaled to length 1."""
        return functional.normalize(gradient, dim=1, eps=_TINY)

    def reach(self, dimension: int, side: float = 1.0) -> float:
        """The length of the diagonal of a cube."""
        return side * math.sqrt(dimension)


class LInf(Norm):
    """The largest change of a coordinate."""

    name = "linf"

    def length(self, x: Tensor) -> Tensor:
        """Lengths (...) of vectors (..., D)."""
        return x.abs().amax(dim=-1)

    def distances(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (B, R) of points (B, D) and (R, D)."""
        return torch.cdist(x, y, p=math.inf)

    def project(self, x: Tensor, radius: float) -> Tensor:
        """The nearest points (B, D) of the ball."""
        return x.clamp(-radius, radius)

    def steepest(self, gradient: Tensor) -> Tensor:
        """Signs (B, D)."""
        return gradient.sign()

    def reach(self, dimension: int, side: float = 1.0) -> float:
        """The length of the diagonal of a cube."""
        return side

    def draw(self, like: Tensor, radius: float, generator: torch.Generator | None = None) -> Tensor:
        """Random vectors, uniform in the cube, of the shape (B, D) of `like`."""
        return torch.empty_like(like).uniform_(-radius, radius, generator=generator)


@dataclass(frozen=True)
class L1(Norm):
    """The sum of the changes of all coordinates.

    Args:
        share: of the coordinates that a step changes, those of the largest gradient, all by the same amount. One
            coordinate alone would be steepest, but a box soon ends its way (Tramèr and Boneh 2019).
    """

    share: float = 0.01
    name = "l1"
    sparse = True

    def length(self, x: Tensor) -> Tensor:
        """Lengths (...) of vectors (..., D)."""
        return x.abs().sum(dim=-1)

    def distances(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (B, R) of points (B, D) and (R, D)."""
        return torch.cdist(x, y, p=1)

    def project(self, x: Tensor, radius: float) -> Tensor:
        """The nearest points (B, D) of the ball: all sizes less by one threshold, none below 0."""
        if radius == 0:
            return torch.zeros_like(x)
        sizes = x.abs()
        ordered = sizes.sort(dim=1, descending=True).values
        counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype, device=x.device)
        thresholds = (ordered.cumsum(dim=1) - radius) / counts
        last = (ordered > thresholds).sum(dim=1, keepdim=True).clamp_min(1) - 1
        found = (sizes - thresholds.gather(1, last).clamp_min(0)).clamp_min(0) * x.sign()
        return found * (radius / self.length(found).clamp_min(_TINY)).clamp_max(1.0).unsqueeze(1)  # what rounding added

    def steepest(self, gradient: Tensor) -> Tensor:
        """The coordinates (B, D) of largest gradient, all changed by the same amount, 1 in all."""
        count = max(1, round(self.share * gradient.shape[1]))
        places = gradient.abs().topk(count, dim=1).indices
        chosen = torch.zeros_like(gradient).scatter(1, places, 1.0) * gradient.sign()
        return chosen / self.length(chosen).clamp_min(1.0).unsqueeze(1)

    def reach(self, dimension: int, side: float = 1.0) -> float:
        """The length of the diagonal of a cube."""
        return side * dimension


@dataclass(frozen=True)
class Combined(Norm):
    """A mixture of L1 and L-inf: `beta |x|_1 + (1 - beta) |x|_inf`.

    Its ball of radius eps1 holds the L1 ball of radius eps1 and the L-inf ball of radius epsinf, for
    `beta = (eps1 - epsinf) / (epsinf (D - 1))`, and in two dimensions it is their convex hull.

    Reference: Kim 2023, appendix A.

    Args:
        beta: share of L1, between 0 and 1.
    """

    beta: float
    name = "combined"
    sparse = True

    def __post_init__(self) -> None:
        if not 0 < self.beta < 1:
            raise DataError(f"The share of L1 in a combined norm must be a number between 0 and 1, not {self.beta}.")

    @classmethod
    def of_balls(cls, eps1: float, epsinf: float, dimension: int) -> Combined:
        """The norm whose ball of radius eps1 just holds both balls."""
        if not 0 < epsinf < eps1 < dimension * epsinf:
            raise DataError(
                f"A combined ball needs epsinf < eps1 < D epsinf, so that neither ball contains the other, not "
                f"eps1 = {eps1:g} and epsinf = {epsinf:g} in D = {dimension} dimensions."
            )
        return cls((eps1 - epsinf) / (epsinf * (dimension - 1)))

    def length(self, x: Tensor) -> Tensor:
        """Lengths (...) of vectors (..., D)."""
        sizes = x.abs()
        return self.beta * sizes.sum(dim=-1) + (1 - self.beta) * sizes.amax(dim=-1)

    def distances(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (B, R) of points (B, D) and (R, D)."""
        return self.beta * torch.cdist(x, y, p=1) + (1 - self.beta) * torch.cdist(x, y, p=math.inf)

    def project(self, x: Tensor, radius: float) -> Tensor:
        """The nearest points (B, D) of the ball.

        With a multiplier m, sizes are `min((|x| - m beta)_+, t)`, where what t cuts off sums to `m (1 - beta)`; the
        m at which the length is the radius is found by bisection.
        """
        sizes = x.abs()
        outside = self.length(x) > radius
        if not bool(outside.any()):
            return x
        low = torch.zeros(int(outside.sum()), dtype=x.dtype, device=x.device)
        rows = sizes[outside]
        high = rows.amax(dim=1) / self.beta
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            inside = self.length(self._shrunk(rows, middle)) <= radius
            high, low = torch.where(inside, middle, high), torch.where(inside, low, middle)
        found = sizes.clone()
        found[outside] = self._shrunk(rows, high)
        return found * x.sign()

    def _shrunk(self, sizes: Tensor, multiplier: Tensor) -> Tensor:
        """Sizes (B, D) after both penalties, each with its row's multiplier (B,)."""
        soft = (sizes - self.beta * multiplier.unsqueeze(1)).clamp_min(0)
        cut = (1 - self.beta) * multiplier
        ordered = soft.sort(dim=1, descending=True).values
        counts = torch.arange(1, soft.shape[1] + 1, dtype=soft.dtype, device=soft.device)
        tops = (ordered.cumsum(dim=1) - cut.unsqueeze(1)) / counts
        # The cap of the largest count whose smallest member still reaches above it.
        last = (ordered > tops).sum(dim=1, keepdim=True).clamp_min(1) - 1
        return torch.minimum(soft, tops.gather(1, last).clamp_min(0))

    def steepest(self, gradient: Tensor) -> Tensor:
        """The best corner (B, D): the k coordinates of largest gradient, all changed by the same amount."""
        sizes, order = gradient.abs().sort(dim=1, descending=True)
        counts = torch.arange(1, gradient.shape[1] + 1, dtype=gradient.dtype, device=gradient.device)
        step = 1 / (self.beta * counts + (1 - self.beta))
        best = (sizes.cumsum(dim=1) * step).argmax(dim=1, keepdim=True)
        chosen = torch.zeros_like(gradient).scatter(1, order, (counts - 1 <= best).to(gradient.dtype))
        return chosen * gradient.sign() * step[best]

    def reach(self, dimension: int, side: float = 1.0) -> float:
        """The length of the diagonal of a cube."""
        return side * (self.beta * dimension + 1 - self.beta)


@dataclass(frozen=True, eq=False)
class Scaled(Norm):
    """Another norm of vectors whose coordinates are divided first, as a model's normalisation divides pixels.

    Args:
        base: the norm.
        scales: what coordinates are divided by (D,), above 0.
    """

    base: Norm
    scales: Tensor

    @property
    def name(self) -> str:  # type: ignore[override]
        """That of the other norm."""
        return self.base.name

    @property
    def sparse(self) -> bool:  # type: ignore[override]
        """As the other norm."""
        return self.base.sparse

    def _of(self, x: Tensor) -> Tensor:
        return x / self.scales.to(x)

    def length(self, x: Tensor) -> Tensor:
        """Lengths (...) of vectors (..., D)."""
        return self.base.length(self._of(x))

    def distances(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (B, R) of points (B, D) and (R, D)."""
        return self.base.distances(self._of(x), self._of(y))

    def project(self, x: Tensor, radius: float) -> Tensor:
        """The points of the ball that are nearest, once divided, to vectors (B, D)."""
        return self.base.project(self._of(x), radius) * self.scales.to(x)

    def steepest(self, gradient: Tensor) -> Tensor:
        """Vectors (B, D) of length 1 along which a function of this gradient (B, D) rises the most."""
        return self.base.steepest(gradient * self.scales.to(gradient)) * self.scales.to(gradient)

    def reach(self, dimension: int, side: float = 1.0) -> float:
        """No less than the length of the diagonal of a cube."""
        return self.base.reach(dimension, side / float(self.scales.min()))

    def draw(self, like: Tensor, radius: float, generator: torch.Generator | None = None) -> Tensor:
        """Random vectors of the ball, of the shape (B, D) of `like`."""
        return self.base.draw(like, radius, generator) * self.scales.to(like)


_NORMS: dict[str, type[L1] | type[L2] | type[LInf]] = {"l1": L1, "l2": L2, "linf": LInf}
COMBINED = Combined.name


def as_norm(norm: str | Norm) -> Norm:
    """A norm, or the name of one: "l1", "l2" or "linf"."""
    if isinstance(norm, Norm):
        return norm
    if norm == COMBINED:
        raise DataError("The combined norm needs the sizes of its two balls: pass Combined.of_balls(eps1, epsinf, D).")
    if norm not in _NORMS:
        raise DataError(f"There is no norm '{norm}'.{suggestion(str(norm), list(_NORMS))}")
    return _NORMS[norm]()


def norm_of_inputs(name: str, dimension: int, l1_ratio: float) -> Norm:
    """The norm of a name for inputs of D numbers.

    Args:
        name: "l1", "l2", "linf" or "combined".
        dimension: D.
        l1_ratio: of the combined norm: how many times as large as its L-inf ball its L1 ball is, eps1 / epsinf.
    """
    if name == COMBINED and not 1 < l1_ratio < dimension:
        raise DataError(
            f"The L1 ratio of the combined norm must lie between 1 and {dimension:,}, the numbers of an input, not "
            f"{l1_ratio:g}: lower the ratio (audit.attack_l1_ratio)."
        )
    return Combined.of_balls(l1_ratio, 1.0, dimension) if name == COMBINED else as_norm(name)
