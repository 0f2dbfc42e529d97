"""Class probabilities that list only the classes which have any, so that a million classes cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from nearkin.checks import check_whole
from nearkin.errors import DataError
from nearkin.metrics.labels import label_array


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


_BLOCK = 2**20
"""Neighbours that are added up together."""


@dataclass(frozen=True, eq=False)
class ClassProbabilities:
    """Probabilities of q queries over C classes, each query with its own short list of classes.

    Attributes:
        classes: the names of the classes (C,).
        offsets: where each query's entries begin, int64 (q + 1,).
        codes: class of each entry as an index into `classes`, int32 (e,), ascending within a query.
        values: probability of each entry, float32 (e,).
        best: the likeliest class of each query, as an index, int32 (q,).
        rest: what the classes that are not listed share evenly, float32 (q,); None: nothing.
    """

    classes: np.ndarray
    offsets: np.ndarray = field(repr=False)
    codes: np.ndarray = field(repr=False)
    values: np.ndarray = field(repr=False)
    best: np.ndarray = field(repr=False)
    rest: np.ndarray | None = field(default=None, repr=False)

    @classmethod
    def of_sums(cls, classes: np.ndarray, found: ClassSums) -> ClassProbabilities:
        """Sums of each query divided by their total; a query whose weights are all zero has equal shares."""
        counts = np.diff(found.offsets)
        if not len(counts):
            return cls(classes, found.offsets, found.codes, found.sums, found.best)
        totals = np.add.reduceat(found.sums, found.offsets[:-1])
        none = totals == 0
        sums = np.where(np.repeat(none, counts), 1, found.sums) if none.any() else found.sums
        shares = sums / np.repeat(np.where(none, counts, totals), counts)
        return cls(classes, found.offsets, found.codes, shares.astype(np.float32, copy=False), found.best)

    @classmethod
    def of_neighbours(cls, classes: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> ClassProbabilities:
        """From the classes (q, k) and the weights (q, k) of neighbours, nearest first."""
        rows = max(1, _BLOCK // max(1, codes.shape[1]))
        blocks = [slice(start, start + rows) for start in range(0, max(1, len(codes)), rows)]
        return cls.joined([cls.of_sums(classes, sum_by_class(codes[rows], weights[rows])) for rows in blocks])

    def __len__(self) -> int:
        return len(self.best)

    @cached_property
    def counts(self) -> np.ndarray:
        """How many classes each query lists, int64 (q,)."""
        return np.diff(self.offsets)

    @cached_property
    def rows(self) -> np.ndarray:
        """The query of each entry, int64 (e,)."""
        return np.repeat(np.arange(len(self)), self.counts)

    @property
    def unlisted(self) -> np.ndarray:
        """The probability of each class that a query does not list, float32 (q,)."""
        if self.rest is None:
            return np.zeros(len(self), np.float32)
        return (self.rest / np.maximum(len(self.classes) - self.counts, 1)).astype(np.float32)

    @property
    def labels(self) -> np.ndarray:
        """The likeliest class of each query by name (q,)."""
        return self.classes[self.best]

    @property
    def confidence(self) -> np.ndarray:
        """The probability of the likeliest class, float32 (q,)."""
        return self.of_codes(self.best)

    def of(self, labels: Any) -> np.ndarray:
        """The probability that each query gives to its own label among `labels` (q,), float32; 0 for a foreign one."""
        return self.of_codes(self.find(labels))

    def of_codes(self, codes: np.ndarray) -> np.ndarray:
        """The same by index into `classes`; -1 is a class that is not among them."""
        found = np.where(codes >= 0, self.unlisted, np.float32(0))
        matches = self.codes == np.repeat(codes, self.counts)
        found[self.rows[matches]] = self.values[matches]
        return found

    def find(self, labels: Any) -> np.ndarray:
        """Labels (q,) as indices into `classes`, int64 (q,), -1 where there is no such class."""
        given = label_array(labels, len(self), "query labels")
        book = {label: code for code, label in enumerate(self.classes.tolist())}
        try:
            return np.array([book.get(label, -1) for label in given.tolist()], np.int64)
        except TypeError as error:
            raise DataError(f"Labels must be strings, numbers or other hashable values ({error}).") from error

    def squares(self) -> np.ndarray:
        """The sum of squared probabilities over all classes, float64 (q,), as the Brier score needs it."""
        found = np.bincount(self.rows, weights=self.values.astype(np.float64) ** 2, minlength=len(self))
        if self.rest is not None:
            found += self.rest.astype(np.float64) ** 2 / np.maximum(len(self.classes) - self.counts, 1)
        return found

    def top(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The n likeliest listed classes of each query: indices (q, n), -1 where there are fewer, and values (q, n)."""
        check_whole(n, "n", 1)
        rows = self.rows
        order = np.lexsort((self.codes, -self.values, self.codes != np.repeat(self.best, self.counts), rows))
        rank = np.arange(len(order)) - np.repeat(self.offsets[:-1], self.counts)
        kept = rank < n
        codes = np.full((len(self), n), -1, np.int64)
        values = np.zeros((len(self), n), np.float32)
        codes[rows[kept], rank[kept]] = self.codes[order[kept]]
        values[rows[kept], rank[kept]] = self.values[order[kept]]
        return codes, values

    def shortened(self, n: int) -> ClassProbabilities:
        """The same with the n likeliest classes of each query listed; the others share what is left evenly."""
        if not len(self) or self.counts.max() <= n:
            return self
        codes, values = self.top(n)
        kept = codes >= 0
        order = np.lexsort((codes[kept], np.nonzero(kept)[0]))
        rest = np.maximum(0, 1 - values.sum(axis=1, dtype=np.float64)).astype(np.float32)
        offsets = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
        return ClassProbabilities(
            self.classes, offsets, codes[kept][order].astype(np.int32), values[kept][order], self.best, rest
        )

    @classmethod
    def joined(cls, parts: Sequence[ClassProbabilities]) -> ClassProbabilities:
        """One after the other, over the same classes."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(part.offsets[-1] for part in parts)])
        rests = [np.zeros(len(part), np.float32) if part.rest is None else part.rest for part in parts]
        return cls(
            parts[0].classes,
            np.concatenate([[0], *(part.offsets[1:] + start for part, start in zip(parts, starts, strict=False))]),
            np.concatenate([part.codes for part in parts]),
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.best for part in parts]),
            np.concatenate(rests) if any(part.rest is not None for part in parts) else None,
        )

    def dense(self) -> np.ndarray:
        """All probabilities, float32 (q, C): as large as it says."""
        table = np.repeat(self.unlisted[:, None], len(self.classes), axis=1)
        table[self.rows, self.codes] = self.values
        return table


@dataclass(frozen=True, eq=False)
class Prediction:
    """What an estimator says of queries.

    Attributes:
        probabilities: of all classes.
        distances: to the neighbours (or prototypes) it went by, float32 (q, k), nearest first.
        indices: which support points (or classes) these are, int64 (q, k).
    """

    probabilities: ClassProbabilities
    distances: np.ndarray = field(repr=False)
    indices: np.ndarray = field(repr=False)

    @classmethod
    def joined(cls, parts: Sequence[Prediction]) -> Prediction:
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            ClassProbabilities.joined([part.probabilities for part in parts]),
            np.concatenate([part.distances for part in parts]),
            np.concatenate([part.indices for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def labels(self) -> np.ndarray:
        """The predicted class of each query (q,)."""
        return self.probabilities.labels

    @property
    def confidence(self) -> np.ndarray:
        """The probability of that class, float32 (q,)."""
        return self.probabilities.confidence


def powered(sums: np.ndarray, offsets: np.ndarray, power: float | np.ndarray) -> np.ndarray:
    """Sums (e,) of queries that begin at `offsets` (q + 1,), raised to a power, or one each (q,), over their total."""
    if not len(sums):
        return sums
    counts, begins = np.diff(offsets), offsets[:-1]
    powers = power if np.ndim(power) == 0 else np.repeat(power, counts)
    logarithms = powers * np.log(np.maximum(sums, np.finfo(sums.dtype).tiny))
    weights = np.exp(logarithms - np.repeat(np.maximum.reduceat(logarithms, begins), counts))
    return weights / np.repeat(np.add.reduceat(weights, begins), counts)
