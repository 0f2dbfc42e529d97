"""At which rank a query meets the first of some items, wherever in the gallery that is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from nearkin.search.blocks.nearest import search_candidates, true_order
from nearkin.search.blocks.order import Order
from nearkin.search.blocks.reservoir import EMPTY, fill_rows, to_keys
from nearkin.search.blocks.strips import Strip, for_each_strip

Members = Callable[[np.ndarray], np.ndarray]
"""Gives, for queries (b,), the items (b, m) that count, -1 where there are fewer; not the item a query leaves out."""


def first_ranks(
    order: Order, rows: np.ndarray, members: Members, exclude: np.ndarray | None, memory: int
) -> np.ndarray:
    """Ranks (r,), from 1, of the nearest of its members for each of the queries `rows` (r,)."""
    ranks = np.empty(len(rows), np.int64)
    place = np.empty(len(order.queries), np.int64)
    place[rows] = np.arange(len(rows))
    if order.queries.device.type != "cpu":
        everything = np.full(len(rows), len(order.gallery))
        if exclude is not None:
            everything -= exclude[rows] >= 0

        def sort_out(some: np.ndarray, keys: np.ndarray) -> None:
            near = true_order(order, some, keys, everything[place[some]])[1]
            ranks[place[some]] = _first(near, members(some)) + 1

        search_candidates(order, rows, everything, exclude, sort_out, memory)
        return ranks

    def count(some: np.ndarray, strip: Strip) -> None:
        scores = strip.scores
        own = members(some)
        best = np.where(own >= 0, np.take_along_axis(scores, np.maximum(own, 0), axis=1), -np.inf).max(axis=1)
        doubt = 2 * order.tolerance(torch.from_numpy(some)).numpy()
        nearer = np.count_nonzero(scores > (best + doubt)[:, None], axis=1)
        for row in range(0, len(some), _ROWS):
            part = slice(row, row + _ROWS)
            keys = _between(scores[part], (best - doubt)[part], (best + doubt)[part])
            counts = np.count_nonzero(keys != EMPTY, axis=1)
            near = true_order(order, some[part], keys, counts)[1]
            ranks[place[some[part]]] = nearer[part] + _first(near, own[part]) + 1

    for_each_strip(order, rows, exclude, count, memory)
    return ranks


_ROWS = 64


def _between(scores: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Keys (b, c), sorted, of the items whose scores (b, n) lie from `low` (b,) to `high` (b,)."""
    inside = (scores >= low[:, None]) & (scores <= high[:, None])
    row, item = np.nonzero(inside)
    counts = np.count_nonzero(inside, axis=1)
    keys = np.full((len(scores), counts.max()), EMPTY)
    fill_rows(keys, counts, to_keys(scores[row, item], item))
    keys.sort(axis=1)
    return keys


def _first(near: np.ndarray, members: np.ndarray) -> np.ndarray:
    """The place (b,) of the first item of every row of (b, c) that is among the row's members (b, m)."""
    # One sorted list of (row, member) pairs answers for all rows at once.
    span = max(int(near.max()), int(members.max())) + 2
    offset = np.arange(len(near))[:, None] * span + 1
    known = np.sort((members + offset)[members >= 0])
    asked = near + offset
    found = known[np.minimum(np.searchsorted(known, asked), len(known) - 1)] == asked
    return np.argmax(found & (near >= 0), axis=1)
