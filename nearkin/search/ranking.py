"""Scores that put a gallery in order for each query, a block of queries at a time.

Where the space allows it, scores are squared Euclidean distances in float32 by one matrix product:
`|x - y|^2 = [x, |x|^2, 1] . [-2y, 1, |y|^2]`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from nearkin.spaces import EuclideanOrder, Space

_BLOCK_ENTRIES = 2**22  # of a score matrix: larger ones leave the cache, smaller ones starve the matrix product
_HIGH, _LOW = (1, 0) if sys.byteorder == "little" else (0, 1)


class Ranking:
    """The order of a gallery for every query.

    Args:
        queries: (q, d).
        gallery: (n, d); None ranks the queries among themselves, each leaving itself out.
        space: whose distance orders.
    """

    def __init__(self, queries: Tensor, gallery: Tensor | None, space: Space) -> None:
        self.leave_one_out = gallery is None
        gallery = queries if gallery is None else gallery
        self.size = len(gallery) - self.leave_one_out
        self._space = space
        self._queries = queries
        # Equal vectors share one column: a matrix product may round equal columns differently, and they must tie.
        self._gallery, self._column = _distinct(gallery)
        self._weights: Tensor | None = None
        self._errors = torch.zeros(len(queries), device=queries.device)
        self._flat = isinstance(space, EuclideanOrder)
        if isinstance(space, EuclideanOrder):
            queries, _ = space.as_euclidean(queries)
            gallery, weights = space.as_euclidean(self._gallery)
            self._weights = None if weights is None else weights.float()
            self._prepare_product(queries, gallery)

    @property
    def rows_at_once(self) -> int:
        """How many queries make a score matrix of bounded size."""
        return max(1, min(1024, _BLOCK_ENTRIES // max(1, self.size)))

    def blocks(self, block: int | None = None) -> Iterator[Tensor]:
        """Row numbers of the queries in blocks (b,)."""
        rows = torch.arange(len(self._queries), device=self._queries.device)
        yield from rows.split(block or self.rows_at_once)

    @torch.no_grad()
    def scores(self, rows: Tensor) -> Tensor:
        """Scores (b, n) in float32, none negative; the smaller the nearer, infinite for the query itself."""
        if self._flat:
            with torch.autocast(self._left.device.type, enabled=False):
                scores = (self._left[rows] @ self._right).clamp_(min=0)
            if self._weights is not None:
                scores /= self._weights
        else:
            scores = self._space.distance(self._queries[rows], self._gallery).float()
        if self._column is not None:
            scores = scores[:, self._column]
        if self.leave_one_out:
            scores.scatter_(1, rows.unsqueeze(1), torch.inf)
        return scores

    def errors(self, rows: Tensor) -> Tensor:
        """By how much (b,) the scores of a query can be off through rounding."""
        return self._errors[rows]

    def _prepare_product(self, queries: Tensor, gallery: Tensor) -> None:
        origin = _grid_mean(gallery)
        queries, gallery = queries - origin, gallery - origin
        # A power of two keeps every digit, and squares can neither overflow nor vanish.
        scale = 2.0 ** -torch.frexp(torch.maximum(queries.abs().amax(), gallery.abs().amax())).exponent.double()
        queries, gallery = (queries * scale).float(), (gallery * scale).float()
        xx, yy = queries.square().sum(dim=1, keepdim=True), gallery.square().sum(dim=1, keepdim=True)
        self._left = torch.cat([queries, xx, torch.ones_like(xx)], dim=1)
        self._right = torch.cat([-2 * gallery, torch.ones_like(yy), yy], dim=1).T
        largest = (xx[:, 0].sqrt() + yy.amax().sqrt()).square()
        self._errors = (queries.shape[1] + 8) * torch.finfo(torch.float32).eps * largest
        if self._weights is not None:
            self._errors = self._errors / self._weights.amin()


def smallest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest of every row of (b, n), as (scores, columns), each (b, k); equal scores by the lower column.

    A score and its column form one integer, so that the order is total, also at the k-th place. Scores are float32 and
    not negative: their bits order as they do.
    """
    keys = torch.empty(scores.shape, dtype=torch.int64, device=scores.device)
    halves = keys.view(torch.int32).view(*scores.shape, 2)
    halves[..., _HIGH] = scores.view(torch.int32)
    halves[..., _LOW] = torch.arange(scores.shape[1], dtype=torch.int32, device=scores.device)
    top = keys.topk(k, dim=1, largest=False, sorted=True).values
    halves = top.view(torch.int32).view(*top.shape, 2)
    return halves[..., _HIGH].contiguous().view(torch.float32), halves[..., _LOW].long()


def _distinct(gallery: Tensor) -> tuple[Tensor, Tensor | None]:
    """The distinct rows, and for every row its place among them; None if all are distinct."""
    rows = np.ascontiguousarray((gallery + 0.0).cpu().numpy())  # -0.0 becomes 0.0, so equal rows have equal bytes
    whole = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
    _, first, place = np.unique(whole, return_index=True, return_inverse=True)
    if len(first) == len(rows):
        return gallery, None
    return gallery[torch.from_numpy(first).to(gallery.device)], torch.from_numpy(place).to(gallery.device)


def _grid_mean(points: Tensor) -> Tensor:
    """A round point (d,) near the mean of (n, d), subtracting which does not spoil exact ties.

    Far from the origin, a product of vectors loses the digits in which the points differ. The grid is as coarse as the
    points are spread, so data around the origin stay as they are and whole numbers stay whole.
    """
    mean = points.double().mean(dim=0)
    spread = (points - mean).abs().amax()
    grid = 2.0 ** torch.frexp(spread).exponent.double()
    return ((mean / grid).round() * grid).to(points.dtype)
