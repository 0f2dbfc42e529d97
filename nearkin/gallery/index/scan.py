"""Neighbours by one product with all vectors: blocks of slots pass through the caches, and only candidates are kept.

A product with one query is bound by memory. Every worker takes blocks of its own, and the scores of a block never leave
its cache; float64 decides among the few slots that float32 cannot tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from nearkin.gallery.index.forms import Form
from nearkin.gallery.index.packed import PackedRows
from nearkin.gallery.index.pool import Pool, new_limits
from nearkin.gallery.index.snapshot import Snapshot
from nearkin.search.blocks.workers import Queue, run_workers

_ONE_ENTRIES = 2**21  # of the vectors of a block: 8 MB
_FEW_ENTRIES = 2**19  # smaller, as each query passes over it
_PACKED_ENTRIES = 2**17  # smaller still: what was widened is to be in the cache when it is multiplied
_MANY_ENTRIES = 2**18  # of the scores of a block
_FEW = 6  # queries, up to which a product row by row is faster than a product of matrices
_MOST_QUERIES = 256
_MOST_WANTED = 2**19  # neighbours of all queries in work
_CROWD = 4096
_SPARSE = 0.1  # share of the slots, below which they are gathered rather than masked
_CPU = torch.device("cpu")

Blocks = Iterator["slice | np.ndarray"]


class Scan:
    """The slots of a snapshot that may be found, ready to be compared with queries.

    Args:
        form: how products become scores.
        snapshot: vectors of this moment.
        allowed: which slots (count,) may be found; None: all.
    """

    def __init__(self, form: Form, snapshot: Snapshot, allowed: np.ndarray | None) -> None:
        self._form = form
        self._snapshot = snapshot
        self._allowed = allowed
        self._chosen: np.ndarray | None = None
        if allowed is not None and np.count_nonzero(allowed) < _SPARSE * len(allowed):
            self._chosen = np.flatnonzero(allowed)
            self._allowed = None

    def candidates(
        self, queries: np.ndarray, lengths: np.ndarray, k: int
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Candidates that hold the k nearest of queries (q, d), a part of the queries at a time.

        Args:
            queries: float32 (q, d), of lengths that the form fits, none of them zero on the sphere.
            lengths: of the queries, float64 (q,).
            k: how many.

        Yields:
            Which queries, their candidates (r, c) with -1 where there is none, and those of the r queries, by number,
            that have too many candidates and were given up.
        """
        left = self._form.queries(queries)
        tolerance = self._form.tolerance(lengths, self._snapshot.longest, queries.shape[1])
        step = min(_MOST_QUERIES, max(1, _MOST_WANTED // k))
        for start in range(0, len(queries), step):
            part = slice(start, min(start + step, len(queries)))
            limits = new_limits(part.stop - start)
            look = self._look_few if len(limits) <= _FEW else self._look_many
            pools = look(left[part], partial(Pool, k, limits, tolerance[part], _CROWD + 4 * k))
            yield part, *Pool.merged(pools)

    def _look_few(self, left: np.ndarray, new_pool: Callable[[], Pool]) -> list[Pool]:
        """Offer all scores of a few queries, row by row, on all workers."""
        entries = _ONE_ENTRIES if len(left) == 1 else _FEW_ENTRIES
        if isinstance(self._snapshot.vectors, PackedRows):
            entries = _PACKED_ENTRIES
        size = max(1, entries // left.shape[1])
        blocks = Queue(self._blocks(size))
        pools: list[Pool] = []

        def work(_: int) -> None:
            pool = new_pool()
            pools.append(pool)
            buffer = np.empty((size, len(left)), np.float32)
            for slots in blocks:
                vectors = self._snapshot.vectors[slots]
                scores = buffer[: len(vectors)]
                for column, query in enumerate(left):
                    _products(vectors, query, scores[:, column])
                self._offer(pool, slots, scores)

        if self._size <= size:
            work(0)
        else:
            run_workers(work, _CPU)
        return pools

    def _look_many(self, left: np.ndarray, new_pool: Callable[[], Pool]) -> list[Pool]:
        """Offer all scores of many queries, by products of matrices, on all workers.

        The products are torch's, which has one thread in each worker: those of numpy's library keep on spinning for a
        while after every product, and take the cores from whatever else the process does.
        """
        size = max(1, _MANY_ENTRIES // len(left))
        right = torch.from_numpy(np.ascontiguousarray(left.T))
        blocks = Queue(self._blocks(size))
        pools: list[Pool] = []

        def work(_: int) -> None:
            pool = new_pool()
            pools.append(pool)
            buffer = torch.empty(min(size, self._size), len(left))
            for slots in blocks:
                vectors = torch.from_numpy(self._snapshot.vectors[slots])
                scores = torch.mm(vectors, right, out=buffer[: len(vectors)])
                self._offer(pool, slots, scores.numpy())

        run_workers(work, _CPU)
        return pools

    def _offer(self, pool: Pool, slots: slice | np.ndarray, products: np.ndarray) -> None:
        self._form.finish(products, self._snapshot.extra[slots])
        if self._allowed is not None:
            products[~self._allowed[slots]] = -np.inf
        pool.offer(products, slots)

    @property
    def _size(self) -> int:
        return self._snapshot.count if self._chosen is None else len(self._chosen)

    def _blocks(self, size: int) -> Blocks:
        for start in range(0, self._size, size):
            part = slice(start, min(start + size, self._size))
            yield part if self._chosen is None else self._chosen[part]


def _products(vectors: np.ndarray, query: np.ndarray, out: np.ndarray) -> None:
    """Products (n,) of vectors (n, d) with a query (d,)."""
    if hasattr(np, "vecdot"):  # from numpy 2.0 on; it starts no threads of its own, so workers do not hinder each other
        np.vecdot(vectors, query, out=out)
    else:
        np.matmul(vectors, query, out=out)
