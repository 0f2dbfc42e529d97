"""Vectors in memory that grow at the end and are searched exactly."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.gallery.index.asked import as_points, checked
from nearkin.gallery.index.exact import search_exactly
from nearkin.gallery.index.forms import form_of, lengths_of
from nearkin.gallery.index.packed import held, room, stretch
from nearkin.gallery.index.sides import EnrolledSides, search_sides
from nearkin.gallery.index.snapshot import Snapshot
from nearkin.gallery.rounding import unpacked
from nearkin.gallery.store import ABSENT, UNLABELLED
from nearkin.search.scorers import Factorised
from nearkin.spaces import Space

_LEAST = 1024  # slots


class VectorIndex:
    """Vectors in slots 0, 1, 2, ..., each with the code of its class.

    Vectors never change; a slot whose item was removed keeps its vector and gets the code `ABSENT`. One thread may
    append and set codes while many search: a search sees the slots and codes of the moment it began.

    Args:
        space: how vectors are compared.
        dimension: size of a vector.
        dtype: "int8" holds them as int8 rows, a quarter of the memory; any other as float32.
    """

    def __init__(self, space: Space, dimension: int, dtype: str = "float32") -> None:
        self.space = space
        self.dimension = dimension
        self._form = form_of(space)
        self._sides = EnrolledSides(space) if isinstance(space, Factorised) else None
        self._writing = threading.Lock()
        self._dtype = dtype
        self._snapshot = Snapshot(room(0, dimension, dtype), np.empty(0, np.float32), np.empty(0, np.int32))

    @property
    def count(self) -> int:
        """How many slots there are, those of removed items included."""
        return self._snapshot.count

    @property
    def codes(self) -> np.ndarray:
        """The codes int32 (count,) of this moment, not to be written to."""
        now = self._snapshot
        view = now.codes[: now.count]
        view.flags.writeable = False
        return view

    @property
    def snapshot(self) -> Snapshot:
        """All of this moment; it stays as it is while others write."""
        return self._snapshot

    def vectors(self, slots: np.ndarray) -> np.ndarray:
        """A copy of the vectors float32 (n, d) in slots (n,)."""
        now = self._snapshot
        return stretch(now.vectors, 0, now.count)[np.asarray(slots, np.int64)]

    def reserve(self, n: int) -> None:
        """Make room for n more slots, so that appending them copies nothing; room that is not used costs no memory."""
        with self._writing:
            self._grow(self._snapshot.count + n)

    def append(self, vectors: np.ndarray, codes: np.ndarray) -> None:
        """Add slots with vectors float32 (n, d), points of the space, and codes int32 (n,).

        An index of int8 takes them packed (n, 4 + d), as `rounding.packed` makes them.
        """
        if self._dtype == "int8":
            lengths = lengths_of(unpacked(vectors))
        else:
            vectors, lengths = as_points(vectors, self.dimension)
        codes = np.asarray(codes, np.int32)
        if codes.shape != (len(vectors),):
            raise DataError(f"There must be one code for each of the {len(vectors)} vectors, not {codes.shape}.")
        with self._writing:
            self._grow(self._snapshot.count + len(vectors))
            now = self._snapshot
            end = now.count + len(vectors)
            held(now.vectors)[now.count : end] = vectors
            now.codes[now.count : end] = codes
            tame = now.tame
            if self._form is not None:
                now.extra[now.count : end] = self._form.extra(lengths)
                tame = tame and bool(self._form.fits(lengths).all())
            self._snapshot = replace(
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
            now = self._snapshot
            changed = np.empty_like(now.codes)  # searches under way keep the old ones
            used = changed[: now.count]
            used[:] = now.codes[: now.count]
            used[np.asarray(slots, np.int64)] = codes
            absent, unlabelled = int((used == ABSENT).sum()), int((used == UNLABELLED).sum())
            self._snapshot = replace(now, codes=changed, absent=absent, unlabelled=unlabelled)

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
        now = self._snapshot
        asked = checked(now, queries, k, allowed, labelled, exclude)
        if self._sides is not None:
            return search_sides(self.space, self._sides, now, asked)
        return search_exactly(self.space, self._form, now, asked)

    def _grow(self, n: int) -> None:
        """Room for n slots in all; arrays that readers hold stay as they are."""
        now = self._snapshot
        if n <= len(now.vectors):
            return
        capacity = max(_LEAST, n + n // 4, 2 * len(now.vectors))  # memory that was never written to is not resident
        vectors = room(capacity, self.dimension, self._dtype)
        extra, codes = np.empty(capacity, np.float32), np.empty(capacity, np.int32)
        for new, old in ((held(vectors), held(now.vectors)), (extra, now.extra), (codes, now.codes)):
            new[: now.count] = old[: now.count]
        self._snapshot = replace(now, vectors=vectors, extra=extra, codes=codes)
