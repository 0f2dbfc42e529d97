"""Items of a gallery with their neighbours in the rest of it, as if each were a query that was not enrolled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearkin.gallery.store import Sample, Store
from nearkin.progress import Progress

MOST_NEIGHBOURS = 200
"""Neighbours that speak for or against a class."""

CHUNK = 512
"""Queries that are searched for together."""


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Items left out of the gallery one at a time.

    Attributes:
        own: class of each item, int32 (n,).
        mates: whether the gallery holds another item of that class (n,).
        distances: to the nearest labelled others, float32 (n, k), nearest first; infinite beyond the last.
        codes: classes of these, int32 (n, k), negative beyond the last.
        sizes: how many items each class has, by code (C,), none left out.
    """

    own: np.ndarray
    mates: np.ndarray
    distances: np.ndarray
    codes: np.ndarray
    sizes: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """What each neighbour counts (n, k), as `shares_of` says; a class without the item left out is one smaller."""
        return shares_of(self.sizes, self.codes, (self.codes == self.own[:, None]).astype(np.int64))

    def with_mates(self) -> LeftOut:
        """Those whose class is still there when they are left out."""
        return self._rows(self.mates)

    def filled(self) -> LeftOut:
        """Rows without gaps: a search that is not exact, or one while items are removed, may find fewer for some."""
        counts = np.count_nonzero(present(self.distances, self.codes), axis=1)
        width = int(np.median(counts)) if len(counts) else 0
        kept = self._rows(counts >= max(width, 1))
        return LeftOut(kept.own, kept.mates, kept.distances[:, :width], kept.codes[:, :width], kept.sizes)

    def _rows(self, chosen: np.ndarray) -> LeftOut:
        return LeftOut(self.own[chosen], self.mates[chosen], self.distances[chosen], self.codes[chosen], self.sizes)


def leave_out(store: Store, sample: Sample, sizes: np.ndarray, k: int, progress: bool = False) -> LeftOut:
    """Search the whole gallery for the k nearest labelled items of each item of a sample, itself left out.

    Args:
        store: the gallery.
        sample: items of it, all with a label.
        sizes: how many items each class has, by code.
        k: how many neighbours.
        progress: whether to show a bar.
    """
    n = len(sample.codes)
    distances = np.full((n, k), np.inf, np.float32)
    codes = np.full((n, k), -1, np.int32)
    with Progress("Learning from the gallery", n, progress) as bar:
        for start in range(0, n, CHUNK):
            rows = slice(start, start + CHUNK)
            found = store.search(sample.vectors[rows], k, labelled=True, exclude=sample.keys[rows])
            distances[rows], codes[rows] = found.distances, found.codes
            bar.advance(len(found.codes))
    return LeftOut(sample.codes, sizes[sample.codes] > 1, distances, codes, sizes)


def present(distances: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Which neighbours (q, k) are labelled items at all."""
    return (codes >= 0) & np.isfinite(distances)


def shares_of(sizes: np.ndarray, codes: np.ndarray, less: np.ndarray | int = 0) -> np.ndarray:
    """What each neighbour (q, k) counts: one over the size of its class, so that a class of few items is not outvoted.

    Args:
        sizes: of the classes, by code (C,).
        codes: classes of the neighbours (q, k), negative for none.
        less: how many items fewer the class of each has (q, k).
    """
    # A class that came since the sizes were counted is small.
    padded = np.pad(sizes, (0, max(0, int(codes.max(initial=-1)) + 1 - len(sizes))), constant_values=1)
    counts = (padded if len(padded) else np.ones(1, np.int64))[np.maximum(codes, 0)] - less
    return 1.0 / np.maximum(counts, 1)


def class_sizes(store: Store, codes: np.ndarray) -> np.ndarray:
    """How many items each class has, int64 (C,), by code; at least as long as the codes (n,) need."""
    names, sizes = store.classes(), store.class_sizes()
    counts = np.array([sizes.get(name, 0) for name in names], np.int64)
    # An item may have come between two readings of the store; it is as if it were alone in its class.
    return np.pad(counts, (0, max(0, int(codes.max(initial=-1)) + 1 - len(counts))))
