"""Neighbours in any space, a chunk of the slots at a time: slower than one product, but bound to nothing."""

from __future__ import annotations

import numpy as np

from nearkin.gallery.index.nearest import nearest
from nearkin.gallery.index.packed import Vectors
from nearkin.search import exact
from nearkin.spaces import Space

_ROWS = 2**17
_QUERIES = 2**10
_MEMORY_MB = 64


def search_chunks(
    space: Space,
    queries: np.ndarray,
    vectors: Vectors,
    allowed: np.ndarray | None,
    k: int,
    exclude: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest vectors (n, d) of queries (q, d): (distances float32, slots int64), each (q, k).

    Every chunk gives its own k nearest and one more, of which one may be excluded; their true order decides.

    Args:
        space: any space.
        queries: float32 (q, d).
        vectors: (n, d).
        allowed: which (n,) may be found; None: all.
        k: how many; if there are fewer the rest is infinity and -1.
        exclude: a slot (q,) that a query must not find, -1 for none.
    """
    distances = np.empty((len(queries), k), np.float32)
    slots = np.empty((len(queries), k), np.int64)
    for start in range(0, len(queries), _QUERIES):
        part = slice(start, start + _QUERIES)
        found = [_of_chunk(space, queries[part], vectors, allowed, k + 1, row) for row in range(0, len(vectors), _ROWS)]
        candidates = np.concatenate([np.empty((len(queries[part]), 0), np.int64), *found], axis=1)
        if exclude is not None:
            candidates[candidates == exclude[part, None]] = -1
        distances[part], slots[part] = nearest(space, queries[part], vectors, candidates, k)
    return distances, slots


def _of_chunk(
    space: Space, queries: np.ndarray, vectors: Vectors, allowed: np.ndarray | None, k: int, first: int
) -> np.ndarray:
    """The k nearest slots (q, at most k) of one chunk."""
    chunk = vectors[first : first + _ROWS]
    chosen = None if allowed is None else np.flatnonzero(allowed[first : first + _ROWS])
    points = chunk if chosen is None or len(chosen) == len(chunk) else chunk[chosen]
    if not len(points):
        return np.empty((len(queries), 0), np.int64)
    found = exact(queries, points, min(k, len(points)), space=space, memory_mb=_MEMORY_MB)[1].numpy()
    return first + (found if chosen is None else chosen[found])
