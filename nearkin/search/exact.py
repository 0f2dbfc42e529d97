"""Exact nearest neighbours by brute force, in blocks of queries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nearkin.errors import DataError
from nearkin.search.ranking import Ranking, smallest
from nearkin.search.vectors import as_pair
from nearkin.spaces import Space, Sphere

_GATHER_ENTRIES = 2**24
_SPHERE = Sphere()


@torch.no_grad()
def exact(
    queries: Any, gallery: Any | None = None, k: int = 10, *, space: Space = _SPHERE, block: int | None = None
) -> tuple[Tensor, Tensor]:
    """The k nearest gallery items of every query: (distances, indices), each (q, k), nearest first.

    Equal distances go by the lower index. Results do not depend on the block. Memory grows with the block, not with the
    number of pairs.

    Args:
        queries: points of the space (q, d), array or tensor.
        gallery: points (n, d); None searches the queries among themselves, where a query never finds itself but does
            find its exact copies.
        k: how many neighbours.
        space: whose distance to use.
        block: how many queries to compare at a time; chosen by the size of the gallery if None.
    """
    x, y = as_pair(queries, gallery)
    points = x if y is None else y
    available = len(points) - (y is None)
    if not 1 <= k <= available:
        raise DataError(f"Cannot return k={k} neighbours: only {available} items can be searched, and k starts at 1.")
    if block is not None and block < 1:
        raise DataError(f"The block must be at least 1, not {block}.")
    distances = torch.empty(len(x), k, device=x.device)
    indices = torch.empty(len(x), k, dtype=torch.long, device=x.device)
    if len(x):
        ranking = Ranking(x, y, space)
        for rows in ranking.blocks(block):
            distances[rows], indices[rows] = _search_block(ranking, rows, x, points, k, space)
    return distances, indices


def _search_block(
    ranking: Ranking, rows: Tensor, x: Tensor, points: Tensor, k: int, space: Space
) -> tuple[Tensor, Tensor]:
    """Neighbours of a block: candidates by score, order by true distance, doubtful queries again in full."""
    wide = min(k + k // 4 + 16, ranking.size)
    scores, candidates = smallest(ranking.scores(rows), wide)
    candidates = candidates.sort(dim=1).values
    step = max(1, _GATHER_ENTRIES // (wide * x.shape[1]))
    true = torch.cat(
        [
            _distance(space, x[some].unsqueeze(1), points[near])[:, 0]
            for some, near in zip(rows.split(step), candidates.split(step), strict=True)
        ]
    )
    distances, order = true.sort(dim=1, stable=True)  # candidates ascend, so equal distances go by index
    distances, indices = distances[:, :k].contiguous(), candidates.gather(1, order[:, :k])
    if wide < ranking.size:
        # An item left out might belong to the k nearest if its score lies within rounding of theirs.
        doubtful = (scores[:, k - 1] + 2 * ranking.errors(rows) >= scores[:, -1]).nonzero()[:, 0]
        for some in doubtful.split(64):
            full = _distance(space, x[rows[some]], points)
            if ranking.leave_one_out:
                full.scatter_(1, rows[some].unsqueeze(1), torch.inf)
            distances[some], indices[some] = smallest(full, k)
    return distances, indices


def _distance(space: Space, x: Tensor, y: Tensor) -> Tensor:
    """Distances rounded from double precision: equal pairs tie in float32, however the machine computes a tanh."""
    return space.distance(x.double(), y.double()).float()
