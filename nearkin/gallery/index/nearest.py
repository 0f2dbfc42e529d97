"""The true order of a few candidates, as `nearkin.search.exact` gives it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nearkin.search.blocks.order import settled
from nearkin.spaces import Space, Sphere

_ENTRIES = 2**18  # of gathered vectors, in float64: a space makes several copies
_PARALLEL = 1e-14  # a chord in float64 of what is one direction


def nearest(
    space: Space, queries: np.ndarray, vectors: np.ndarray, candidates: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest candidates of every query: (distances float32, slots int64), each (q, k).

    Distances are computed in float64; what differs by rounding is equal, and goes by the lower slot.

    Args:
        space: what tells distances.
        queries: float32 (q, d).
        vectors: float32 (n, d).
        candidates: slots (q, c), -1 where there is none.
        k: how many; if there are fewer candidates the rest is infinity and -1.
    """
    distances = np.full((len(queries), k), np.inf, np.float32)
    slots = np.full((len(queries), k), -1, np.int64)
    if not candidates.size:
        return distances, slots
    none = len(vectors)
    near = np.sort(np.where(candidates < 0, none, candidates), axis=1)
    true = _distances(space, queries, vectors, np.minimum(near, none - 1))
    true[near == none] = np.inf
    place = np.argsort(true, axis=1, kind="stable")[:, :k]  # slots ascend, so equal distances go by the lower one
    near = np.take_along_axis(near, place, axis=1)
    distances[:, : near.shape[1]] = np.take_along_axis(true, place, axis=1)
    slots[:, : near.shape[1]] = np.where(near == none, -1, near)
    return distances, slots


@torch.no_grad()
def _distances(space: Space, queries: np.ndarray, vectors: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Distances (q, c), float64, of queries (q, d) to the vectors numbered by `near` (q, c)."""
    distances = np.empty(near.shape)
    width = max(1, min(near.shape[1], _ENTRIES // queries.shape[1]))
    height = max(1, _ENTRIES // (width * queries.shape[1]))
    for top in range(0, len(near), height):
        rows = slice(top, top + height)
        x = torch.from_numpy(queries[rows].astype(np.float64)).unsqueeze(1)
        for left in range(0, near.shape[1], width):
            part = rows, slice(left, left + width)
            y = torch.from_numpy(vectors[near[part]].astype(np.float64))
            distances[part] = _without_noise(space, space.distance(x, y)[:, 0]).numpy()
    return distances


def _without_noise(space: Space, distances: Tensor) -> Tensor:
    if isinstance(space, Sphere):
        distances = distances.masked_fill(distances < _PARALLEL, 0.0)  # one direction is one point at any length
    return settled(distances.double().contiguous())
