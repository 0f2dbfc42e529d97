"""Brute force: candidates of every query by the fastest way that fits the memory, their true order, and first ranks.

It is bound by the matrix product: scores pass in blocks, and only what may be needed is kept. Where a query needs many
neighbours, a sample of the gallery gives a threshold, and only what passes it is sorted; where queries look for each
other, half of the product serves both directions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nearkin.search import tiles
from nearkin.search.order import Order
from nearkin.search.scan import in_true_order, round_noise
from nearkin.search.tiles import (
    EMPTY,
    PAD,
    Consume,
    GallerySide,
    ScoreStrip,
    fits_symmetric,
    for_each_strip,
    key_indices,
    key_scores,
    own_scores,
    prepared,
    search_rows,
    search_strips,
    search_symmetric,
    search_tiles,
    sorted_keys,
    to_keys,
)
from nearkin.search.workers import Queue, even_height, run_workers, worker_count

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


_HEIGHT = 1024
_LARGEST_SAMPLE = 4096
_EXPECTED = 100  # neighbours in the sample, for a sharp threshold
_MARGIN = 2.5  # standard deviations by which the threshold is told too low: one query in 160 falls short
_SURPLUS = 4.0  # standard deviations by which there may be more than expected
_CONSUMED_ENTRIES = 2**19
_SEED = 0


def sieve_height(order: Order, depth: int, memory: int) -> int:
    """How many queries a worker can sieve at once, if they look for so many items."""
    sample = _sample_size(len(order.gallery), depth)
    a_row = 4 * (sample + tiles.TILE) + 16 * table_width(len(order.gallery), depth, sample)
    return min(_HEIGHT, memory // 2 // worker_count(order.queries.device) // a_row)


def search_sieve(
    order: Order, rows: np.ndarray, depth: np.ndarray, exclude: np.ndarray | None, consume: Consume, memory: int
) -> np.ndarray:
    """Find the nearest items of the queries `rows`, and return the queries (s,) that this way could not serve.

    All items that rounding could put among the nearest come along. Arguments as of `search_candidates`, best by
    ascending depth.
    """
    size, deepest = len(order.gallery), int(depth.max())
    sampled = _sample_size(size, deepest)
    items = _shuffled(size, sampled)
    gallery = GallerySide(order, memory // 4, items)
    place = np.empty(size, np.int64)
    place[items] = np.arange(size)
    hidden = None if exclude is None else np.where(exclude < 0, -1, place[exclude])
    height = even_height(len(rows), sieve_height(order, deepest, memory), order.queries.device)
    starts = Queue(range(0, len(rows), height))
    unserved: list[np.ndarray] = []

    def work(_: int) -> None:
        table = KeyTable(height, table_width(size, deepest, sampled))
        sample = torch.empty(height, -(-sampled // PAD) * PAD)
        buffer = torch.empty(height * tiles.TILE)
        for start in starts:
            some, deep = rows[start : start + height], depth[start : start + height]
            everyone, left = slice(0, len(some)), order.left(torch.from_numpy(some))
            own = None if hidden is None else hidden[some]
            for first in range(0, sampled, tiles.TILE):
                out = sample[: len(some), first : first + tiles.TILE]
                gallery.scores(left, first, gallery.tile(first), own, out)
            limit, sure = told_limits(order, some, deep, sample[: len(some)], size)
            table.clear()
            table.keep(everyone, sample[: len(some)].numpy(), limit, items)
            for first in range(sampled, size, tiles.TILE):
                right = gallery.tile(first)
                scores = gallery.scores(left, first, right, own, buffer[: len(some) * len(right)].view(-1, len(right)))
                table.keep(everyone, scores.numpy(), limit, items[first:])
            unserved.append(table.hand_over(everyone, some, deep, sure, consume))

    run_workers(work, order.queries.device)
    return np.sort(np.concatenate(unserved))


def _shuffled(size: int, sample: int) -> np.ndarray:
    """The items (n,) with a random sample of them in front."""
    chosen = np.zeros(size, bool)
    chosen[np.random.default_rng(_SEED).permutation(size)[:sample]] = True
    return np.concatenate([np.flatnonzero(chosen), np.flatnonzero(~chosen)])


class KeyTable:
    """Keys of all items that pass the thresholds of some queries.

    Args:
        rows: how many queries.
        width: room for the keys of each.
    """

    def __init__(self, rows: int, width: int) -> None:
        self._keys = np.full((rows, width), EMPTY)
        self._fill = np.zeros(rows, np.int64)
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Forget everything."""
        self._keys.fill(EMPTY)
        self._fill.fill(0)

    def keep(self, rows: slice, scores: np.ndarray, limit: np.ndarray, items: np.ndarray) -> None:
        """Keep what reaches its query's limit (b,) among scores (b, m); the columns are `items`."""
        width = scores.shape[1]
        found = np.flatnonzero(scores >= limit[:, None])
        starts = np.searchsorted(found, np.arange(len(scores)) * width)
        counts = np.diff(starts, append=len(found))
        columns = found - np.repeat(np.arange(len(scores)) * width, counts)
        self._put(rows, counts, to_keys(scores.reshape(-1)[found], items[columns]))

    def keep_mirrored(self, rows: slice, scores: np.ndarray, limit: np.ndarray, items: np.ndarray) -> None:
        """As `keep`, of scores (m, b) that have the queries for columns and `items` for rows."""
        found = np.flatnonzero(scores >= limit)
        row, query = np.divmod(found, scores.shape[1])
        query = query.astype(np.uint16)  # short numbers are sorted by their digits, in no time
        by_query = np.argsort(query, kind="stable")
        keys = to_keys(scores.reshape(-1)[found[by_query]], items[row[by_query]])
        self._put(rows, np.bincount(query, minlength=rows.stop - rows.start), keys)

    def hand_over(
        self, rows: slice, queries: np.ndarray, depth: np.ndarray, sure: np.ndarray, consume: Consume
    ) -> np.ndarray:
        """Let `consume` have the keys of queries (b,) that got all they need, and return the others.

        The last that a query needs must be as near as `sure` (b,): of what is farther, rounding may hide a part.
        """
        keys, fill = self._keys[rows], self._fill[rows]
        served = (fill >= depth) & (fill <= keys.shape[1]) & (depth > 0)
        keys = keys[:, : int(fill[served].max(initial=1))]
        step = max(1, _CONSUMED_ENTRIES // keys.shape[1])
        for part in (slice(top, top + step) for top in range(0, len(queries), step)):
            good = np.flatnonzero(served[part])
            chosen = keys[part] if len(good) == len(keys[part]) else keys[part][good]
            chosen.sort(axis=1)
            reached = key_scores(chosen[np.arange(len(good)), depth[part][good] - 1]) >= sure[part][good]
            if not reached.all():
                served[part][good[~reached]] = False
                good, chosen = good[reached], chosen[reached]
            consume(queries[part][good], chosen)
        return queries[~served & (depth > 0)]

    def _put(self, rows: slice, counts: np.ndarray, keys: np.ndarray) -> None:
        """Add keys (c,) that come query by query, so many (b,) for each."""
        width = self._keys.shape[1]
        offset = np.arange(rows.start, rows.stop) * width - (np.cumsum(counts) - counts)
        with self._lock:  # a mirrored tile may meet another worker's rows
            fill = self._fill[rows]
            full = fill + counts
            target = np.repeat(offset + fill, counts) + np.arange(len(keys))
            if (full > width).any():
                fits = np.repeat(full <= width, counts)
                target, keys = target[fits], keys[fits]
            self._keys.reshape(-1)[target] = keys
            self._fill[rows] = np.where(full > width, width + 1, full)  # a query beyond its room is lost, and stays so


def told_limits(
    order: Order, rows: np.ndarray, depth: np.ndarray, sample: Tensor, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scores (b,) that `depth` of all items mostly exceed, by a sample (b, s): less what rounding may do, and plain."""
    place = _place(size, depth, min(size, sample.shape[1]))
    # The n-th best of groups is no better than the n-th best item, and little worse where groups are many.
    group = next((number for number in (8, 4, 2) if place.max() <= sample.shape[1] / number / 4), 1)
    ranked = np.sort(sample.unflatten(1, (group, -1)).amax(dim=1).numpy(), axis=1)
    sure = ranked[np.arange(len(place)), -np.clip(place, 1, ranked.shape[1])]
    limit = np.maximum(sure - order.doubt(rows), np.finfo(np.float32).min)
    return np.where(depth > 0, limit, np.float32(np.inf)), sure


def table_width(size: int, depth: int, sample: int) -> int:
    """How many items mostly pass the threshold of a query that looks for `depth` of them."""
    place = int(_place(size, np.array([depth]), sample)[0])
    passing = place * size / sample
    if sample < size:
        passing *= 1.3 * (1 + _SURPLUS / place**0.5)
    return min(size, int(passing) + 64)


def _sample_size(size: int, depth: int) -> int:
    wanted = min(max(_EXPECTED * size // depth, tiles.TILE), _LARGEST_SAMPLE)
    return min(size, -(-wanted // tiles.TILE) * tiles.TILE)


def _place(size: int, depth: np.ndarray, sample: int) -> np.ndarray:
    """The place in the sample (b,) that lies just beyond the `depth` nearest of all items."""
    share = sample / size
    spread = np.sqrt(depth * share * (1 - share) * (1 - np.minimum(depth / size, 1)))
    return np.ceil(depth * share + _MARGIN * spread).astype(np.int64) + (share < 1)


def fits_mirror(order: Order, depth: int, memory: int) -> bool:
    """Whether all that `search_mirror` keeps fits, if the queries look for so many items."""
    size = len(order.queries)
    a_row = 8 * table_width(size, depth, min(size, tiles.TILE)) + (1 if order.one_side else 2) * order.width * 4 + 64
    return (
        order.symmetric
        and size * a_row + worker_count(order.queries.device) * tiles.TILE * tiles.TILE * 8 <= memory // 2
    )


def search_mirror(order: Order, rows: np.ndarray, depth: np.ndarray, consume: Consume) -> np.ndarray:
    """As `search_sieve`, where queries and gallery are the same and a query must not find itself."""
    size, device = len(order.queries), order.queries.device
    items = _shuffled(size, tiles.TILE)
    deep = np.zeros(size, np.int64)
    deep[rows] = depth
    deep = deep[items]
    right = prepared(lambda part: order.right(torch.from_numpy(items[part])), size)
    left = right if order.one_side else prepared(lambda part: order.left(torch.from_numpy(items[part])), size)
    strips = [slice(first, min(first + tiles.TILE, size)) for first in range(0, size, tiles.TILE)]
    limit, sure = np.empty(size, np.float32), np.empty(size, np.float32)
    table = KeyTable(size, table_width(size, int(depth.max()), min(size, tiles.TILE)))

    def look(down: int, across: int, buffer: torch.Tensor) -> None:
        """Compare the queries of strip `down` with those of strip `across`, each way."""
        queries, others = strips[down], strips[across]
        tile = right[others.start : others.start + tiles.TILE]
        scores = own_scores(order, left[queries], tile, queries.start, others.start, buffer)
        if across == 0:
            limit[queries], sure[queries] = told_limits(order, items[queries], deep[queries], scores, size)
        values = scores.numpy()
        table.keep(queries, values, limit[queries], items[others])
        if down != across:
            table.keep_mirrored(others, values[:, : others.stop - others.start], limit[others], items[queries])

    def compare(_: int) -> None:
        buffer = torch.empty(tiles.TILE * tiles.TILE)
        for down, across in pairs:
            look(down, across, buffer)

    def finish(_: int) -> None:
        for strip in to_finish:
            queries = strips[strip]
            unserved.append(table.hand_over(queries, items[queries], deep[queries], sure[queries], consume))

    unserved: list[np.ndarray] = []
    number = len(strips)
    to_finish = Queue(range(number))
    look(0, 0, torch.empty(tiles.TILE * tiles.TILE))  # its limits come first: the others' tiles serve its queries too
    pairs = Queue((down, 0) for down in range(1, number))
    run_workers(compare, device)
    pairs = Queue((down, across) for across in range(1, number) for down in range(across, number))
    run_workers(compare, device)
    run_workers(finish, device)
    return np.sort(np.concatenate(unserved))
