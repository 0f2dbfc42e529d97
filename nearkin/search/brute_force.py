"""Brute force: candidates of every query by the fastest way that fits the memory, their true order, and first ranks.

It is bound by the matrix product: scores pass in blocks, and only what may be needed is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch

from nearkin.search.order import Order
from nearkin.search.scan import in_true_order, round_noise
from nearkin.search.sieve import fits_mirror, search_mirror, search_sieve, sieve_height
from nearkin.search.tiles import (
    EMPTY,
    Consume,
    ScoreStrip,
    fits_symmetric,
    for_each_strip,
    key_indices,
    key_scores,
    search_rows,
    search_strips,
    search_symmetric,
    search_tiles,
    sorted_keys,
)

__all__ = [
    "EMPTY",
    "Members",
    "Order",
    "first_ranks",
    "key_indices",
    "key_scores",
    "ordered_values",
    "resolve_ties",
    "search_candidates",
    "true_order",
]


_FEW = 32  # candidates of a query that tiles take faster than strips
_SEVERAL = 64  # queries, from which on sampling the gallery pays
_LOW = 64  # queries at once, below which the sieve's matrix product is slow
_MOSTLY = 0.6
_CLOSE, _FEW_CLOSE = 4, 1024

Look = Callable[[np.ndarray, np.ndarray], np.ndarray]


def search_candidates(
    order: Order, rows: np.ndarray, depth: np.ndarray, exclude: np.ndarray | None, consume: Consume, memory: int
) -> None:
    """Find candidates that hold the `depth` nearest items of every query, whatever rounding does to the scores.

    Args:
        order: what scores.
        rows: which queries (r,).
        depth: how many items (r,) each of them needs, at most as many as it can find.
        exclude: the item (q,) that a query must not find, or -1; None hides nothing.
        consume: called with queries and keys, from several threads at once, every query coming once.
        memory: bytes to stay within, beside the inputs and what `consume` keeps.
    """
    by_depth = np.argsort(depth, kind="stable")
    rows, depth = rows[by_depth], depth[by_depth]
    kind = order.queries.device.type
    with torch.no_grad(), torch.autocast(kind, enabled=False):
        if len(rows) and kind == "cpu":
            _search_on_cpu(order, rows, depth, exclude, consume, memory)
        elif len(rows):
            search_rows(order, rows, depth, exclude, consume, memory)


def true_order(order: Order, rows: np.ndarray, keys: np.ndarray, depth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Candidates by their distance in float64, equal ones by index: (distances, indices), each (b, c).

    Only as many columns come back as the deepest query may need. Where a query has fewer candidates the rest is at
    distance infinity, index -1.
    """
    if len(rows):
        scores = key_scores(keys)
        least = scores[np.arange(len(rows)), depth - 1] - order.doubt(rows)
        keys = keys[:, : max(int(depth.max()), int((scores >= least[:, None]).sum(axis=1).max()))]
    if not order.by_product:
        return np.where(keys == EMPTY, np.inf, 0.0 - key_scores(keys).astype(np.float64)), key_indices(keys)
    device = order.queries.device
    asked = torch.from_numpy(rows).to(device)

    def measure(near: np.ndarray) -> np.ndarray:
        found = torch.from_numpy(near.astype(np.int64, copy=False)).to(device)
        true: np.ndarray = round_noise(order.distances(asked, found)).cpu().numpy()
        return true

    return in_true_order(key_indices(keys), measure)


def resolve_ties(order: Order, rows: np.ndarray, near: np.ndarray, close: np.ndarray, matters: np.ndarray) -> None:
    """Put items that rounding may have confused into their true order, in place.

    Args:
        order: what tells distances.
        rows: queries (b,).
        near: their items (b, c), nearest first.
        close: whether (b, c - 1) an item and the next cannot be told apart by their scores.
        matters: where (b, c - 1) it makes a difference; runs of close items without such a place stay as they are.
    """
    start = np.ones(near.shape, bool)
    start[:, 1:] = ~close
    run = np.cumsum(start).reshape(near.shape) - 1
    tangled = np.zeros(run[-1, -1] + 1, bool)
    tangled[run[:, :-1][matters & close]] = True
    row, column = np.nonzero(tangled[run])
    items = near[row, column]
    device = order.queries.device
    pairs = torch.from_numpy(rows[row]).to(device), torch.from_numpy(items.astype(np.int64)).to(device)
    true = round_noise(order.distances(pairs[0], pairs[1].unsqueeze(1)))[:, 0].cpu().numpy()
    near[row, column] = items[np.lexsort((items, true, run[row, column]))]


def ordered_values(order: Order, rows: np.ndarray, keys: np.ndarray, depth: np.ndarray | int, look: Look) -> np.ndarray:
    """What `look` sees of the candidates (b, c) of some queries; what rounding may have confused is in its true order.

    Args:
        order: what tells distances.
        rows: queries (b,).
        keys: their candidates (b, c), nearest first.
        depth: how many of these count (b,).
        look: gives a value (b, c) for every query and item, such as whether they share a class.
    """
    near = key_indices(keys)
    values = look(rows, near)
    if not order.by_product:
        return values
    scores = key_scores(keys)
    close = (scores[:, :-1] <= scores[:, 1:] + order.doubt(rows)[:, None]) & (scores[:, 1:] > -np.inf)
    matters = close & (values[:, :-1] != values[:, 1:])
    # Of a model that maps everything to one point all is close: that is not worth a second look.
    matters &= (np.count_nonzero(close, axis=1) <= _CLOSE * depth + _FEW_CLOSE)[:, None]
    if not matters.any():
        return values
    near = near.copy()
    resolve_ties(order, rows, near, close, matters)
    return look(rows, near)


def _search_on_cpu(
    order: Order, rows: np.ndarray, depth: np.ndarray, exclude: np.ndarray | None, consume: Consume, memory: int
) -> None:
    wanted = np.minimum(depth + depth // 4 + 8, len(order.gallery))
    few = wanted <= _FEW
    shallow, deep, deep_depth = rows[few], rows[~few], depth[~few]
    itself = exclude is not None and np.array_equal(exclude, np.arange(len(order.queries)))
    mostly = _MOSTLY * len(order.queries)
    if len(shallow):
        checked = _CertainCandidates(order, shallow, depth[few], consume)
        most = int(wanted[few].max())
        if itself and len(shallow) >= mostly and fits_symmetric(order, most, memory):
            search_symmetric(order, most, checked)
        else:
            search_tiles(order, shallow, most, exclude, checked, memory)
        doubtful = checked.doubtful()
        deep, deep_depth = np.concatenate([doubtful[0], deep]), np.concatenate([doubtful[1], deep_depth])
    if len(deep) >= _SEVERAL:
        deepest = int(deep_depth.max())
        if itself and len(deep) >= mostly and fits_mirror(order, deepest, memory):
            left = search_mirror(order, deep, deep_depth, consume)
        elif sieve_height(order, deepest, memory) >= _LOW:
            left = search_sieve(order, deep, deep_depth, exclude, consume, memory)
        else:
            left = deep
        still = np.isin(deep, left)
        deep, deep_depth = deep[still], deep_depth[still]
    if len(deep):
        search_strips(order, deep, deep_depth, exclude, consume, memory)


class _CertainCandidates:
    """Passes on the queries whose candidates are certainly enough, and remembers the others."""

    def __init__(self, order: Order, rows: np.ndarray, depth: np.ndarray, consume: Consume) -> None:
        self._order = order
        self._consume = consume
        self._depth = np.zeros(len(order.queries), np.int64)
        self._depth[rows] = depth
        self._left: list[np.ndarray] = []
        self._lock = threading.Lock()

    def __call__(self, rows: np.ndarray, keys: np.ndarray) -> None:
        asked = self._depth[rows] > 0
        rows, keys = rows[asked], keys[asked]
        depth = self._depth[rows]
        last = key_scores(keys[np.arange(len(rows)), depth - 1])
        # A left-out item might belong to the nearest if its score lies within rounding of theirs.
        doubt = (keys[:, -1] != EMPTY) & (key_scores(keys[:, -1]) >= last - self._order.doubt(rows))
        if keys.shape[1] >= len(self._order.gallery):
            doubt[:] = False
        with self._lock:
            self._left.append(rows[doubt])
        self._consume(rows[~doubt], keys[~doubt])

    def doubtful(self) -> tuple[np.ndarray, np.ndarray]:
        """The queries (r,) to look at again, and their depths (r,)."""
        rows = np.sort(np.concatenate(self._left))
        return rows, self._depth[rows]


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

    def count(some: np.ndarray, strip: ScoreStrip) -> None:
        scores = strip.scores
        own = members(some)
        best = np.where(own >= 0, np.take_along_axis(scores, np.maximum(own, 0), axis=1), -np.inf).max(axis=1)
        doubt = order.doubt(some)
        nearer = np.count_nonzero(scores > (best + doubt)[:, None], axis=1)
        for row in range(0, len(some), _ROWS):
            part = slice(row, row + _ROWS)
            low, high = ((best + by)[part, None] for by in (-doubt, doubt))
            keys = sorted_keys(scores[part], (scores[part] >= low) & (scores[part] <= high))
            counts = np.count_nonzero(keys != EMPTY, axis=1)
            near = true_order(order, some[part], keys, counts)[1]
            ranks[place[some[part]]] = nearer[part] + _first(near, own[part]) + 1

    for_each_strip(order, rows, exclude, count, memory)
    return ranks


_ROWS = 64


def _first(near: np.ndarray, members: np.ndarray) -> np.ndarray:
    """The place (b,) of the first item of every row of (b, c) that is among the row's members (b, m)."""
    # One sorted list of (row, member) pairs answers for all rows at once.
    span = max(int(near.max()), int(members.max())) + 2
    offset = np.arange(len(near))[:, None] * span + 1
    known = np.sort((members + offset)[members >= 0])
    asked = near + offset
    found = known[np.minimum(np.searchsorted(known, asked), len(known) - 1)] == asked
    return np.argmax(found & (near >= 0), axis=1)
