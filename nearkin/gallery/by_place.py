"""Neighbours by the places of points, for questions to which a learned similarity has no answer.

A similarity says how likely two items are of one class. It is no distance: it may be negative, and a copy of an item
need not be nearest to it. What is almost the same is told by the base space, where equal points are at distance zero.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from nearkin.gallery.index import VectorIndex
from nearkin.gallery.kept_similarity import KeptSimilarity
from nearkin.gallery.questions import MOST
from nearkin.gallery.store import ABSENT, Found, Store


class Searched(Protocol):
    """What gives the nearest items of vectors."""

    def search(self, queries: np.ndarray, k: int, *, exclude: np.ndarray | None = None) -> Found:
        """The k nearest items of queries float32 (q, d), as `Store.search` gives them."""
        ...


def by_place(store: Store) -> Searched:
    """The store itself where it compares by distances; else its items of this moment, compared in the base space."""
    space = store.space
    return _ByPlace(store, space) if isinstance(space, KeptSimilarity) else store


class _ByPlace:
    """A copy of all vectors of a store, searched exactly in the base space."""

    def __init__(self, store: Store, space: KeptSimilarity) -> None:
        everything = store.sample(MOST, 0)
        order = np.argsort(everything.keys, kind="stable")
        self._keys = everything.keys[order]
        self._codes = everything.codes[order]
        self._index = VectorIndex(space.base, everything.vectors.shape[1])
        self._index.append(everything.vectors[order], self._codes)

    def search(self, queries: np.ndarray, k: int, *, exclude: np.ndarray | None = None) -> Found:
        """The k nearest items of queries float32 (q, d), as `Store.search` gives them."""
        hidden = None
        if exclude is not None:
            place = np.minimum(np.searchsorted(self._keys, exclude), max(0, len(self._keys) - 1))
            hidden = np.where(self._keys[place] == exclude, place, -1) if len(self._keys) else None
        distances, slots = self._index.search(queries, min(k, max(1, len(self._keys))), exclude=hidden)
        there = slots >= 0
        keys = np.where(there, self._keys[np.where(there, slots, 0)], -1)
        codes = np.where(there, self._codes[np.where(there, slots, 0)], ABSENT).astype(np.int32)
        return Found(distances, keys, codes)
