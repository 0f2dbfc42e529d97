"""Vectors in memory that grow at the end and are searched exactly, by distances or by a learned similarity.

What every slot adds to a learned similarity is computed once and kept beside the vectors. It takes
`4 (hidden + 1)` bytes a slot, twice that where the similarity is symmetric: 205 MB for 100,000 items and 512 hidden
units.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import check_whole
from nearkin.errors import DataError
from nearkin.gallery.dtypes import VectorRows, allocate, raw_rows, slice_rows, unpacked
from nearkin.gallery.store import ABSENT, UNLABELLED
from nearkin.search import exact
from nearkin.search.scan import ProductScan, Slots, SlotScan, lengths_of, nearest, score_form, true_distances
from nearkin.search.scorers import CERTAINTY, ROUNDING, Factorised
from nearkin.spaces import Space

_SIDE_ROWS = 2**12  # slots whose sides are computed together
_SIDE_ENTRIES = 2**20  # of the sides of a block: 4 MB
_EXACT_ENTRIES = 2**22  # of candidates' sides in float64: 32 MB
_MOST_QUERIES = 64  # compared by their sides together
_LARGEST = 1e30  # of what a side may add, beyond which float32 overflows
_DIGITS = 40  # binary, of the terms of a score in float64 that count
_LEAST = 1024  # slots
_ROWS = 2**17  # of a chunk
_QUERIES = 2**10
_MEMORY_MB = 64


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The first `count` slots of arrays that may be longer; what lies beyond belongs to the writer.

    Attributes:
        vectors: (capacity, d), float32 where they are indexed.
        extra: what the product needs besides, float32 (capacity,): see `nearkin.search.scan`.
        codes: int32 (capacity,).
        count: how many slots there are.
        absent: how many of them were removed.
        unlabelled: how many have an item without a label.
        longest: length of the longest vector.
        tame: whether all vectors can be scored in float32.
    """

    vectors: VectorRows
    extra: np.ndarray
    codes: np.ndarray
    count: int = 0
    absent: int = 0
    unlabelled: int = 0
    longest: float = 0.0
    tame: bool = True

    def since(self, slot: int) -> Snapshot:
        """The slots from this one on, numbered from 0; `absent` and `unlabelled` are then upper bounds."""
        vectors, count = slice_rows(self.vectors, slot), self.count - slot
        return replace(self, vectors=vectors, extra=self.extra[slot:], codes=self.codes[slot:], count=count)


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """A search.

    Attributes:
        queries: float32 (q, d).
        lengths: of the queries, float64 (q,).
        k: how many neighbours.
        allowed: which slots (count,) may be found; None: all.
        exclude: a slot (q,) that a query must not find, -1 for none; None: there are none.
    """

    queries: np.ndarray
    lengths: np.ndarray
    k: int
    allowed: np.ndarray | None = None
    exclude: np.ndarray | None = None

    def hide(self, candidates: np.ndarray, rows: np.ndarray) -> None:
        """Put -1 for the slot that each of some queries must not find among its candidates (r, c)."""
        if self.exclude is not None:
            candidates[candidates == self.exclude[rows, None]] = -1


def check_request(now: Snapshot, queries: Any, k: Any, allowed: Any, labelled: bool, exclude: Any) -> SearchRequest:
    """What is asked for of a snapshot; arguments as for `VectorIndex.search`."""
    check_whole(k, "k", 1)
    x, lengths = checked_points(queries, now.vectors.shape[1])
    if exclude is not None:
        exclude = np.asarray(exclude)
        if exclude.shape != (len(x),) or exclude.dtype.kind not in "iu":
            raise DataError(f"`exclude` must be {len(x)} whole numbers, a slot or -1 for each query.")
        exclude = exclude.astype(np.int64)
    return SearchRequest(x, lengths, int(k), _as_mask(now, allowed, labelled), exclude)


def checked_points(vectors: Any, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors as a contiguous float32 matrix (n, d), and their lengths float64 (n,)."""
    if isinstance(vectors, Tensor):
        vectors = vectors.detach().cpu().numpy()
    try:
        with np.errstate(over="ignore"):
            matrix = np.ascontiguousarray(vectors, np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"Vectors must be a matrix of numbers ({error}).") from error
    if matrix.ndim != 2 or matrix.shape[1] != dimension:
        raise DataError(f"Vectors must have the shape (n, {dimension}), not {matrix.shape}.")
    lengths = lengths_of(matrix)
    bad = np.flatnonzero(~np.isfinite(lengths))
    if len(bad):
        raise DataError(f"{len(bad)} of {len(matrix)} vectors hold NaN or infinite values, the first is row {bad[0]}.")
    return matrix, lengths


def _as_mask(now: Snapshot, allowed: Any | None, labelled: bool) -> np.ndarray | None:
    """Which slots (count,) may be found: what is allowed, not removed and, if asked for, labelled; None: all."""
    mask = None
    if now.absent or (labelled and now.unlabelled):
        mask = np.asarray(now.codes[: now.count] > (UNLABELLED if labelled else ABSENT))
    if allowed is None:
        return mask
    given = np.asarray(allowed)
    if given.dtype != bool or given.ndim != 1 or len(given) > now.count:
        raise DataError(
            f"`allowed` must be truth values for the {now.count} slots or the first of them, not {given.dtype} of the "
            f"shape {given.shape}."
        )
    whole = np.zeros(now.count, bool)
    whole[: len(given)] = given
    return whole if mask is None else whole & mask


class EnrolledSides:
    """The sides of the slots of one index, computed when a search first needs them.

    Vectors never change, so neither do their sides: only those of slots that came since are computed.

    Args:
        space: what compares.
    """

    def __init__(self, space: Factorised) -> None:
        self.space = space
        self._computing = threading.Lock()
        self._table = torch.empty(0, 0)
        self._count = 0
        self._largest = 0.0

    def upto(self, now: Snapshot) -> tuple[Tensor, float]:
        """The sides float32 (count, width) of a snapshot's slots, and the most that any adds to a score."""
        with self._computing, torch.no_grad():
            if self._count < now.count or not self._table.shape[1]:
                self._extend(now)
            return self._table[: now.count], self._largest

    def _extend(self, now: Snapshot) -> None:
        apart = self.space.sides()
        if len(self._table) < now.count or not self._table.shape[1]:
            room = max(_LEAST, now.count + now.count // 4)  # memory that was never written to is not resident
            table = torch.empty(room, apart.width)
            if self._count:
                table[: self._count] = self._table[: self._count]
            self._table = table  # searches under way keep the old one
        for start in range(self._count, now.count, _SIDE_ROWS):
            stop = min(start + _SIDE_ROWS, now.count)
            sides = apart.of_enrolled(torch.from_numpy(now.vectors[start:stop]))
            self._table[start:stop] = sides
            largest = float(apart.sizes(sides).max())
            self._largest = max(self._largest, largest) if math.isfinite(largest) else math.inf
        self._count = max(self._count, now.count)


class SidesScan(SlotScan):
    """The slots of a snapshot compared by a learned similarity.

    Args:
        enrolled: the sides of the slots.
        now: vectors of this moment.
        allowed: which slots (count,) may be found; None: all.
    """

    def __init__(self, enrolled: EnrolledSides, now: Snapshot, allowed: np.ndarray | None) -> None:
        super().__init__(now.count, allowed)
        self._now = now
        self._sides, self._exact = enrolled.space.sides(), enrolled.space.sides(torch.float64)
        self._table, self._largest = enrolled.upto(now)

    def candidates(self, queries: np.ndarray, k: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """As `SlotScan.candidates`."""
        for start in range(0, len(queries), _MOST_QUERIES):
            part = slice(start, min(start + _MOST_QUERIES, len(queries)))
            yield part, *self._candidates(torch.from_numpy(queries[part]), k)

    @torch.no_grad()
    def _candidates(self, queries: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        left = self._sides.of_queries(queries)
        sizes = self._sides.sizes(left).numpy().astype(np.float64) + self._largest
        if not (sizes < _LARGEST).all():
            return np.full((len(queries), 0), -1, np.int64), np.arange(len(queries))
        tolerance = (CERTAINTY * (math.sqrt(self._sides.width) + 4) * ROUNDING * sizes).astype(np.float32)

        def score(slots: Slots) -> np.ndarray:
            scores: np.ndarray = self._sides.scores(left, self._table[slots]).T.contiguous().numpy()
            return scores

        return self.look(k, tolerance, max(1, _SIDE_ENTRIES // self._sides.width), lambda: score)

    @torch.no_grad()
    def distances(self, queries: np.ndarray, near: np.ndarray) -> np.ndarray:
        """As `SlotScan.distances`; the side of a slot is computed once for a block of queries."""
        distances = np.empty(near.shape)
        height = max(1, _EXACT_ENTRIES // (near.shape[1] * self._exact.width))
        for start in range(0, len(near), height):
            rows = slice(start, start + height)
            which, place = np.unique(near[rows], return_inverse=True)
            enrolled = self._exact.of_enrolled(torch.from_numpy(self._now.vectors[which]))
            asked = self._exact.of_queries(torch.from_numpy(queries[rows]))
            gathered = enrolled[torch.from_numpy(place.reshape(near[rows].shape))]
            size = self._exact.sizes(asked) + self._exact.sizes(enrolled).max()
            scores = self._exact.scores(asked[:, None], gathered)[:, 0]
            # What rounding may do to terms of such a size is no difference.
            grain = np.exp2(np.ceil(np.log2(np.maximum(size.numpy(), np.finfo(np.float64).tiny))) - _DIGITS)[:, None]
            distances[rows] = np.rint(scores.neg_().numpy() / grain) * grain
        return distances


class VectorIndex:
    """Vectors in slots 0, 1, 2, ..., each with the code of its class.

    Vectors never change; a slot whose item was removed keeps its vector and gets the code `ABSENT`. One thread may
    append and set codes while many search: a search sees the slots and codes of the moment it began.

    Args:
        space: how vectors are compared.
        dimension: size of a vector.
        dtype: "int8" holds them as int8 rows, a quarter of the memory; any other as float32.

    Attributes:
        snapshot: all of this moment; it stays as it is while others write.
    """

    def __init__(self, space: Space, dimension: int, dtype: str = "float32") -> None:
        self.space = space
        self.dimension = dimension
        self._form = score_form(space)
        self._sides = EnrolledSides(space) if isinstance(space, Factorised) else None
        self._writing = threading.Lock()
        self._dtype = dtype
        self.snapshot = Snapshot(allocate(0, dimension, dtype), np.empty(0, np.float32), np.empty(0, np.int32))

    @property
    def count(self) -> int:
        """How many slots there are, those of removed items included."""
        return self.snapshot.count

    @property
    def codes(self) -> np.ndarray:
        """The codes int32 (count,) of this moment, not to be written to."""
        now = self.snapshot
        view = now.codes[: now.count]
        view.flags.writeable = False
        return view

    def vectors(self, slots: np.ndarray) -> np.ndarray:
        """A copy of the vectors float32 (n, d) in slots (n,)."""
        now = self.snapshot
        return slice_rows(now.vectors, 0, now.count)[np.asarray(slots, np.int64)]

    def reserve(self, n: int) -> None:
        """Make room for n more slots, so that appending them copies nothing; room that is not used costs no memory."""
        with self._writing:
            self._grow(self.snapshot.count + n)

    def append(self, vectors: np.ndarray, codes: np.ndarray) -> None:
        """Add slots with vectors float32 (n, d), points of the space, and codes int32 (n,).

        An index of int8 takes them packed (n, 4 + d), as `dtypes.packed` makes them.
        """
        if self._dtype == "int8":
            lengths = lengths_of(unpacked(vectors))
        else:
            vectors, lengths = checked_points(vectors, self.dimension)
        codes = np.asarray(codes, np.int32)
        if codes.shape != (len(vectors),):
            raise DataError(f"There must be one code for each of the {len(vectors)} vectors, not {codes.shape}.")
        with self._writing:
            self._grow(self.snapshot.count + len(vectors))
            now = self.snapshot
            end = now.count + len(vectors)
            raw_rows(now.vectors)[now.count : end] = vectors
            now.codes[now.count : end] = codes
            tame = now.tame
            if self._form is not None:
                now.extra[now.count : end] = self._form.extra(lengths)
                tame = tame and bool(self._form.fits(lengths).all())
            self.snapshot = replace(
                now,
                count=end,
                absent=now.absent + int((codes == ABSENT).sum()),
                unlabelled=now.unlabelled + int((codes == UNLABELLED).sum()),
                longest=max(now.longest, float(lengths.max(initial=0))),
                tame=tame,
            )

    def set_codes(self, slots: np.ndarray, codes: np.ndarray | int) -> None:
        """Give slots (n,) other codes, (n,) or one for all; `ABSENT` removes them."""
        with self._writing:
            now = self.snapshot
            changed = np.empty_like(now.codes)  # searches under way keep the old ones
            used = changed[: now.count]
            used[:] = now.codes[: now.count]
            used[np.asarray(slots, np.int64)] = codes
            absent, unlabelled = int((used == ABSENT).sum()), int((used == UNLABELLED).sum())
            self.snapshot = replace(now, codes=changed, absent=absent, unlabelled=unlabelled)

    def search(
        self,
        queries: Any,
        k: int,
        *,
        allowed: np.ndarray | None = None,
        labelled: bool = False,
        exclude: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest slots of every query: (distances float32, slots int64), each (q, k), nearest first.

        Nothing is missed: distances are in their true order, equal ones by the lower slot. If there are fewer than k
        slots the rest is at distance infinity, slot -1.

        Args:
            queries: points of the space, float32 (q, d).
            k: how many.
            allowed: which slots may be found, bool (count,); a shorter one leaves out the slots beyond it.
            labelled: only slots whose item has a label.
            exclude: a slot (q,) that a query must not find, -1 for none.
        """
        now = self.snapshot
        return self.answer(now, check_request(now, queries, k, allowed, labelled, exclude))

    def answer(self, now: Snapshot, asked: SearchRequest) -> tuple[np.ndarray, np.ndarray]:
        """Search a snapshot: one scan where space and vectors allow it, chunk by chunk for what is left."""
        queries, k = asked.queries, asked.k
        distances = np.full((len(queries), k), np.inf, np.float32)
        slots = np.full((len(queries), k), -1, np.int64)
        scanned = np.zeros(len(queries), bool)
        if self._sides is not None:
            scanned[:] = now.count > 0
        elif self._form is not None and now.tame:
            scanned = self._form.fits(asked.lengths) & (asked.lengths > 0)
        left = [np.flatnonzero(~scanned)]
        if scanned.any():
            rows, scan = np.flatnonzero(scanned), self._scan(now, asked.allowed)
            for part, candidates, crowded in scan.candidates(queries[rows], k + (asked.exclude is not None)):
                some = rows[part]
                asked.hide(candidates, some)
                distances[some], slots[some] = nearest(candidates, partial(scan.distances, queries[some]), k)
                left.append(some[crowded])
        rest = np.concatenate(left)
        vectors = slice_rows(now.vectors, 0, now.count)
        for start in range(0, len(rest), _QUERIES):
            some = rest[start : start + _QUERIES]
            # Every chunk gives its own k nearest and one more, of which one may be excluded; their true order decides.
            found = [
                self._of_chunk(queries[some], vectors, asked.allowed, k + 1, row) for row in range(0, now.count, _ROWS)
            ]
            candidates = np.concatenate([np.empty((len(some), 0), np.int64), *found], axis=1)
            asked.hide(candidates, some)
            measure = partial(true_distances, self.space, queries[some], vectors)
            distances[some], slots[some] = nearest(candidates, measure, k)
        return distances, slots

    def _scan(self, now: Snapshot, allowed: np.ndarray | None) -> SlotScan:
        if self._sides is not None:
            return SidesScan(self._sides, now, allowed)
        assert self._form is not None
        return ProductScan(self.space, self._form, now.vectors, now.extra, now.longest, now.count, allowed)

    def _of_chunk(
        self, queries: np.ndarray, vectors: VectorRows, allowed: np.ndarray | None, k: int, first: int
    ) -> np.ndarray:
        """The k nearest slots (q, at most k) of one chunk."""
        chunk = vectors[first : first + _ROWS]
        chosen = None if allowed is None else np.flatnonzero(allowed[first : first + _ROWS])
        points = chunk if chosen is None or len(chosen) == len(chunk) else chunk[chosen]
        if not len(points):
            return np.empty((len(queries), 0), np.int64)
        found = exact(queries, points, min(k, len(points)), space=self.space, memory_mb=_MEMORY_MB)[1].numpy()
        return first + (found if chosen is None else chosen[found])

    def _grow(self, n: int) -> None:
        """Room for n slots in all; arrays that readers hold stay as they are."""
        now = self.snapshot
        if n <= len(now.vectors):
            return
        capacity = max(_LEAST, n + n // 4, 2 * len(now.vectors))  # memory that was never written to is not resident
        vectors = allocate(capacity, self.dimension, self._dtype)
        extra, codes = np.empty(capacity, np.float32), np.empty(capacity, np.int32)
        for new, old in ((raw_rows(vectors), raw_rows(now.vectors)), (extra, now.extra), (codes, now.codes)):
            new[: now.count] = old[: now.count]
        self.snapshot = replace(now, vectors=vectors, extra=extra, codes=codes)
