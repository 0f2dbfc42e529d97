"""Many neighbours of every query: whole rows of scores, cut at a threshold before anything is sorted.

The maxima of disjoint groups of items give the threshold: if the d-th best group reaches t, at least d items do. Where
groups are small little more than d items do, and only these are sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from nearkin.search.blocks.order import Order
from nearkin.search.blocks.preparation import Consume, hide, padded, prepared_gallery
from nearkin.search.blocks.reservoir import EMPTY, fill_rows, to_keys
from nearkin.search.blocks.workers import Queue, even_height, run_workers, worker_count

_TILE = 1024
_PAD = 16
_HEIGHT = 1024
_GROUP = 8
_ENOUGH = 0.55  # share of the groups that may be neighbours: with more, the threshold is loose
_SORTED_ENTRIES = 2**20


def strip_height(order: Order, memory: int) -> int:
    """How many rows of scores a worker can hold."""
    a_row = 7 * (len(order.gallery) + _TILE)  # scores, and the maxima of groups, which may be pairs
    return min(_HEIGHT, memory // 2 // worker_count(order.queries.device) // a_row)


def search_strips(
    order: Order, rows: np.ndarray, depth: np.ndarray, exclude: np.ndarray | None, consume: Consume, memory: int
) -> None:
    """Find the nearest items of the queries `rows`, strip by strip.

    Args:
        order: what scores.
        rows: which queries (r,), best by ascending depth.
        depth: how many items (r,) each needs; all that rounding could put among them come along.
        exclude: the item (q,) that a query must not find, or -1.
        consume: called by the workers with queries and their keys.
        memory: bytes to stay within.
    """
    deep = np.zeros(len(order.queries), np.int64)
    deep[rows] = depth

    def select(some: np.ndarray, strip: Strip) -> None:
        limit = strip.limits(deep[some]) - 2 * order.tolerance(torch.from_numpy(some)).numpy()
        for part, keys in strip.keys(limit):
            consume(some[part], keys)

    for_each_strip(order, rows, exclude, select, memory)


def for_each_strip(
    order: Order,
    rows: np.ndarray,
    exclude: np.ndarray | None,
    look: Callable[[np.ndarray, Strip], None],
    memory: int,
) -> None:
    """Compute the scores of the queries `rows`, strip by strip, and let the workers look at each strip."""
    height = even_height(len(rows), strip_height(order, memory), order.queries.device)
    whole = prepared_gallery(order, memory // 4)
    starts = Queue(range(0, len(rows), height))

    def work(_: int) -> None:
        strip = Strip(order, height, whole)
        for start in starts:
            some = rows[start : start + height]
            strip.fill(some, None if exclude is None else exclude[some])
            look(some, strip)

    run_workers(work, order.queries.device)


class Strip:
    """One worker's rows of scores (b, n padded) and the maxima of their groups (b, groups)."""

    def __init__(self, order: Order, height: int, whole: Tensor | None) -> None:
        self._order = order
        self._whole = whole
        width = -(-len(order.gallery) // _PAD) * _PAD
        self._scores = torch.empty(height, width)
        self._maxima = torch.empty(height, width // _GROUP)
        self._rows = 0

    @property
    def scores(self) -> np.ndarray:
        """The scores (b, n)."""
        return self._scores[: self._rows, : len(self._order.gallery)].numpy()

    def fill(self, rows: np.ndarray, exclude: np.ndarray | None) -> None:
        """Compute the scores of some queries."""
        self._rows, size = len(rows), len(self._order.gallery)
        chosen = torch.from_numpy(rows)
        whole = self._whole
        left = self._order.left(chosen) if whole is None or not self._order.one_side else whole[chosen]
        for first in range(0, size, _TILE):
            items = slice(first, min(first + _TILE, size))
            right = padded(self._order.right(items), _PAD) if whole is None else whole[first : first + _TILE]
            scores = self._scores[: len(rows), first : first + _TILE]
            self._order.scores(left, right, scores)
            scores[:, items.stop - first :] = -torch.inf
            if exclude is not None:
                hide(scores, exclude - first)
            maxima = self._maxima[: len(rows), first // _GROUP : (first + _TILE) // _GROUP]
            torch.amax(scores.unflatten(1, (_GROUP, -1)), dim=1, out=maxima)

    def limits(self, depth: np.ndarray) -> np.ndarray:
        """Scores (b,) that at least `depth` items of a row reach."""
        deepest = int(depth.max())
        maxima = self._maxima[: self._rows]
        if deepest > _ENOUGH * maxima.shape[1]:
            if deepest > _ENOUGH * self._scores.shape[1] / 2:
                return np.full(self._rows, -np.inf, np.float32)
            maxima = self._scores[: self._rows].unflatten(1, (2, -1)).amax(dim=1)
        while maxima.shape[1] % 2 == 0 and deepest <= _ENOUGH * maxima.shape[1] / 2:
            maxima = torch.maximum(*maxima.chunk(2, dim=1))
        return np.sort(maxima.numpy(), axis=1)[np.arange(self._rows), -depth]

    def keys(self, limit: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Parts of the strip with the keys (b, c) of all items that reach the limit, nearest first."""
        width = self._scores.shape[1]
        limit = np.maximum(limit, np.finfo(np.float32).min)
        height = max(1, _SORTED_ENTRIES // width)
        for start in range(0, self._rows, height):
            part = slice(start, min(start + height, self._rows))
            scores = self._scores[part].numpy()
            found = np.flatnonzero(scores >= limit[part, None])
            starts = np.arange(len(scores)) * width
            counts = np.diff(np.searchsorted(found, starts), append=len(found))
            keys = np.full((len(scores), counts.max()), EMPTY)
            fill_rows(keys, counts, to_keys(scores.reshape(-1)[found], found - np.repeat(starts, counts)))
            keys.sort(axis=1)
            yield part, keys
