"""The best candidates of many queries, kept while blocks of scores stream by.

A score and an index form one integer, a key, whose order is total: nearer first, and equal scores by the lower index.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nearkin.search.order import Order

_CHUNK = 4096
_CHUNK_ENTRIES = 2**21

Consume = Callable[[np.ndarray, np.ndarray], None]
"""Takes queries (b,) and the keys of their candidates (b, c), nearest first, EMPTY where there are fewer."""


def prepared(side: Callable[[slice], Tensor], size: int, pad: int = 16) -> Tensor:
    """One side of the product (size padded, width), filled up with copies of the last point: any scorer can take it."""
    first = side(slice(0, 1))
    whole = torch.empty(-(-size // pad) * pad, first.shape[1], dtype=first.dtype, device=first.device)
    step = min(_CHUNK, max(1, _CHUNK_ENTRIES // first.shape[1]))
    for start in range(0, size, step):
        whole[start : min(start + step, size)] = side(slice(start, min(start + step, size)))
    whole[size:] = whole[size - 1]
    return whole


def prepared_gallery(order: Order, memory: int, pad: int = 16) -> Tensor | None:
    """The right side of the product in one piece, or None if it takes more memory than given."""
    size = len(order.gallery)
    return None if (size + pad) * order.width * 4 > memory else prepared(order.right, size, pad)


def padded(points: Tensor, pad: int = 16) -> Tensor:
    """Points (m, d) with copies of the last up to a multiple of `pad`."""
    missing = -len(points) % pad
    return torch.cat([points, points[-1:].expand(missing, -1)]) if missing else points


def hide(scores: Tensor, columns: np.ndarray) -> None:
    """Put the column (b,) of every row out of sight, where it is one of (b, m)."""
    row = np.flatnonzero((columns >= 0) & (columns < scores.shape[1]))
    if len(row):
        scores[torch.from_numpy(row), torch.from_numpy(columns[row])] = -torch.inf


EMPTY = np.iinfo(np.int64).max
"""A key behind all others: no candidate."""

_HIGH, _LOW = (1, 0) if sys.byteorder == "little" else (0, 1)


def to_keys(scores: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Keys (c,), int64, of float32 scores (c,) and indices (c,) below 2^31; the nearer the smaller."""
    keys = np.empty((*scores.shape, 2), dtype=np.int32)
    bits = np.subtract(np.float32(0), scores).view(np.int32)  # not a sign change: the negative of zero is another zero
    keys[..., _HIGH] = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys[..., _LOW] = indices
    return keys.view(np.int64)[..., 0]


def key_scores(keys: np.ndarray) -> np.ndarray:
    """The scores of keys, of any shape; nothing is as far as an EMPTY one."""
    bits = (keys >> 32).astype(np.int32)
    scores = np.subtract(np.float32(0), (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(np.float32))
    return np.where(keys == EMPTY, np.float32(-np.inf), scores)


def key_indices(keys: np.ndarray) -> np.ndarray:
    """The indices of keys, int32, of any shape (a view); -1 for an EMPTY one."""
    return keys.view(np.int32).reshape(*keys.shape, 2)[..., _LOW] if keys.flags.c_contiguous else _low_half(keys)


def _low_half(keys: np.ndarray) -> np.ndarray:
    return (keys & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def fill_rows(table: np.ndarray, counts: np.ndarray, values: np.ndarray) -> None:
    """Write values (c,) into the first `counts` (b,) places of the rows of a table (b, w), in order."""
    table[np.arange(table.shape[1]) < counts[:, None]] = values


class Reservoir:
    """Room for the best candidates of every query.

    Candidates are only sorted when the room of a query is full: then its best are kept, and the score of the last of
    them becomes its limit. Which of several candidates with this very score are kept depends on their order.

    Args:
        rows: how many queries.
        wanted: how many candidates to keep, of each query.
        slack: how many more to collect before sorting.
    """

    def __init__(self, rows: int, wanted: int, slack: int) -> None:
        self.wanted = wanted
        self._room = wanted + slack
        self._keys = np.full((rows, self._room), EMPTY)
        self._fill = np.zeros(rows, np.int64)
        self.limit = np.full(rows, -np.inf, np.float32)
        """What a score must exceed (rows,) to be offered."""

    def start(self, rows: slice, best: np.ndarray) -> None:
        """Set first limits from the best scores (b, g) of disjoint groups of items: so many items are as near."""
        if best.shape[1] >= self.wanted:
            last = np.sort(best, axis=1)[:, -self.wanted]
            self.limit[rows] = np.nextafter(last, np.float32(-np.inf))

    def keys(self, rows: slice) -> np.ndarray:
        """The best keys (b, wanted) of some queries, nearest first, EMPTY where there are fewer."""
        self._sort(rows)
        return self._keys[rows, : self.wanted]

    def offer(self, rows: slice, query: np.ndarray, scores: np.ndarray, indices: np.ndarray) -> None:
        """Take candidates (c,) in; `query` counts from the start of the slice and ascends."""
        size = rows.stop - rows.start
        while len(query):
            counts = np.bincount(query, minlength=size)
            if (self._fill[rows] + counts).max() <= self._room:
                self._put(rows, query, counts, to_keys(scores, indices))
                return
            self._sort(rows)
            better = scores > self.limit[rows][query]
            query, scores, indices = query[better], scores[better], indices[better]
            counts = np.bincount(query, minlength=size)
            fits = _places(query, counts) < (self._room - self._fill[rows])[query]
            first = np.bincount(query[fits], minlength=size)
            self._put(rows, query[fits], first, to_keys(scores[fits], indices[fits]))
            query, scores, indices = query[~fits], scores[~fits], indices[~fits]

    def _put(self, rows: slice, query: np.ndarray, counts: np.ndarray, keys: np.ndarray) -> None:
        starts = self._fill[rows] + np.arange(rows.start, rows.stop) * self._room
        self._keys.reshape(-1)[starts[query] + _places(query, counts)] = keys
        self._fill[rows] += counts

    def _sort(self, rows: slice) -> None:
        keys = self._keys[rows]
        keys.sort(axis=1)
        keys[:, self.wanted :] = EMPTY
        np.minimum(self._fill[rows], self.wanted, out=self._fill[rows])
        last = keys[:, self.wanted - 1]
        full = last != EMPTY
        self.limit[rows][full] = key_scores(last[full])


def _places(query: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The place (c,) of every candidate among those of its query."""
    return np.arange(len(query)) - (np.cumsum(counts) - counts)[query]
