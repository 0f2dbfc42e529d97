"""How one product of float32 vectors becomes a score that orders as a space does; the larger, the nearer.

| space | query | extra, of every slot | score |
| --- | --- | --- | --- |
| sphere | `x / |x|` | `1 / |y|`, 0 for the zero vector | `x.y extra`, the cosine |
| Euclidean space, Lipschitz ball | `x` | `|y|^2 / 2` | `x.y - extra`, `-|x - y|^2 / 2` but for a constant |

Stored vectors are used as they are, so nothing is copied; what they lack in precision is in the tolerance.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from nearkin.spaces import Euclidean, LipschitzBall, Space, Sphere

_ROUNDING = float(np.finfo(np.float32).eps) / 2
_CERTAINTY = 6.0  # a sum of d terms errs by less than 6 sqrt(d) roundings but once in 10^7, see docs/methods/search.md
_UNDERFLOW = 2.0**-100
_SQUARES = (1e-30, 1e30)  # beyond, squares in float32 vanish or overflow
_LENGTHS = (1e-15, 1e15)  # beyond, scores do
_ZERO_CHORD = 0.5  # the cosine whose chord is 1, which is the zero vector's distance to all directions


class Form(Protocol):
    """Scores of one space."""

    def extra(self, lengths: np.ndarray) -> np.ndarray:
        """What (n,) float32 to keep of vectors with these lengths, float64 (n,)."""
        ...

    def fits(self, lengths: np.ndarray) -> np.ndarray:
        """Whether (n,) vectors of these lengths can be scored in float32."""
        ...

    def queries(self, queries: np.ndarray) -> np.ndarray:
        """The left side (q, d) float32 of the product."""
        ...

    def finish(self, products: np.ndarray, extra: np.ndarray) -> None:
        """Turn products (n, q) into scores, in place; `extra` (n,)."""
        ...

    def tolerance(self, lengths: np.ndarray, longest: float, dimension: int) -> np.ndarray:
        """By how much (q,) the scores of queries with these lengths may be off; `longest` is of the stored vectors."""
        ...


class _Directions:
    """Cosines, whatever the lengths."""

    def __init__(self, zero: float) -> None:
        self._zero = zero  # score of a zero vector

    def extra(self, lengths: np.ndarray) -> np.ndarray:
        return np.divide(1, lengths, out=np.zeros(len(lengths)), where=lengths > 0).astype(np.float32)

    def fits(self, lengths: np.ndarray) -> np.ndarray:
        return (lengths == 0) | ((lengths > _LENGTHS[0]) & (lengths < _LENGTHS[1]))

    def queries(self, queries: np.ndarray) -> np.ndarray:
        wide = queries.astype(np.float64)
        return (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32)

    def finish(self, products: np.ndarray, extra: np.ndarray) -> None:
        products *= extra[:, None]
        if self._zero:
            lost = extra == 0
            if lost.any():
                products[lost] = self._zero

    def tolerance(self, lengths: np.ndarray, longest: float, dimension: int) -> np.ndarray:
        # the product's error, half as much again for that of 1 / |y|, and a few roundings
        return np.full(len(lengths), (1.5 * _CERTAINTY * math.sqrt(dimension) + 5) * _ROUNDING, np.float32)


class _Halves:
    """Negative halves of squared distances, but for the query's own."""

    def extra(self, lengths: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # such lengths do not fit, so it is never used
            return (lengths**2 / 2).astype(np.float32)

    def fits(self, lengths: np.ndarray) -> np.ndarray:
        return lengths < _LENGTHS[1]

    def queries(self, queries: np.ndarray) -> np.ndarray:
        return queries

    def finish(self, products: np.ndarray, extra: np.ndarray) -> None:
        products -= extra[:, None]

    def tolerance(self, lengths: np.ndarray, longest: float, dimension: int) -> np.ndarray:
        root = math.sqrt(dimension) + 2
        largest = lengths * longest + longest**2 / 2 + _UNDERFLOW * root
        return (_CERTAINTY * root * _ROUNDING * largest).astype(np.float32)


def form_of(space: Space) -> Form | None:
    """The form of a space, or None if it has none; a subclass may have a distance of its own, and has none."""
    if type(space) is Sphere:
        return _Directions(_ZERO_CHORD if space.metric == "chord" else 0.0)
    return _Halves() if type(space) in (Euclidean, LipschitzBall) else None


def lengths_of(vectors: np.ndarray) -> np.ndarray:
    """Lengths (n,) float64 of vectors (n, d), accurate to float32; NaN or infinite where a vector is."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("nd,nd->n", vectors, vectors).astype(np.float64)
        extreme = np.flatnonzero(~((squares > _SQUARES[0]) & (squares < _SQUARES[1])))
        if len(extreme):
            squares[extreme] = np.square(vectors[extreme], dtype=np.float64).sum(axis=1)
    return np.sqrt(squares)
