"""What a search takes: vectors, checked, and what orders them.

That is a space, a plain product, any object with a `distance`, or a scorer with two sides. What each side of such a
scorer adds to a score is computed once; pairs combine two sides.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import check_whole, is_real
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


ROUNDING = torch.finfo(torch.float32).eps / 2
"""Relative error of one rounding to float32."""

CERTAINTY = 6.0
"""A product of d terms errs by less than 6 sqrt(d) roundings but once in 10^7 (Higham and Mary 2019, theorem 2.4)."""

_CHUNK_ENTRIES = 2**18
_NOISE = 2.0**-44
"""Times the size of its terms, what float64 cannot tell of a score: sums of hundreds of terms err by less."""


class Factors:
    """Both sides of a factorised scorer between queries and a gallery.

    Args:
        gallery: (n, d).
        scorer: what gives the sides.
    """

    def __init__(self, gallery: Tensor, scorer: Factorised) -> None:
        self._gallery = gallery
        self._name = type(scorer).__name__
        self._sides = scorer.sides(torch.float32)
        self.exact = scorer.sides(torch.float64)
        self.width = self._sides.width
        self._reach = 0.0
        self._unseen = torch.ones(len(gallery), dtype=torch.bool, device=gallery.device)
        self._all_seen = False
        self._lock = threading.Lock()

    def left(self, points: Tensor) -> Tensor:
        """Sides (b, width) of queries (b, d)."""
        return self._sides.of_queries(points)

    def right(self, rows: Tensor | slice) -> Tensor:
        """Sides (m, width) of gallery items."""
        sides = self._sides.of_enrolled(self._gallery[rows])
        if not self._all_seen:
            largest = self._checked(self._sides.sizes(sides))
            with self._lock:
                self._reach = max(self._reach, largest)
                self._unseen[rows] = False
        return sides

    def scores(self, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """Scores (b, m) into `out`."""
        return self._sides.scores(left, right, out)

    def tolerance(self, queries: Tensor) -> Tensor:
        """By how much (b,) the scores of queries (b, d) may be off through rounding."""
        sizes = self._sides.sizes(self.left(queries))
        self._checked(sizes)
        return CERTAINTY * math.sqrt(self.width) * ROUNDING * (sizes + self._largest())

    def without_noise(self, distances: Tensor, left: Tensor) -> Tensor:
        """Distances (b, c), float64, those of a row within rounding of the next made equal; `left` (b, width)."""
        noise = (_NOISE * (self.exact.sizes(left) + self._largest())).unsqueeze(1)
        if distances.shape[1] == 1:  # a single one is rounded to a grid
            grid = torch.exp2(torch.ceil(torch.log2(4 * noise)))
            return torch.where(grid > 0, (distances / grid).round() * grid, distances)
        ascending, place = distances.sort(dim=1)
        ascending[:, 1:].masked_fill_(ascending.diff(dim=1) <= noise, -torch.inf)
        return torch.empty_like(distances).scatter_(1, place, ascending.cummax(dim=1).values)

    def _largest(self) -> float:
        """The largest size of all gallery items; those that no search has prepared yet are looked at now."""
        if not self._all_seen:
            for part in slices(len(self._gallery), max(1, _CHUNK_ENTRIES // self.width)):
                if bool(self._unseen[part].any()):
                    self.right(part)
            self._all_seen = True
        return self._reach

    def _checked(self, sizes: Tensor) -> float:
        largest = float(sizes.amax()) if len(sizes) else 0.0
        if not math.isfinite(2 * largest):
            raise DataError(
                f"The similarities of {self._name} do not fit single precision: scale the embeddings so that they do "
                "not overflow."
            )
        return largest


def slices(size: int, step: int) -> Iterator[slice]:
    """Slices of at most `step` that cover `size`."""
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


_HALVES = (torch.float16, torch.bfloat16)
_CHECKED_ENTRIES = 2**19
_LEAST_MB = 64


def as_vectors(values: Any, what: str = "embeddings", *, halves: bool = False) -> Tensor:
    """A detached float32 or float64 tensor (n, d) of an array, tensor or nested list; with `halves` those stay as well.

    Raises:
        DataError: if it is not a matrix of finite numbers.
    """
    if isinstance(values, Tensor):
        if values.is_complex() or values.layout != torch.strided:
            raise DataError(f"The {what} must be a plain tensor of real numbers, not {values.dtype}, {values.layout}.")
        vectors = values.detach()
    else:
        if isinstance(values, np.ma.MaskedArray):
            raise DataError(f"The {what} are a masked array: fill in or leave out what is masked.")
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise DataError(f"The {what} must be rows of one length, a matrix of numbers ({error}).") from error
        if array.dtype.kind == "f" and array.dtype.itemsize > 8:
            array = array.astype(np.float64)
        if array.dtype.kind not in "fiub":
            raise DataError(f"The {what} must be numbers, not {array.dtype}.")
        strange = not array.dtype.isnative or min(array.strides, default=0) < 0  # to torch
        if strange or not array.flags.writeable:
            array = array.astype(array.dtype.newbyteorder("="), order="C")
        vectors = torch.from_numpy(array)
    if vectors.dim() != 2 or vectors.shape[1] == 0:
        raise DataError(f"The {what} must have the shape (items, dimensions), not {tuple(vectors.shape)}.")
    if vectors.dtype not in (torch.float32, torch.float64) and not (halves and vectors.dtype in _HALVES):
        # Whole numbers beyond 2^24 are not float32's.
        vectors = vectors.double() if vectors.dtype in (torch.int32, torch.int64) else vectors.float()
    # What is not finite makes no finite sum; a sum that is not finite may have overflowed, so rows are then looked at.
    if bool(vectors.sum().isfinite()):
        return vectors
    chunks = vectors.split(max(1, _CHECKED_ENTRIES // vectors.shape[1]))
    largest = torch.cat([torch.linalg.vector_norm(part, torch.inf, dim=1) for part in chunks])
    bad = torch.nonzero(~largest.isfinite())[:, 0]
    if len(bad):
        raise DataError(f"The {what} hold NaN or infinite values in {len(bad)} rows, the first is row {int(bad[0])}.")
    return vectors


def as_pair(queries: Any, gallery: Any | None) -> tuple[Tensor, Tensor | None]:
    """Queries (q, d) and gallery (n, d) or None as tensors that can be compared; halves stay halves."""
    x = as_vectors(queries, "queries", halves=True)
    if gallery is None:
        return x, None
    y = as_vectors(gallery, "gallery", halves=True).to(x.device)
    if x.shape[1] != y.shape[1]:
        raise DataError(f"The queries have {x.shape[1]} dimensions and the gallery has {y.shape[1]}: they must agree.")
    return x, y


def as_exclude(exclude: Any | None, queries: int, items: int, *, leave_one_out: bool) -> np.ndarray | None:
    """The item (q,) int64 that every query must not find, -1 for none; None if nothing is hidden at all."""
    if exclude is None:
        return np.arange(queries) if leave_one_out else None
    if leave_one_out:
        raise DataError("`exclude` requires a gallery: without one, every query leaves out itself.")
    hidden = np.asarray(exclude.detach().cpu() if isinstance(exclude, Tensor) else exclude)
    if hidden.shape != (queries,) or hidden.dtype.kind not in "iu":
        raise DataError(f"`exclude` must be {queries} whole numbers, an item's index or -1 for each query.")
    if len(hidden) and not (hidden.min() >= -1 and hidden.max() < items):
        raise DataError(f"`exclude` must hold indices of the gallery's {items} items, or -1 for none.")
    return hidden.astype(np.int64)


def check_k(k: int, available: int) -> None:
    """Refuse a number of neighbours that cannot be found."""
    check_whole(k, "k", 1)
    if k > available:
        raise DataError(f"Cannot return k={k} neighbours: only {available} items can be searched.")


def memory_bytes(memory_mb: float) -> int:
    """A budget in MB as bytes; a search needs some room to work in."""
    if not is_real(memory_mb) or not memory_mb >= _LEAST_MB:
        raise DataError(f"`memory_mb` must be at least {_LEAST_MB}, not {memory_mb!r}.")
    return int(min(memory_mb, 2**40) * 2**20)
