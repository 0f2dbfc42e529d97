"""Scans of stored vectors: scores by blocks, the candidates that may be nearest, and their order in float64.

A block of slots passes through the caches, every worker takes blocks of its own, and the scores of a block never leave
its cache. Float64 then decides among the few slots that float32 cannot tell apart.

A `ScoreForm` scores stored vectors as they are, so nothing is copied; what they lack in precision is in the tolerance:

| space | query | extra, of every slot | score |
| --- | --- | --- | --- |
| sphere | `x / |x|` | `1 / |y|`, 0 for the zero vector | `x.y extra`, the cosine |
| Euclidean space, Lipschitz ball | `x` | `|y|^2 / 2` | `x.y - extra`, `-|x - y|^2 / 2` but for a constant |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from nearkin.search.scorers import CERTAINTY, ROUNDING
from nearkin.search.workers import Queue, run_workers
from nearkin.spaces import Euclidean, LipschitzBall, Space, Sphere

UNDERFLOW = 2.0**-100
"""Times sqrt(d), what to add to the largest product: numbers below 2^-126 err by more than roundings do."""

_SQUARES = (1e-30, 1e30)  # beyond, squares in float32 vanish or overflow
_LENGTHS = (1e-15, 1e15)  # beyond, scores do
_ZERO_CHORD = 0.5  # the cosine whose chord is 1, which is the zero vector's distance to all directions


class _Directions:
    """Cosines, whatever the lengths."""

    def __init__(self, zero: float) -> None:
        self._zero = zero  # score of a zero vector

    def extra(self, lengths: np.ndarray) -> np.ndarray:
        """What (n,) float32 to keep of vectors with these lengths, float64 (n,)."""
        return np.divide(1, lengths, out=np.zeros(len(lengths)), where=lengths > 0).astype(np.float32)

    def fits(self, lengths: np.ndarray) -> np.ndarray:
        """Whether (n,) vectors of these lengths can be scored in float32."""
        return (lengths == 0) | ((lengths > _LENGTHS[0]) & (lengths < _LENGTHS[1]))

    def queries(self, queries: np.ndarray) -> np.ndarray:
        """The left side (q, d) float32 of the product."""
        wide = queries.astype(np.float64)
        return (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32)

    def finish(self, products: np.ndarray, extra: np.ndarray) -> None:
        """Turn products (n, q) into scores, in place; `extra` (n,)."""
        products *= extra[:, None]
        if self._zero:
            lost = extra == 0
            if lost.any():
                products[lost] = self._zero

    def tolerance(self, lengths: np.ndarray, longest: float, dimension: int) -> np.ndarray:
        """By how much (q,) the scores of queries with these lengths may be off; `longest` is of the stored vectors."""
        # the product's error, half as much again for that of 1 / |y|, and a few roundings
        return np.full(len(lengths), (1.5 * CERTAINTY * math.sqrt(dimension) + 5) * ROUNDING, np.float32)


class _HalfSquares:
    """Negative halves of squared distances, but for the query's own; methods as of `_Directions`."""

    def extra(self, lengths: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # such lengths do not fit, so it is never used
            return (lengths**2 / 2).astype(np.float32)

    def fits(self, lengths: np.ndarray) -> np.ndarray:
        return lengths < _LENGTHS[1]

    def queries(self, queries: np.ndarray) -> np.ndarray:
        return queries

    def finish(self, products: np.ndarray, extra: np.ndarray) -> None:
        products -= extra[:, None]

    def tolerance(self, lengths: np.ndarray, longest: float, dimension: int) -> np.ndarray:
        root = math.sqrt(dimension) + 2
        largest = lengths * longest + longest**2 / 2 + UNDERFLOW * root
        return (CERTAINTY * root * ROUNDING * largest).astype(np.float32)


ScoreForm: TypeAlias = _Directions | _HalfSquares
"""Scores of one space."""


def score_form(space: Space) -> ScoreForm | None:
    """The form of a space, or None if it has none; a subclass may have a distance of its own, and has none."""
    if type(space) is Sphere:
        return _Directions(_ZERO_CHORD if space.metric == "chord" else 0.0)
    return _HalfSquares() if type(space) in (Euclidean, LipschitzBall) else None


def lengths_of(vectors: np.ndarray) -> np.ndarray:
    """Lengths (n,) float64 of vectors (n, d), accurate to float32; NaN or infinite where a vector is."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("nd,nd->n", vectors, vectors).astype(np.float64)
        extreme = np.flatnonzero(~((squares > _SQUARES[0]) & (squares < _SQUARES[1])))
        if len(extreme):
            squares[extreme] = np.square(vectors[extreme], dtype=np.float64).sum(axis=1)
    return np.sqrt(squares)


class Stored(Protocol):
    """Vectors (n, d) that give float32 where they are indexed."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: slice | np.ndarray, /) -> np.ndarray: ...


PARALLEL = 1e-14
"""A chord in float64 of what is one direction."""

_NOISE_BITS = 12
_GATHERED = 2**18  # numbers of gathered vectors, in float64: 2 MB, which a cache can hold
_CLOSE = 1e-2  # the square of a chord, below which one minus a cosine has lost too many digits

Distances = TypeVar("Distances", Tensor, np.ndarray)
Measure = Callable[[np.ndarray], np.ndarray]
"""Gives the distances float64 (q, c) of queries to the items of these indices (q, c), without rounding noise."""


def round_noise(distances: Distances) -> Distances:
    """Float64 distances without their last 12 bits: what is equal but for rounding becomes equal."""
    half = 1 << (_NOISE_BITS - 1)
    if isinstance(distances, Tensor):
        return ((distances.view(torch.int64) + half) >> _NOISE_BITS << _NOISE_BITS).view(torch.float64)
    return ((distances.view(np.int64) + half) >> _NOISE_BITS << _NOISE_BITS).view(np.float64)


def in_true_order(candidates: np.ndarray, measure: Measure, k: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest candidates (q, c) by float64 distances, equal ones by index: (distances, indices), each (q, <= k).

    Args:
        candidates: indices, -1 where there is none; the result has those last, at distance infinity.
        measure: gives the distances.
        k: how many; None: all.
    """
    if not candidates.size:
        return np.empty(candidates.shape), candidates
    missing = np.iinfo(candidates.dtype).max
    near = np.sort(np.where(candidates < 0, candidates.dtype.type(missing), candidates), axis=1)
    none = near == missing
    stand_in = np.where(none[:, :1], 0, near[:, :1])  # a distance to anything will do where there is no candidate
    true = measure(np.where(none, stand_in, near))
    true[none] = np.inf
    place = np.argsort(true, axis=1, kind="stable")[:, :k]  # indices ascend, so equal distances go by the lower one
    near[none] = -1
    return np.take_along_axis(true, place, axis=1), np.take_along_axis(near, place, axis=1)


def nearest(candidates: np.ndarray, measure: Measure, k: int) -> tuple[np.ndarray, np.ndarray]:
    """As `in_true_order`, always (q, k): distances float32 and indices int64, padded with infinity and -1."""
    distances = np.full((len(candidates), k), np.inf, np.float32)
    indices = np.full((len(candidates), k), -1, np.int64)
    true, near = in_true_order(candidates, measure, k)
    distances[:, : true.shape[1]], indices[:, : near.shape[1]] = true, near
    return distances, indices


def true_distances(space: Space, queries: np.ndarray, vectors: Stored, near: np.ndarray) -> np.ndarray:
    """Distances (q, c), float64, of queries (q, d) to the vectors numbered by `near` (q, c), without rounding noise."""
    distances = np.empty(near.shape)
    width = max(1, min(near.shape[1], _GATHERED // queries.shape[1]))
    height = max(1, _GATHERED // (width * queries.shape[1]))
    measure = _measure(space)
    for top in range(0, len(near), height):
        rows = slice(top, top + height)
        x = queries[rows].astype(np.float64)
        for left in range(0, near.shape[1], width):
            part = rows, slice(left, left + width)
            distances[part] = measure(x, vectors[near[part]].astype(np.float64))
    if isinstance(space, Sphere):
        distances[distances < PARALLEL] = 0.0  # one direction is one point at any length
    return round_noise(distances)


def _measure(space: Space) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Distances (r, c) of points (r, d) to (r, c, d), both float64; the second may be overwritten.

    What the common spaces compute is written out in numpy: for so few points torch spends its time on starting threads.
    """
    if isinstance(space, Sphere):
        return _angles if space.metric == "angle" else _chords
    if isinstance(space, Euclidean | LipschitzBall):
        return _lengths
    return partial(_by_space, space)


def _chords(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """By the cosine, which takes two passes over y; where that loses digits, by the difference."""
    lengths = np.sqrt(_dots(x, x))[:, None] * np.sqrt(_dots(y, y))
    squares = 2 - 2 * _dots(x[:, None], y) / np.where(lengths == 0, 1.0, lengths)
    near = (squares < _CLOSE) | (lengths == 0)
    if near.any():
        rows = np.flatnonzero(near.any(axis=1))
        close = _lengths(_to_length_one(x[rows]), _to_length_one(y[rows]))
        squares[rows] = np.where(near[rows], np.square(close), squares[rows])
    return np.sqrt(squares)


def _angles(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    _to_length_one(y)
    x = _to_length_one(x.copy())
    across = _lengths(-x, y.copy())
    chord = _lengths(x, y)
    return 2 * np.arctan2(chord, np.where((chord == 0) & (across == 0), 1.0, across))


def _lengths(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Lengths (r, c) of y - x; y is overwritten by the differences."""
    y -= x[:, None]
    return np.sqrt(np.einsum("rcd,rcd->rc", y, y))


def _dots(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Inner products (...) of vectors (..., d)."""
    return np.vecdot(x, y) if hasattr(np, "vecdot") else np.einsum("...d,...d->...", x, y)


def _to_length_one(x: np.ndarray) -> np.ndarray:
    """Vectors (..., d) brought to length one in place; zero stays zero."""
    # They come from float32, whose squares float64 can hold at any scale.
    length = np.sqrt(_dots(x, x))[..., None]
    x /= np.where(length == 0, 1.0, length)
    return x


@torch.no_grad()
def _by_space(space: Space, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    distances = space.distance(torch.from_numpy(x).unsqueeze(1), torch.from_numpy(y))[:, 0]
    return distances.double().numpy()


_GROUP = 16
_NONE = np.finfo(np.float32).min  # below every score but that of a hidden slot


class CandidatePool:
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
    def merged(cls, pools: list[CandidatePool]) -> tuple[np.ndarray, np.ndarray]:
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
        """At least k slots have these scores (q,)."""
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


def _runs(queries: np.ndarray, q: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the entries of each query (q,) start in an ascending list, and how many there are."""
    starts = np.searchsorted(queries, np.arange(q))
    return starts, np.diff(starts, append=len(queries))


_ONE_ENTRIES = 2**23  # of the vectors of a block: 32 MB
_GATHERED_ENTRIES = 2**21
_FEW_ENTRIES = 2**19  # smaller, as each query passes over it
_PACKED_ENTRIES = 2**17  # smaller still: what was widened is to be in the cache when it is multiplied
_MANY_ENTRIES = 2**18  # of the scores of a block
_FEW = 6  # queries, up to which a product row by row is faster than a product of matrices
_MOST_QUERIES = 256
_MOST_WANTED = 2**19  # neighbours of all queries in work
_CROWD = 4096
_SPARSE = 0.1  # share of the slots, below which they are gathered rather than masked
_CPU = torch.device("cpu")

Slots = slice | np.ndarray
Score = Callable[[Slots], np.ndarray]
"""Gives the scores (n, q), contiguous, of the slots of a block; a worker has one of its own."""


class SlotScan:
    """The slots that may be found, offered block by block to the candidates of some queries.

    Args:
        count: how many slots there are.
        allowed: which slots (count,) may be found; None: all.
    """

    def __init__(self, count: int, allowed: np.ndarray | None) -> None:
        self._size = count
        self._allowed = allowed
        self._chosen: np.ndarray | None = None
        if allowed is not None and np.count_nonzero(allowed) < _SPARSE * len(allowed):
            self._chosen, self._allowed = np.flatnonzero(allowed), None
            self._size = len(self._chosen)

    def candidates(self, queries: np.ndarray, k: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Candidates that hold the k nearest of queries float32 (q, d), a part of the queries at a time.

        Yields:
            Which queries, their candidates (r, c) with -1 where there is none, and those of the r queries, by number,
            that have too many candidates and were given up.
        """
        raise NotImplementedError

    def distances(self, queries: np.ndarray, near: np.ndarray) -> np.ndarray:
        """Distances (q, c), float64, of queries (q, d) to slots (q, c), without rounding noise."""
        raise NotImplementedError

    def look(
        self, k: int, tolerance: np.ndarray, size: int, new_score: Callable[[], Score], *, here: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Candidates and queries given up, from the scores of all blocks of a size; `here` needs no workers."""
        limits = np.full(len(tolerance), _NONE, np.float32)
        blocks = Queue(self._blocks(size))
        pools: list[CandidatePool] = []

        def work(_: int) -> None:
            pool, score = CandidatePool(k, limits, tolerance, _CROWD + 4 * k), new_score()
            pools.append(pool)
            for slots in blocks:
                scores = score(slots)
                if self._allowed is not None:
                    scores[~self._allowed[slots]] = -np.inf
                pool.offer(scores, slots)

        if here:
            work(0)
        else:
            run_workers(work, _CPU)
        return CandidatePool.merged(pools)

    def _blocks(self, size: int) -> Iterator[Slots]:
        for start in range(0, self._size, size):
            part = slice(start, min(start + size, self._size))
            yield part if self._chosen is None else self._chosen[part]


class ProductScan(SlotScan):
    """Slots whose scores are one product with the queries.

    Args:
        space: what tells distances.
        form: how products become scores in it.
        vectors: (n, d) or more.
        extra: what the form keeps of each of them (n,).
        longest: length of the longest.
        count: how many slots there are.
        allowed: which of them (count,) may be found; None: all.
    """

    def __init__(
        self,
        space: Space,
        form: ScoreForm,
        vectors: Stored,
        extra: np.ndarray,
        longest: float,
        count: int,
        allowed: np.ndarray | None,
    ) -> None:
        super().__init__(count, allowed)
        self._space, self._form = space, form
        self._vectors, self._extra, self._longest = vectors, extra, longest

    def candidates(self, queries: np.ndarray, k: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """As `SlotScan.candidates`; the lengths of the queries fit the form, and none is zero on the sphere."""
        left = self._form.queries(queries)
        tolerance = self._form.tolerance(lengths_of(queries), self._longest, queries.shape[1])
        step = min(_MOST_QUERIES, max(1, _MOST_WANTED // k))
        for start in range(0, len(queries), step):
            part = slice(start, min(start + step, len(queries)))
            look = self._look_few if part.stop - start <= _FEW else self._look_many
            yield part, *look(left[part], k, tolerance[part])

    def distances(self, queries: np.ndarray, near: np.ndarray) -> np.ndarray:
        """As `SlotScan.distances`."""
        return true_distances(self._space, queries, self._vectors, near)

    def _look_few(self, left: np.ndarray, k: int, tolerance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Candidates of a few queries, row by row.

        One query takes the vectors through numpy's own product, which has threads of its own and is bound by memory
        alone; several would take them through once each, and workers keep a block in the cache for all of them.
        """
        plain = isinstance(self._vectors, np.ndarray)
        alone = plain and len(left) == 1 and self._chosen is None
        one = _ONE_ENTRIES if alone else _GATHERED_ENTRIES
        entries = (one if len(left) == 1 else _FEW_ENTRIES) if plain else _PACKED_ENTRIES
        size = max(1, entries // left.shape[1])
        product = np.matmul if alone else _products

        def score(buffer: np.ndarray, slots: Slots) -> np.ndarray:
            vectors = self._vectors[slots]
            scores = buffer[: len(vectors)]
            for column, query in enumerate(left):
                product(vectors, query, out=scores[:, column])
            self._form.finish(scores, self._extra[slots])
            return scores

        new = lambda: partial(score, np.empty((size, len(left)), np.float32))  # noqa: E731
        return self.look(k, tolerance, size, new, here=alone or self._size <= size)

    def _look_many(self, left: np.ndarray, k: int, tolerance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Candidates of many queries, by products of matrices.

        The products are torch's, which has one thread in each worker: those of numpy's library keep on spinning for a
        while after every product, and take the cores from whatever else the process does.
        """
        size = max(1, _MANY_ENTRIES // len(left))
        right = torch.from_numpy(np.ascontiguousarray(left.T))

        def score(buffer: Tensor, slots: Slots) -> np.ndarray:
            vectors = torch.from_numpy(self._vectors[slots])
            scores: np.ndarray = torch.mm(vectors, right, out=buffer[: len(vectors)]).numpy()
            self._form.finish(scores, self._extra[slots])
            return scores

        return self.look(k, tolerance, size, lambda: partial(score, torch.empty(min(size, self._size), len(left))))


def _products(vectors: np.ndarray, query: np.ndarray, out: np.ndarray) -> None:
    """Products (n,) of vectors (n, d) with a query (d,)."""
    if hasattr(np, "vecdot"):  # from numpy 2.0 on; it starts no threads of its own, so workers do not hinder each other
        np.vecdot(vectors, query, out=out)
    else:
        np.matmul(vectors, query, out=out)
