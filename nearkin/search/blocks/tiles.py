"""Few neighbours of every query: tiles of the score matrix that fit a core's cache, each looked at once.

Of a tile only the maxima of small groups of items are compared with what a query has already: a group that stays below
holds none of its neighbours. Where queries and gallery are the same, a tile serves both its rows and its columns, and
half of the product is saved.
"""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from nearkin.search.blocks.order import Order
from nearkin.search.blocks.preparation import Consume, hide, padded, prepared, prepared_gallery
from nearkin.search.blocks.reservoir import Reservoir
from nearkin.search.blocks.workers import Queue, even_height, run_workers, worker_count

_TILE = 1024
_TALL = 4  # tiles that share one preparation of their items, where the gallery cannot be prepared as a whole
_STRIP_ENTRIES = 2**22  # of the left sides of these tiles
_SLACK = 32


def search_tiles(
    order: Order, rows: np.ndarray, wanted: int, exclude: np.ndarray | None, consume: Consume, memory: int
) -> None:
    """Find the `wanted` nearest items of the queries `rows`, strip by strip.

    Args:
        order: what scores.
        rows: which queries (r,).
        wanted: how many items.
        exclude: the item (q,) that a query must not find, or -1.
        consume: called by the workers with the queries and keys of a strip.
        memory: bytes to stay within.
    """
    size = len(order.gallery)
    whole = prepared_gallery(order, memory // 2)
    height = _TILE if whole is not None else _TILE * max(1, min(_TALL, _STRIP_ENTRIES // (_TILE * order.width)))
    if order.factorised:  # scores cost far more than sides: all workers share even a few queries
        height = even_height(len(rows), height, order.queries.device)
    strips = Queue(range(0, len(rows), height))

    def work(_: int) -> None:
        buffer = torch.empty(_TILE * _TILE)
        for start in strips:
            strip = rows[start : start + height]
            left = order.left(torch.from_numpy(strip))
            reservoir = Reservoir(len(strip), wanted, _SLACK)
            for first in range(0, size, _TILE):
                items = slice(first, min(first + _TILE, size))
                right = padded(order.right(items)) if whole is None else whole[first : first + _TILE]
                for top in range(0, len(strip), _TILE):
                    some = slice(top, min(top + _TILE, len(strip)))
                    scores = _scores(order, left[some], right, buffer)
                    scores[:, items.stop - first :] = -torch.inf
                    if exclude is not None:
                        hide(scores, exclude[strip[some]] - first)
                    _offer(reservoir, some, scores, first)
            consume(strip, reservoir.keys(slice(0, len(strip))))

    run_workers(work, order.queries.device)


def fits_symmetric(order: Order, wanted: int, memory: int) -> bool:
    """Whether `search_symmetric` can hold everything it needs."""
    a_row = (1 if order.one_side else 2) * order.width * 4 + (wanted + _SLACK) * 8 + 16
    buffers = worker_count(order.queries.device) * _TILE * _TILE * 8
    return order.symmetric and len(order.queries) * a_row + buffers <= memory


def search_symmetric(order: Order, wanted: int, consume: Consume) -> None:
    """Find the `wanted` nearest others of every query among the queries themselves, by half of the product."""
    size, device = len(order.queries), order.queries.device
    right = prepared(order.right, size)
    left = right if order.one_side else prepared(order.left, size)
    reservoir = Reservoir(len(left), wanted, _SLACK)
    strips = [slice(first, min(first + _TILE, len(left))) for first in range(0, len(left), _TILE)]
    wave = _Wave(len(strips))

    def look(_: int) -> None:
        buffer = torch.empty(_TILE * _TILE)
        with wave:
            for across in to_look_at:
                queries = strips[across]
                for down in range(across, len(strips)):
                    wave.wait(across, down)
                    items = strips[down]
                    scores = _scores(order, left[queries], right[items], buffer)
                    scores[:, max(0, size - items.start) :] = -torch.inf
                    if down == across:
                        scores.fill_diagonal_(-torch.inf)
                    _offer(reservoir, queries, scores, items.start)
                    if down != across:
                        _offer(reservoir, items, scores.T, queries.start)
                    wave.done(across, down)

    def finish(_: int) -> None:
        for strip in to_finish:
            rows = np.arange(strips[strip].start, min(strips[strip].stop, size))
            consume(rows, reservoir.keys(strips[strip])[: len(rows)])

    to_look_at, to_finish = Queue(range(len(strips))), Queue(range(len(strips)))
    run_workers(look, device)
    run_workers(finish, device)


class _Wave:
    """Lets a strip of tiles follow the one above it at a distance: every query sees the items in ascending order.

    Then no two workers touch the same query at once, and the outcome does not depend on their speed. As a context it
    lets the others go when a worker fails.
    """

    def __init__(self, strips: int) -> None:
        self._done = [-1] * strips
        self._changed = threading.Condition()
        self._broken = False

    def wait(self, across: int, down: int) -> None:
        if across > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._broken or self._done[across - 1] >= down)

    def done(self, across: int, down: int) -> None:
        with self._changed:
            self._done[across] = down
            self._changed.notify_all()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            with self._changed:
                self._broken = True
                self._changed.notify_all()


def _offer(reservoir: Reservoir, rows: slice, scores: Tensor, first: int) -> None:
    """Offer every score (b, m) that may belong to a query's best; the columns are items from index `first` on.

    A transposed tile is read as it lies in memory.
    """
    height, width = scores.shape
    size = _group_size(reservoir.wanted)
    groups = width // size
    if scores.is_contiguous():
        maxima = scores.unflatten(1, (size, -1)).amax(dim=1)
        flat, query_step, item_step = scores.view(-1).numpy(), width, 1
    else:
        maxima = scores.T.unflatten(0, (size, -1)).amax(dim=0).T.contiguous()
        flat, query_step, item_step = scores.T.view(-1).numpy(), 1, height
    best = maxima.numpy()
    if reservoir.limit[rows.start] == -np.inf:
        reservoir.start(rows, best)
    limit = reservoir.limit[rows]
    found = np.flatnonzero(best > limit[:, None])
    if len(found) == 0:
        return
    query, group = np.divmod(found, groups)
    corner = query * query_step + group * item_step
    members = flat[corner[:, None] + np.arange(0, width, groups) * item_step]
    near = np.flatnonzero(members > limit[query][:, None])
    which, place = np.divmod(near, size)
    reservoir.offer(rows, query[which], members.reshape(-1)[near], group[which] + place * groups + first)


def _group_size(wanted: int) -> int:
    """How many items share a maximum: fewer where more of them are wanted, so that groups stay apart."""
    return 16 if wanted <= 24 else 8 if wanted <= 56 else 4


def _scores(order: Order, left: Tensor, right: Tensor, buffer: Tensor) -> Tensor:
    return order.scores(left, right, buffer[: len(left) * len(right)].view(len(left), len(right)))
