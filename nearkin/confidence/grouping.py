"""Sums over the neighbours of each class, for many queries at once, in memory that no number of classes enlarges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Sums of weights by query and class; only classes that occur among a query's neighbours are listed.

    Attributes:
        offsets: where each query's entries begin, int64 (q + 1,).
        codes: class of each entry, int32 (e,), ascending within a query.
        sums: as precise as the weights (e,).
        best: the class with the largest sum of each query, int32 (q,); of equal ones that with the nearest neighbour.
    """

    offsets: np.ndarray
    codes: np.ndarray
    sums: np.ndarray
    best: np.ndarray


def sum_by_class(codes: np.ndarray, weights: np.ndarray) -> ClassSums:
    """Sum weights (q, k) over equal codes (q, k), row by row; neighbours are in order, the nearest first."""
    queries, k = codes.shape
    if not queries:
        empty = np.empty(0, np.int32)
        return ClassSums(np.zeros(1, np.int64), empty, np.empty(0, np.float32), empty)
    # One number holds the class and, in its low bits, the place: sorting such numbers is sorting by class, then place.
    bits = int(k - 1).bit_length()
    small = int(codes.max()) < 2 ** (31 - bits)
    wide: np.ndarray = codes.astype(np.int32 if small else np.int64)
    keys = np.left_shift(wide, bits) | np.arange(k, dtype=np.int32)
    keys.sort(axis=1)
    places = keys & ((1 << bits) - 1)
    keys >>= bits
    first = np.empty((queries, k), bool)
    first[:, 0] = True
    np.not_equal(keys[:, 1:], keys[:, :-1], out=first[:, 1:])
    begins = np.flatnonzero(first)
    offsets = np.zeros(queries + 1, np.int64)
    np.cumsum(np.count_nonzero(first, axis=1), out=offsets[1:])
    ordered = np.take_along_axis(weights, places.astype(np.intp), axis=1)
    sums = np.add.reduceat(ordered.ravel(), begins)
    found = keys.ravel()[begins].astype(np.int32, copy=False)
    return ClassSums(offsets, found, sums, _best(offsets, found, sums, places.ravel()[begins]))


def _best(offsets: np.ndarray, codes: np.ndarray, sums: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The class of the largest sum of each query; among equal sums the one whose first neighbour is nearest."""
    counts = np.diff(offsets)
    largest = np.maximum.reduceat(sums, offsets[:-1])
    rival = sums == np.repeat(largest, counts)
    nearest = np.where(rival, places, np.iinfo(places.dtype).max)
    chosen = nearest == np.repeat(np.minimum.reduceat(nearest, offsets[:-1]), counts)
    return codes[chosen]
