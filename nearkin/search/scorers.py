"""What a search may order by: a space, a plain product, or any object with a `distance`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from nearkin.errors import DataError, suggestion
from nearkin.spaces import Sphere, make_space, spaces


@runtime_checkable
class Scorer(Protocol):
    """Anything that tells how far apart vectors are; every space is one."""

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (n, m) between (n, d) and (m, d), the smaller the nearer; they may be negative."""
        ...


class Sides(Protocol):
    """A scorer taken apart: what queries and gallery items add to a score, and how two sides make one."""

    @property
    def width(self) -> int:
        """Columns of a side."""
        ...

    def of_queries(self, points: Tensor) -> Tensor:
        """Sides (..., width) of queries (..., d)."""
        ...

    def of_enrolled(self, points: Tensor) -> Tensor:
        """Sides (..., width) of gallery items (..., d)."""
        ...

    def scores(self, queries: Tensor, enrolled: Tensor, out: Tensor | None = None) -> Tensor:
        """Scores (..., q, n), the larger the nearer, of sides (..., q, width) and (..., n, width); into `out`."""
        ...

    def sizes(self, sides: Tensor) -> Tensor:
        """Upper bounds (...) of the terms that sides (..., width) add to any score, for what rounding may do."""
        ...


@runtime_checkable
class Factorised(Scorer, Protocol):
    """A scorer whose distance is the negative score of two sides, each computed once for all its pairs."""

    def sides(self, dtype: torch.dtype = torch.float32) -> Sides:
        """The sides, computed in a precision, of the scorer as it is now and without anything random."""
        ...


@dataclass(frozen=True)
class InnerProduct:
    """Ordered by the inner product, largest first: `distance = -x.y`."""

    name: ClassVar[str] = "inner-product"
    similarity: ClassVar[bool] = True

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Negative inner products (..., n, m) of (..., n, d) and (..., m, d)."""
        return -(x @ y.mT)


@dataclass(frozen=True)
class Cosine:
    """Ordered by the angle, as the sphere is: `distance = 1 - cos(x, y)`, and 1 where a vector is zero."""

    name: ClassVar[str] = "cosine"
    similarity: ClassVar[bool] = True

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Cosine distances (..., n, m), from 0 to 2, of (..., n, d) and (..., m, d)."""
        # Half of the squared chord: exactly zero between equal directions, which 1 minus a rounded cosine is not.
        lost = (x == 0).all(dim=-1).unsqueeze(-1) | (y == 0).all(dim=-1).unsqueeze(-2)
        half = Sphere().distance(x, y).square() / 2
        return torch.where(lost, torch.ones_like(half), half)


def as_scorer(space: Any) -> Scorer:
    """A scorer from a space, a scorer, or a name: "cosine", "inner-product" or that of a space."""
    if isinstance(space, str):
        named: dict[str, Scorer] = {"cosine": Cosine(), "inner-product": InnerProduct()}
        if space in named:
            return named[space]
        known = [*named, *spaces]
        if space not in known:
            raise DataError(f"There is no space '{space}' to search in.{suggestion(space, known)}")
        return make_space(space)
    if isinstance(space, type) or not isinstance(space, Scorer):
        raise DataError(
            f"The space must be a name, a space or an object with a `distance(x, y)`, not a {type(space).__name__}."
        )
    return space
