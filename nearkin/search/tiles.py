"""Neighbours from parts of the score matrix: tiles for few, strips of rows for many, whole rows on an accelerator.

The best candidates of each query are kept while blocks of scores stream by. A score and an index form one integer, a
key, whose order is total: nearer first, and equal scores by the lower index.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from nearkin.search.order import Order
from nearkin.search.workers import Queue, even_height, run_workers, worker_count

TILE = 1024
PAD = 16
_CHUNK = 4096
_CHUNK_ENTRIES = 2**21

Consume = Callable[[np.ndarray, np.ndarray], None]
"""Takes queries (b,) and the keys of their candidates (b, c), nearest first, EMPTY where there are fewer."""


def prepared(side: Callable[[slice], Tensor], size: int) -> Tensor:
    """One side of the product (size padded, width), filled up with copies of the last point: any scorer can take it."""
    first = side(slice(0, 1))
    whole = torch.empty(-(-size // PAD) * PAD, first.shape[1], dtype=first.dtype, device=first.device)
    step = min(_CHUNK, max(1, _CHUNK_ENTRIES // first.shape[1]))
    for start in range(0, size, step):
        whole[start : min(start + step, size)] = side(slice(start, min(start + step, size)))
    whole[size:] = whole[size - 1]
    return whole


class GallerySide:
    """The right side of the product: in one piece where that takes no more memory than given, else tile by tile.

    Args:
        order: what scores.
        memory: bytes.
        items: the gallery's items in another order (n,).
    """

    def __init__(self, order: Order, memory: int, items: np.ndarray | None = None) -> None:
        self._order, self._items, self._size = order, items, len(order.gallery)
        self.whole = prepared(self._side, self._size) if (self._size + PAD) * order.width * 4 <= memory else None

    def tile(self, first: int) -> Tensor:
        """The tile (m padded, width) from item `first` on."""
        if self.whole is not None:
            return self.whole[first : first + TILE]
        points = self._side(slice(first, min(first + TILE, self._size)))
        missing = -len(points) % PAD
        return torch.cat([points, points[-1:].expand(missing, -1)]) if missing else points

    def scores(self, left: Tensor, first: int, right: Tensor, hidden: np.ndarray | None, out: Tensor) -> Tensor:
        """Scores (b, m padded) of the tile from `first` on, into `out`; padding and hidden items (b,) get -inf."""
        self._order.scores(left, right, out)
        out[:, self._size - first :] = -torch.inf
        if hidden is not None:
            hide(out, hidden - first)
        return out

    def _side(self, places: slice) -> Tensor:
        return self._order.right(places if self._items is None else torch.from_numpy(self._items[places]))


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
    if keys.flags.c_contiguous:
        return keys.view(np.int32).reshape(*keys.shape, 2)[..., _LOW]
    return (keys & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def fill_rows(table: np.ndarray, counts: np.ndarray, values: np.ndarray) -> None:
    """Write values (c,) into the first `counts` (b,) places of the rows of a table (b, w), in order."""
    table[np.arange(table.shape[1]) < counts[:, None]] = values


def sorted_keys(scores: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Keys (b, c) of the chosen (b, n) among contiguous scores (b, n), nearest first, EMPTY where there are fewer."""
    found, starts = np.flatnonzero(chosen), np.arange(len(scores)) * scores.shape[1]
    counts = np.diff(np.searchsorted(found, starts), append=len(found))
    keys = np.full((len(scores), counts.max()), EMPTY)
    fill_rows(keys, counts, to_keys(scores.reshape(-1)[found], found - np.repeat(starts, counts)))
    keys.sort(axis=1)
    return keys


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


_TALL = 4  # tiles that share one preparation of their items, where the gallery cannot be prepared as a whole
_STRIP_ENTRIES = 2**22  # of the left sides of these tiles
_SLACK = 32


def search_tiles(
    order: Order, rows: np.ndarray, wanted: int, exclude: np.ndarray | None, consume: Consume, memory: int
) -> None:
    """Find the `wanted` nearest items of the queries `rows`, strip by strip; arguments as of `search_candidates`."""
    size = len(order.gallery)
    gallery = GallerySide(order, memory // 2)
    height = TILE if gallery.whole is not None else TILE * max(1, min(_TALL, _STRIP_ENTRIES // (TILE * order.width)))
    if order.factorised:  # scores cost far more than sides: all workers share even a few queries
        height = even_height(len(rows), height, order.queries.device)
    strips = Queue(range(0, len(rows), height))

    def work(_: int) -> None:
        buffer = torch.empty(TILE * TILE)
        for start in strips:
            strip = rows[start : start + height]
            left = order.left(torch.from_numpy(strip))
            reservoir = Reservoir(len(strip), wanted, _SLACK)
            for first in range(0, size, TILE):
                right = gallery.tile(first)
                for top in range(0, len(strip), TILE):
                    some = slice(top, min(top + TILE, len(strip)))
                    hidden = None if exclude is None else exclude[strip[some]]
                    out = buffer[: (some.stop - top) * len(right)].view(-1, len(right))
                    _offer(reservoir, some, gallery.scores(left[some], first, right, hidden, out), first)
            consume(strip, reservoir.keys(slice(0, len(strip))))

    run_workers(work, order.queries.device)


def fits_symmetric(order: Order, wanted: int, memory: int) -> bool:
    """Whether `search_symmetric` can hold everything it needs."""
    a_row = (1 if order.one_side else 2) * order.width * 4 + (wanted + _SLACK) * 8 + 16
    buffers = worker_count(order.queries.device) * TILE * TILE * 8
    return order.symmetric and len(order.queries) * a_row + buffers <= memory


def search_symmetric(order: Order, wanted: int, consume: Consume) -> None:
    """Find the `wanted` nearest others of every query among the queries themselves, by half of the product."""
    size, device = len(order.queries), order.queries.device
    right = prepared(order.right, size)
    left = right if order.one_side else prepared(order.left, size)
    reservoir = Reservoir(len(left), wanted, _SLACK)
    strips = [slice(first, min(first + TILE, len(left))) for first in range(0, len(left), TILE)]
    wave = _Wave(len(strips))

    def look(_: int) -> None:
        buffer = torch.empty(TILE * TILE)
        with wave:
            for across in to_look_at:
                queries = strips[across]
                for down in range(across, len(strips)):
                    wave.wait(across, down)
                    items = strips[down]
                    scores = own_scores(order, left[queries], right[items], queries.start, items.start, buffer)
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
    # How many items share a maximum: fewer where more of them are wanted, so that groups stay apart.
    size = 16 if reservoir.wanted <= 24 else 8 if reservoir.wanted <= 56 else 4
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


def own_scores(order: Order, left: Tensor, right: Tensor, top: int, first: int, buffer: Tensor) -> Tensor:
    """Scores (b, m padded) among the queries: from number `top` on to those from `first` on, none for itself."""
    scores = order.scores(left, right, buffer[: len(left) * len(right)].view(-1, len(right)))
    scores[:, max(0, len(order.queries) - first) :] = -torch.inf
    return scores.fill_diagonal_(-torch.inf) if top == first else scores


_HEIGHT = 1024
_GROUP = 8
_ENOUGH = 0.55  # share of the groups that may be neighbours: with more, the threshold is loose
_SORTED_ENTRIES = 2**20


def strip_height(order: Order, memory: int) -> int:
    """How many rows of scores a worker can hold."""
    a_row = 7 * (len(order.gallery) + TILE)  # scores, and the maxima of groups, which may be pairs
    return min(_HEIGHT, memory // 2 // worker_count(order.queries.device) // a_row)


def search_strips(
    order: Order, rows: np.ndarray, depth: np.ndarray, exclude: np.ndarray | None, consume: Consume, memory: int
) -> None:
    """Find the nearest items of the queries `rows`, best by ascending depth; arguments as of `search_candidates`.

    All items that rounding could put among the nearest come along.
    """
    deep = np.zeros(len(order.queries), np.int64)
    deep[rows] = depth

    def select(some: np.ndarray, strip: ScoreStrip) -> None:
        limit = strip.limits(deep[some]) - order.doubt(some)
        for part, keys in strip.keys(limit):
            consume(some[part], keys)

    for_each_strip(order, rows, exclude, select, memory)


def for_each_strip(
    order: Order,
    rows: np.ndarray,
    exclude: np.ndarray | None,
    look: Callable[[np.ndarray, ScoreStrip], None],
    memory: int,
) -> None:
    """Compute the scores of the queries `rows`, strip by strip, and let the workers look at each strip."""
    height = even_height(len(rows), strip_height(order, memory), order.queries.device)
    gallery = GallerySide(order, memory // 4)
    starts = Queue(range(0, len(rows), height))

    def work(_: int) -> None:
        strip = ScoreStrip(order, height, gallery)
        for start in starts:
            some = rows[start : start + height]
            strip.fill(some, None if exclude is None else exclude[some])
            look(some, strip)

    run_workers(work, order.queries.device)


class ScoreStrip:
    """One worker's rows of scores (b, n padded) and the maxima of their groups (b, groups)."""

    def __init__(self, order: Order, height: int, gallery: GallerySide) -> None:
        self._order, self._gallery = order, gallery
        width = -(-len(order.gallery) // PAD) * PAD
        self._scores = torch.empty(height, width)
        self._maxima = torch.empty(height, width // _GROUP)
        self._rows = 0

    @property
    def scores(self) -> np.ndarray:
        """The scores (b, n padded)."""
        return self._scores[: self._rows].numpy()

    def fill(self, rows: np.ndarray, exclude: np.ndarray | None) -> None:
        """Compute the scores of some queries."""
        self._rows, chosen, whole = len(rows), torch.from_numpy(rows), self._gallery.whole
        left = self._order.left(chosen) if whole is None or not self._order.one_side else whole[chosen]
        for first in range(0, len(self._order.gallery), TILE):
            scores = self._scores[: len(rows), first : first + TILE]
            self._gallery.scores(left, first, self._gallery.tile(first), exclude, scores)
            maxima = self._maxima[: len(rows), first // _GROUP : (first + TILE) // _GROUP]
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
        limit = np.maximum(limit, np.finfo(np.float32).min)
        height = max(1, _SORTED_ENTRIES // self._scores.shape[1])
        for start in range(0, self._rows, height):
            part = slice(start, min(start + height, self._rows))
            yield part, sorted_keys(self.scores[part], self.scores[part] >= limit[part, None])


_ROWS = 4096


def search_rows(
    order: Order, rows: np.ndarray, depth: np.ndarray, exclude: np.ndarray | None, consume: Consume, memory: int
) -> None:
    """Find the nearest items of the queries `rows`, best by ascending depth; arguments as of `search_candidates`."""
    device, size = order.queries.device, len(order.gallery)
    height = max(1, min(_ROWS, memory // (size * 24)))  # scores, and the selection's values, indices and scratch
    right = order.right(slice(0, size))
    buffer = torch.empty(min(height, len(rows)) * size, device=device)
    for start in range(0, len(rows), height):
        some, deep = rows[start : start + height], depth[start : start + height]
        on_device = torch.from_numpy(some).to(device)
        scores = order.scores(order.left(on_device), right, buffer[: len(some) * size].view(len(some), size))
        if exclude is not None:
            hide(scores, exclude[some])
        tolerance = order.tolerance(on_device)
        wanted = min(size, int(deep.max()) + int(deep.max()) // 4 + 16)
        values, indices = scores.topk(wanted, dim=1)
        last = values.gather(1, torch.from_numpy(deep).to(device).unsqueeze(1) - 1)[:, 0]
        doubtful = (values[:, -1] >= last - 2 * tolerance).cpu().numpy() & (wanted < size)
        consume(some[~doubtful], _keys(values, indices)[~doubtful])
        for row in np.flatnonzero(doubtful):  # rows full of ties, in whole
            values, indices = scores[row : row + 1].sort(dim=1, descending=True)
            consume(some[row : row + 1], _keys(values, indices))


def _keys(values: torch.Tensor, indices: torch.Tensor) -> np.ndarray:
    scores = values.cpu().numpy()
    keys = to_keys(scores, indices.cpu().numpy())
    keys[scores == -np.inf] = EMPTY  # hidden, not far
    keys.sort(axis=1)
    return keys
