"""Genuine and impostor pairs, all or sampled, and verification trials of who is enrolled and who asks.

Verification trials: who is enrolled, who asks, and how far other classes might lead.
A trial is an ordered pair: a similarity that was learned may tell `S(enrolled, query)` from `S(query, enrolled)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from nearkin.errors import DataError
from nearkin.metrics.trade_off import sort_distinct
from nearkin.search.scorers import Scorer

Distances: TypeAlias = tuple[np.ndarray, np.ndarray]
_ENTRY_BYTES = 64  # for an entry of a tile: distances in double precision, masks, and what a space needs on the way
_COPIES = 8  # of the vectors of a tile: gathered, projected, mirrored
_NONE = np.empty(0, np.float32)


class Pairs:
    """The pairs of points with themselves, each unordered pair once and no point with itself, or with a gallery.

    Args:
        points: (n, d).
        codes: class numbers (n,).
        gallery: (m, d), or None.
        gallery_codes: class numbers (m,) of the same code book.
        space: whose distance to use.
        memory_mb: how many megabytes the distances of a tile may take on the way.
    """

    def __init__(
        self,
        points: Tensor,
        codes: np.ndarray,
        gallery: Tensor | None,
        gallery_codes: np.ndarray | None,
        space: Scorer,
        memory_mb: int,
    ) -> None:
        self._alone = gallery is None or gallery_codes is None
        self._rows, self._row_codes = points, codes
        self._columns = points if gallery is None else gallery
        self._column_codes = codes if gallery_codes is None else gallery_codes
        self._space, self._bytes = space, memory_mb * 2**20 // 2
        self._populations = _populations(codes, None if gallery is None else gallery_codes)

    @property
    def totals(self) -> tuple[int, int]:
        """How many pairs there are of one class, and of two."""
        return self._populations[0].total, self._populations[1].total

    def all(self) -> Iterator[Distances]:
        """Distances float32 of all genuine (g,) and impostor (i,) pairs, a tile of pairs at a time."""
        side = max(1, min(math.isqrt(self._bytes // _ENTRY_BYTES), self._bytes // (2 * self._vector_bytes)))
        row_codes, column_codes = torch.from_numpy(self._row_codes), torch.from_numpy(self._column_codes)
        for top in range(0, len(self._rows), side):
            rows = self._rows[top : top + side]
            for left in range(top if self._alone else 0, len(self._columns), side):
                columns = self._columns[left : left + side]
                distances = self._checked(self._space.distance(rows, columns), (len(rows), len(columns)))
                same = row_codes[top : top + side, None] == column_codes[left : left + side]
                other = ~same
                if self._alone and left == top:
                    same, other = same.triu(1), other.triu(1)
                yield distances[same].numpy(), distances[other].numpy()

    def sample(self, most: int, rng: np.random.Generator) -> Iterator[Distances]:
        """Distances as `all` gives them, of at most `most` pairs of each kind, drawn without replacement.

        Every pair of a kind is as likely as any other; of a kind with no more than `most` pairs, all are taken.
        """
        step = max(1, self._bytes // (self._vector_bytes + _ENTRY_BYTES))
        for genuine, population in zip((True, False), self._populations, strict=True):
            numbers = population.draw(most, rng)
            for start in range(0, len(numbers), step):
                rows, columns = population.pairs(numbers[start : start + step])
                # One by one pair as a batch of 1 x 1 matrices.
                left, right = self._rows[torch.from_numpy(rows), None], self._columns[torch.from_numpy(columns), None]
                distances = self._checked(self._space.distance(left, right), (len(rows), 1, 1)).flatten().numpy()
                yield (distances, _NONE) if genuine else (_NONE, distances)

    @property
    def _vector_bytes(self) -> int:
        """What one pair's vectors take on the way to their distance."""
        return _COPIES * self._rows.shape[1] * self._rows.element_size()

    def _checked(self, distances: Tensor, shape: tuple[int, ...]) -> Tensor:
        if distances.shape != shape:
            raise DataError(f"The space gives distances of shape {tuple(distances.shape)} where {shape} is expected.")
        distances = distances.float().cpu()
        if not distances.isfinite().all():
            raise DataError("Some distances are not finite numbers: scale the embeddings so that they do not overflow.")
        return distances


def _populations(codes: np.ndarray, gallery_codes: np.ndarray | None) -> tuple[_Population, _Population]:
    """Both kinds of pairs, in an order in which every point's partners follow each other."""
    column_codes = codes if gallery_codes is None else gallery_codes
    order = np.argsort(column_codes, kind="stable")
    sizes = np.bincount(column_codes, minlength=int(codes.max(initial=0)) + 1)
    ends = np.cumsum(sizes)
    if gallery_codes is None:
        # Points in order of their class: partners that come later are first the rest of the class, then all others.
        place, end = np.arange(len(order)), ends[codes[order]]
        return (
            _Population(order, order, place + 1, end - place - 1),
            _Population(order, order, end, len(order) - end),
        )
    end, size = ends[codes], sizes[codes]
    rows = np.arange(len(end))
    return _Population(rows, order, end - size, size), _Population(rows, order, end, len(order) - size)


class _Population:
    """Pairs of one kind, numbered: row p has `counts[p]` partners, from column `first[p]` on and round the end.

    Args:
        rows: index of the point in every row (r,).
        columns: index of the point in every column (c,).
        first: (r,).
        counts: (r,).
    """

    def __init__(self, rows: np.ndarray, columns: np.ndarray, first: np.ndarray, counts: np.ndarray) -> None:
        self._rows, self._columns, self._first = rows, columns, first
        self._starts = np.cumsum(counts) - counts
        self.total = int(counts.sum())

    def draw(self, most: int, rng: np.random.Generator) -> np.ndarray:
        """Numbers (k,) of at most so many pairs, ascending."""
        return _distinct(self.total, min(most, self.total), rng)

    def pairs(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Indices (k,) and (k,) of the two points of the pairs with these numbers (k,)."""
        rows = np.searchsorted(self._starts, numbers, side="right") - 1
        columns = (self._first[rows] + numbers - self._starts[rows]) % len(self._columns)
        return self._rows[rows], self._columns[columns]


def _distinct(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """A uniformly drawn set of `count` of the numbers below `total`, int64 (count,), ascending.

    Memory grows with the count: a permutation of all pairs would not fit.
    """
    if 2 * count > total:
        kept = np.ones(total, bool)
        kept[_distinct(total, total - count, rng)] = False
        return np.flatnonzero(kept)
    numbers = sort_distinct(rng.integers(total, size=count))
    while missing := count - len(numbers):
        # As if drawn one by one and drawn again when seen before.
        more = sort_distinct(rng.integers(total, size=missing))
        places = np.searchsorted(numbers, more)
        new = numbers[np.minimum(places, len(numbers) - 1)] != more
        numbers = np.insert(numbers, places[new], more[new])
    return numbers


_BINS = 2048
"""Bins of scores with equally many trials, for each kind."""
_BLOCK = 2**22
"""Weights of pairs of classes, or counts of bins, that are held at once."""


@dataclass(frozen=True, eq=False)
class Trials:
    """Ordered pairs of items.

    Attributes:
        enrolled: places (t,) of the enrolled items; in the gallery where there is one.
        queries: places (t,) of the queries.
        same: whether both are of one class, boolean (t,).
        total: how many genuine and how many impostor pairs there are to draw from.
    """

    enrolled: np.ndarray = field(repr=False)
    queries: np.ndarray = field(repr=False)
    same: np.ndarray = field(repr=False)
    total: tuple[int, int]

    @property
    def notes(self) -> list[str]:
        """What a reader must know: which pairs are a sample."""
        return sample_notes((int(self.same.sum()), int((~self.same).sum())), self.total)


def sample_notes(held: tuple[int, int], total: tuple[int, int]) -> list[str]:
    """Which of the genuine and the impostor pairs are a sample."""
    kinds = zip(("genuine", "impostor"), held, total, strict=True)
    return [f"{some:,} of {every:,} {kind} pairs were drawn at random." for kind, some, every in kinds if some < every]


def draw_trials(codes: np.ndarray, gallery_codes: np.ndarray | None = None, *, most: int, seed: int = 0) -> Trials:
    """At most so many genuine and so many impostor pairs, each kind drawn without replacement, and their order.

    Without a gallery each unordered pair appears once at the most, and a coin says which of the two is enrolled. With
    one, the item of the gallery is.

    Args:
        codes: class numbers (n,) of the items, or of the queries where there is a gallery.
        gallery_codes: class numbers (m,) of the gallery by the same code book.
        most: how many trials of each kind.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    populations = _populations(codes, gallery_codes)
    kinds = [one.pairs(one.draw(most, rng)) for one in populations]
    if not all(len(rows) for rows, _ in kinds):
        raise DataError("Verification needs genuine and impostor pairs: pass two classes, one of them with two items.")
    queries, enrolled = (np.concatenate([kind[side] for kind in kinds]) for side in (0, 1))
    same = np.arange(len(queries)) < len(kinds[0][0])
    if gallery_codes is None:
        swapped = rng.random(len(queries)) < 0.5
        queries, enrolled = np.where(swapped, enrolled, queries), np.where(swapped, queries, enrolled)
    return Trials(enrolled, queries, same, (populations[0].total, populations[1].total))


def resampled_equal_errors(
    scores: Mapping[str, np.ndarray],
    same: np.ndarray,
    classes: tuple[np.ndarray, np.ndarray],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """The EER of each score in resamples of the classes (resamples,), the same for all scores; NaN where it has none.

    Each resample draws, with replacement, as many classes as there are. A genuine trial counts as often as its class
    was drawn, an impostor trial as often as the product for its two. Scores are counted in some thousand bins.

    Args:
        scores: name to scores (t,), the higher the more alike.
        same: whether each trial is genuine (t,).
        classes: class numbers (t,) of both sides.
        resamples: how many.
        seed: of the draws.
    """
    low, high = np.minimum(*classes), np.maximum(*classes)
    count = int(high.max()) + 1
    pairs, pair = np.unique(low * count + high, return_inverse=True)
    first, second = np.divmod(pairs, count)
    present = np.unique(np.concatenate([first, second]))
    tables = {name: _tables(values, same, pair, len(pairs)) for name, values in scores.items()}
    rng = np.random.default_rng(seed)
    found: dict[str, list[np.ndarray]] = {name: [] for name in scores}
    step = max(1, _BLOCK // max(len(pairs), 2 * _BINS) // 16)
    for start in range(0, resamples, step):
        drawn = np.zeros((count, min(step, resamples - start)))
        for column in drawn.T:
            column[present] = np.bincount(rng.integers(len(present), size=len(present)), minlength=len(present))
        weights = np.where((first == second)[:, None], drawn[first], drawn[first] * drawn[second])
        for name, (genuine, impostors) in tables.items():
            found[name].append(_equal_errors(genuine @ weights, impostors @ weights))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _tables(scores: np.ndarray, same: np.ndarray, pair: np.ndarray, pairs: int) -> tuple[sparse.csr_array, ...]:
    """How many genuine, and impostor, trials of each pair of classes lie in each bin, (bins, pairs), highest first."""
    shares = np.linspace(0, 1, _BINS + 1)[1:]
    edges = np.unique(np.concatenate([np.quantile(scores[kind], shares, method="lower") for kind in (same, ~same)]))
    # A bin reaches from above one edge up to the next, so that equal scores are accepted together.
    place = len(edges) - np.searchsorted(edges, scores, side="left")
    shape = (len(edges) + 1, pairs)
    return tuple(
        sparse.coo_array((np.ones(int(kind.sum())), (place[kind], pair[kind])), shape=shape).tocsr()
        for kind in (same, ~same)
    )


def _equal_errors(genuine: np.ndarray, impostors: np.ndarray) -> np.ndarray:
    """EERs (r,) of counts (bins, r), the highest scores first: between two thresholds errors are interpolated."""
    nothing = np.zeros((1, genuine.shape[1]))
    with np.errstate(invalid="ignore"):
        accepted, false = (
            np.concatenate([nothing, kind.cumsum(axis=0)]) / kind.sum(axis=0) for kind in (genuine, impostors)
        )
    excess = 1.0 - accepted - false
    after = np.maximum((excess <= 1e-12).argmax(axis=0), 1)
    columns = np.arange(genuine.shape[1])
    before, here = excess[after - 1, columns], excess[after, columns]
    share = before / (before - here)
    low = false[after - 1, columns]
    return low + share * (false[after, columns] - low)
