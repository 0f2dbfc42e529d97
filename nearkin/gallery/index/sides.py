"""Exact search by a learned similarity: what every slot adds to a score is computed once and kept beside the vectors.

It takes `4 (hidden + 1)` bytes a slot, twice that where the similarity is symmetric: 205 MB for 100,000 items and 512
hidden units. Blocks of slots pass through the caches, float32 finds candidates, and float64 decides among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from nearkin.gallery.index.asked import Asked
from nearkin.gallery.index.chunks import search_chunks
from nearkin.gallery.index.packed import stretch
from nearkin.gallery.index.pool import Pool, new_limits
from nearkin.gallery.index.snapshot import Snapshot
from nearkin.search.blocks.workers import Queue, run_workers
from nearkin.search.scorers import Factorised, Sides
from nearkin.spaces import Space

_ROUNDING = float(np.finfo(np.float32).eps) / 2
_CERTAINTY = 6.0  # as in `forms`
_LARGEST = 1e30  # of what a side may add, beyond which float32 overflows
_SIDE_ROWS = 2**12  # slots whose sides are computed together
_BLOCK = 2**20  # numbers of the sides of a block: 4 MB
_MOST_QUERIES = 64
_CROWD = 4096
_SPARSE = 0.1  # share of the slots, below which they are gathered rather than masked
_EXACT_ENTRIES = 2**22  # numbers of candidates' sides in float64: 32 MB
_LEAST = 1024  # slots
_DIGITS = 40  # binary, of the terms of a score in float64 that count
_CPU = torch.device("cpu")


class EnrolledSides:
    """The sides of the slots of one index, computed when a search first needs them.

    Vectors never change, so neither do their sides: only those of slots that came since are computed.

    Args:
        space: what compares.
    """

    def __init__(self, space: Factorised) -> None:
        self.space = space
        self._computing = Lock()
        self._table = torch.empty(0, 0)
        self._count = 0
        self._largest = 0.0

    def upto(self, now: Snapshot) -> tuple[Tensor, float]:
        """The sides float32 (count, width) of a snapshot's slots, and the most that any adds to a score."""
        with self._computing, torch.no_grad():
            if self._count < now.count or not self._table.shape[1]:
                self._extend(now)
            return self._table[: now.count], self._largest

    def _extend(self, now: Snapshot) -> None:
        apart = self.space.sides()
        if len(self._table) < now.count or not self._table.shape[1]:
            room = max(_LEAST, now.count + now.count // 4)  # memory that was never written to is not resident
            table = torch.empty(room, apart.width)
            if self._count:
                table[: self._count] = self._table[: self._count]
            self._table = table  # searches under way keep the old one
        for start in range(self._count, now.count, _SIDE_ROWS):
            stop = min(start + _SIDE_ROWS, now.count)
            sides = apart.of_enrolled(torch.from_numpy(now.vectors[start:stop]))
            self._table[start:stop] = sides
            largest = float(apart.sizes(sides).max())
            self._largest = max(self._largest, largest) if math.isfinite(largest) else math.inf
        self._count = max(self._count, now.count)


def search_sides(space: Space, enrolled: EnrolledSides, now: Snapshot, asked: Asked) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest slots of every query: (distances float32, slots int64), each (q, k), padded with infinity and -1.

    Args:
        space: what compares.
        enrolled: the sides of the slots.
        now: what to search.
        asked: queries, how many neighbours, and which slots may be found.
    """
    queries, k, exclude = asked.queries, asked.k, asked.exclude
    distances = np.full((len(queries), k), np.inf, np.float32)
    slots = np.full((len(queries), k), -1, np.int64)
    if not now.count or not len(queries):
        return distances, slots
    scan = _Scan(enrolled, now, asked.allowed)
    left = []
    for start in range(0, len(queries), _MOST_QUERIES):
        part = slice(start, min(start + _MOST_QUERIES, len(queries)))
        candidates, crowded = scan.candidates(queries[part], k + (exclude is not None))
        if exclude is not None:
            candidates[candidates == exclude[part, None]] = -1
        distances[part], slots[part] = _nearest(enrolled.space.sides(torch.float64), queries[part], now, candidates, k)
        left.append(start + crowded)
    rest = np.concatenate(left)
    if len(rest):
        without = None if exclude is None else exclude[rest]
        found = search_chunks(space, queries[rest], stretch(now.vectors, 0, now.count), asked.allowed, k, without)
        distances[rest], slots[rest] = found
    return distances, slots


class _Scan:
    """The slots of a snapshot that may be found, ready to be compared with queries."""

    def __init__(self, enrolled: EnrolledSides, now: Snapshot, allowed: np.ndarray | None) -> None:
        self._apart = enrolled.space.sides()
        self._table, self._largest = enrolled.upto(now)
        self._allowed = allowed
        self._chosen: np.ndarray | None = None
        if allowed is not None and np.count_nonzero(allowed) < _SPARSE * len(allowed):
            self._chosen, self._allowed = np.flatnonzero(allowed), None

    @torch.no_grad()
    def candidates(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Slots (q, c) that hold the k nearest of queries (q, d), -1 for none, and queries (r,) that have too many."""
        sides = self._apart.of_queries(torch.from_numpy(queries))
        sizes = self._apart.sizes(sides).numpy().astype(np.float64) + self._largest
        if not (sizes < _LARGEST).all():
            return np.full((len(queries), 0), -1, np.int64), np.arange(len(queries))
        tolerance = (_CERTAINTY * (math.sqrt(self._apart.width) + 4) * _ROUNDING * sizes).astype(np.float32)
        limits = new_limits(len(queries))
        new_pool = partial(Pool, k, limits, tolerance, _CROWD + 4 * k)
        blocks = Queue(self._blocks(max(1, _BLOCK // self._apart.width)))
        pools: list[Pool] = []

        def work(_: int) -> None:
            pool = new_pool()
            pools.append(pool)
            for slots in blocks:
                scores = self._apart.scores(sides, self._table[slots]).T.contiguous().numpy()
                if self._allowed is not None:
                    scores[~self._allowed[slots]] = -np.inf
                pool.offer(scores, slots)

        run_workers(work, _CPU)
        return Pool.merged(pools)

    def _blocks(self, size: int) -> Iterator[slice | np.ndarray]:
        count = len(self._table) if self._chosen is None else len(self._chosen)
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            yield part if self._chosen is None else self._chosen[part]


@torch.no_grad()
def _nearest(
    apart: Sides, queries: np.ndarray, now: Snapshot, candidates: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest of candidates (q, c) in float64, as `nearest` gives them; a slot's side is computed once a block.

    What differs by rounding is equal, and goes by the lower slot.
    """
    distances = np.full((len(queries), k), np.inf, np.float32)
    slots = np.full((len(queries), k), -1, np.int64)
    if not candidates.size:
        return distances, slots
    near = np.sort(np.where(candidates < 0, now.count, candidates), axis=1)
    height = max(1, _EXACT_ENTRIES // (near.shape[1] * apart.width))
    for start in range(0, len(near), height):
        rows = slice(start, start + height)
        some = near[rows]
        which, place = np.unique(np.where(some == now.count, 0, some), return_inverse=True)
        enrolled = apart.of_enrolled(torch.from_numpy(now.vectors[which]))
        asked = apart.of_queries(torch.from_numpy(queries[rows]))
        scores = apart.scores(asked[:, None], enrolled[torch.from_numpy(place.reshape(some.shape))])[:, 0]
        size = apart.sizes(asked) + apart.sizes(enrolled).max()
        true = _settled(scores.neg_().numpy(), size.numpy()[:, None])
        true[some == now.count] = np.inf
        order = np.argsort(true, axis=1, kind="stable")[:, :k]  # slots ascend, so equal ones go by the lower one
        found = np.take_along_axis(some, order, axis=1)
        distances[rows, : found.shape[1]] = np.take_along_axis(true, order, axis=1)
        slots[rows, : found.shape[1]] = np.where(found == now.count, -1, found)
    return distances, slots


def _settled(distances: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Distances float64 (r, c) without what rounding may do to terms of a size (r, 1): such differences are none."""
    grain = np.exp2(np.ceil(np.log2(np.maximum(size, np.finfo(np.float64).tiny))) - _DIGITS)
    return np.rint(distances / grain) * grain
