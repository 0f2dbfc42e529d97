"""Candidates that a scan meets: all that may be among the k nearest, given how far scores may be off."""

from __future__ import annotations

import numpy as np

_GROUP = 16
_NONE = np.finfo(np.float32).min  # below every score but that of a hidden slot


class Pool:
    """What one worker found for q queries, cut down whenever it has grown.

    Args:
        k: how many neighbours are wanted.
        limits: the least score (q,) that may still be needed; workers share it, and whoever knows better raises it. A
            raise that is lost to another worker's costs a little work, never a neighbour.
        tolerance: by how much (q,) scores may be off.
        most: how many candidates a query may have; one with more is given up.
    """

    def __init__(self, k: int, limits: np.ndarray, tolerance: np.ndarray, most: int) -> None:
        self._k = k
        self._limits = limits
        self._margin = 2 * tolerance
        self._most = most
        self._crowded = np.zeros(len(limits), bool)
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._size = 0
        self._told = False
        self._room = len(limits) * (2 * k + 32)

    def offer(self, scores: np.ndarray, slots: np.ndarray | slice) -> None:
        """Take what is needed of the scores (n, q), contiguous, of these n slots; hidden slots have -inf."""
        if not self._told:
            self._tell(scores)
        width = scores.shape[1]
        if width == 1 and not scores.max() >= self._limits[0]:
            return
        hits = np.flatnonzero(scores >= self._limits)
        if not len(hits):
            return
        places, queries = np.divmod(hits, width)
        found = slots.start + places if isinstance(slots, slice) else slots[places]
        self._parts.append((queries, found, scores.reshape(-1)[hits]))
        self._size += len(hits)
        if self._size > self._room:
            self._cut()

    @classmethod
    def merged(cls, pools: list[Pool]) -> tuple[np.ndarray, np.ndarray]:
        """The candidates (q, c) of all workers, -1 where there is none, and the queries (r,) that were given up."""
        first = pools[0]
        first._parts = [part for pool in pools for part in pool._parts]
        first._crowded = np.logical_or.reduce([pool._crowded for pool in pools])
        first._cut()
        queries, slots, _ = first._parts[0]
        starts, counts = _runs(queries, len(first._limits))
        table = np.full((len(counts), counts.max(initial=0)), -1, np.int64)
        table[queries, np.arange(len(queries)) - starts[queries]] = slots
        return table, np.flatnonzero(first._crowded)

    def _tell(self, scores: np.ndarray) -> None:
        """A first limit: if the k-th best group of slots reaches it, at least k slots do."""
        whole = len(scores) // _GROUP * _GROUP
        if 2 * _GROUP * self._k <= whole:
            groups = scores[:whole].reshape(-1, _GROUP, scores.shape[1]).max(axis=1)
        else:
            groups = scores
        if len(groups) < 2 * self._k:
            return
        self._told = True
        place = len(groups) - self._k
        self._raise(np.partition(groups, place, axis=0)[place])

    def _raise(self, sure: np.ndarray) -> None:
        """Raise the limits: at least k slots have these scores (q,)."""
        np.maximum(self._limits, np.maximum(sure - self._margin, _NONE), out=self._limits)

    def _cut(self) -> None:
        """Keep what may still be needed, by query and score."""
        parts = self._parts or [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))]
        queries, slots, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((-scores, queries))
        queries, slots, scores = queries[order], slots[order], scores[order]
        starts, counts = _runs(queries, len(self._limits))
        enough = counts >= self._k
        sure = np.full(len(counts), -np.inf, np.float32)
        sure[enough] = scores[starts[enough] + self._k - 1]
        self._raise(sure)
        keep = scores >= self._limits[queries]
        self._crowded |= np.bincount(queries[keep], minlength=len(counts)) > self._most
        self._limits[self._crowded] = np.inf  # nothing more is wanted of these
        keep &= ~self._crowded[queries]
        self._parts = [(queries[keep], slots[keep], scores[keep])]
        self._size = int(keep.sum())
        self._room = max(self._room, 2 * self._size)


def new_limits(q: int) -> np.ndarray:
    """Limits (q,) that let every slot pass that is not hidden."""
    return np.full(q, _NONE, np.float32)


def _runs(queries: np.ndarray, q: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the entries of each query (q,) start in an ascending list, and how many there are."""
    starts = np.searchsorted(queries, np.arange(q))
    return starts, np.diff(starts, append=len(queries))
