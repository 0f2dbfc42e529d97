"""The trade-off of verification: the errors of every threshold, from distances held and sorted or counted in bins.

A pair is accepted as "the same" when its distance is at most the threshold t. With G genuine and I impostor pairs,
`FPR(t) = accepted impostors / I` and `FNR(t) = refused genuine pairs / G`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

_SLICE = 2**20  # points looked at together: temporary arrays stay small beside the points themselves


@dataclass(frozen=True, eq=False)
class TradeOff:
    """Operating points in order of their threshold; before the first lies the one that accepts nothing.

    Attributes:
        thresholds: distinct distances (u,), ascending.
        genuine: how many genuine pairs each accepts, int64 (u,); the last is all of them.
        impostors: how many impostor pairs each accepts, int64 (u,); the last is all of them.
    """

    thresholds: np.ndarray
    genuine: np.ndarray
    impostors: np.ndarray

    @classmethod
    def of_sorted(cls, genuine: np.ndarray, impostors: np.ndarray) -> TradeOff:
        """The exact trade-off of genuine (g,) and impostor (i,) distances, both ascending and not empty.

        Needs 24 bytes for each pair beside nothing else of that size.
        """
        thresholds = sort_distinct(np.concatenate([genuine, impostors]))
        return cls(
            thresholds,
            np.searchsorted(genuine, thresholds, side="right"),
            np.searchsorted(impostors, thresholds, side="right"),
        )

    def auc(self) -> float:
        """The probability that a genuine pair is nearer than an impostor pair, a tie counting half (Mann-Whitney)."""
        wins, genuine_before, impostors_before = 0.0, 0, 0
        for genuine, impostors in self._slices():
            lower = np.concatenate([[genuine_before], genuine[:-1]])
            at = np.diff(impostors, prepend=impostors_before)
            wins += float(np.dot(at.astype(np.float64), (lower + genuine).astype(np.float64)))
            genuine_before, impostors_before = int(genuine[-1]), int(impostors[-1])
        return wins / 2 / genuine_before / impostors_before

    def equal_error(self) -> tuple[float, float]:
        """The rate at which FPR and FNR are equal, and its threshold.

        Both are interpolated linearly between the two neighbouring operating points. Where a point has equal errors,
        every threshold up to the next point has them too: the middle is returned.
        """
        total, everyone = int(self.impostors[-1]), int(self.genuine[-1])

        def excess(point: int) -> int:
            """FNR - FPR times both totals, in whole numbers: it falls from point to point, and its sign is exact."""
            refused = everyone - (int(self.genuine[point]) if point >= 0 else 0)
            return refused * total - (int(self.impostors[point]) if point >= 0 else 0) * everyone

        after = bisect_left(range(len(self.thresholds)), True, key=lambda point: excess(point) <= 0)
        before = after - 1
        share = excess(before) / (excess(before) - excess(after))
        low = int(self.impostors[before]) if after else 0
        rate = (low + share * (int(self.impostors[after]) - low)) / total
        here = float(self.thresholds[after])
        if excess(after) == 0 and after + 1 < len(self.thresholds):
            return rate, (here + float(self.thresholds[after + 1])) / 2
        there = float(self.thresholds[before]) if after else here
        return rate, there + share * (here - there)

    def tpr_at(self, fpr: float) -> float:
        """The largest TPR = 1 - FNR among the operating points whose FPR is at most `fpr`; never interpolated."""
        total = int(self.impostors[-1])
        # The product may round to either side of a whole number; the quotient is what users compare with.
        allowed = math.floor(fpr * total)
        allowed += int((allowed + 1) / total <= fpr) - int(allowed / total > fpr)
        point = int(np.searchsorted(self.impostors, allowed, side="right")) - 1
        return int(self.genuine[point]) / int(self.genuine[-1]) if point >= 0 else 0.0

    def min_dcf(self, p_target: float, cost_miss: float, cost_false: float) -> float:
        """The least detection cost, over that of the better of accepting all and accepting nothing (NIST)."""
        miss, false = cost_miss * p_target, cost_false * (1 - p_target)
        least = miss  # accepting nothing
        everyone, total = int(self.genuine[-1]), int(self.impostors[-1])
        for genuine, impostors in self._slices():
            least = min(least, float((miss * (1 - genuine / everyone) + false * (impostors / total)).min()))
        return least / min(miss, false)

    def det(self, points: int = 1000) -> tuple[np.ndarray, np.ndarray]:
        """FPR and FNR (m,) of at most `points` operating points, FPR ascending.

        Where there are more, they are evenly spread on the normal-deviate scale on which such curves are drawn.
        """
        from scipy.special import ndtr, ndtri

        chosen = np.arange(len(self.thresholds))
        if len(chosen) >= points:
            picked = [chosen[-1:]]
            for counts in (self.genuine, self.impostors):
                total = int(counts[-1])
                ends = ndtri(0.5 / total), ndtri(1 - 0.5 / total)
                wanted = ndtr(np.linspace(*ends, points // 2 - 1)) * total
                picked.append(np.clip(np.searchsorted(counts, wanted, side="right") - 1, 0, None))
            chosen = np.unique(np.concatenate(picked))
        fpr = self.impostors[chosen] / int(self.impostors[-1])
        fnr = 1 - self.genuine[chosen] / int(self.genuine[-1])
        return np.concatenate([[0.0], fpr]), np.concatenate([[1.0], fnr])

    def _slices(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(self.thresholds), _SLICE):
            yield self.genuine[start : start + _SLICE], self.impostors[start : start + _SLICE]


def sort_distinct(values: np.ndarray) -> np.ndarray:
    """The distinct ones of values (n,), ascending; the values given are sorted in place.

    What `np.unique` gives, without its table of hashes, which for millions of values is slower than a sort.
    """
    values.sort()
    first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


_BINS = 2**20


class HeldDistances:
    """Every distance is kept: 4 bytes a pair while they come in, 24 when the trade-off is made.

    Args:
        genuine: how many genuine pairs will come.
        impostors: how many impostor pairs will come.
    """

    def __init__(self, genuine: int, impostors: int) -> None:
        self._groups = (np.empty(genuine, np.float32), np.empty(impostors, np.float32))
        self._filled = [0, 0]

    def add(self, genuine: np.ndarray, impostors: np.ndarray) -> None:
        """Take in distances (g,) and (i,)."""
        for place, values in enumerate((genuine, impostors)):
            start = self._filled[place]
            self._filled[place] = start + len(values)
            self._groups[place][start : self._filled[place]] = values

    def trade_off(self) -> TradeOff:
        """The exact trade-off."""
        for group in self._groups:
            group.sort()
        return TradeOff.of_sorted(*self._groups)

    def notes(self) -> list[str]:
        """What a reader must know: nothing."""
        return []


class BinnedDistances:
    """Only counts are kept, in bins on the grid of a power of two: 32 MB, however many pairs come.

    The grid is the finest on which all distances seen fit: when one lies outside, neighbouring bins are merged. So half
    of the 2^20 bins or more cover the range of the distances, whatever that is and in whatever order they come.
    """

    def __init__(self) -> None:
        self._counts = np.zeros((2, _BINS), np.int64)
        self._power = 0  # the bins are [key, key + 1) / 2^power
        self._first = 0  # key of the first bin
        self._range = (math.inf, -math.inf)

    def add(self, genuine: np.ndarray, impostors: np.ndarray) -> None:
        """Count distances (g,) and (i,)."""
        groups = [group for group in (genuine, impostors) if len(group)]
        if not groups:
            return
        self._cover(min(float(group.min()) for group in groups), max(float(group.max()) for group in groups))
        for counts, values in zip(self._counts, (genuine, impostors), strict=True):
            for start in range(0, len(values), _BINS):
                scaled = np.ldexp(values[start : start + _BINS].astype(np.float64), self._power)
                counts += np.bincount(np.floor(scaled).astype(np.int64) - self._first, minlength=_BINS)

    def trade_off(self) -> TradeOff:
        """The trade-off with a threshold at the upper end of every bin that is not empty."""
        kept = np.flatnonzero(self._counts.any(axis=0))
        thresholds = np.ldexp((kept + self._first + 1).astype(np.float64), -self._power)
        genuine, impostors = self._counts[:, kept].cumsum(axis=1)
        return TradeOff(thresholds, genuine, impostors)

    def error(self) -> float:
        """How far off a rate, AUC or normalised cost read from the bins can be.

        Only the order inside a bin that holds both kinds is unknown, and each value depends on one bin, or, as the AUC,
        on the average of all: so the largest share of its kind that such a bin holds is a bound.
        """
        mixed = self._counts[:, self._counts.all(axis=0)]
        return float((mixed / self._counts.sum(axis=1, keepdims=True)).max(initial=0.0))

    def notes(self) -> list[str]:
        """What a reader must know: how coarse the bins are, and what that can change."""
        return [
            f"The distances were counted in bins of width {2.0**-self._power:.1e}; "
            f"no value is off by more than {self.error():.1e}."
        ]

    def _cover(self, low: float, high: float) -> None:
        """Move and merge the bins so that they cover the distances from `low` to `high` as well."""
        old_low, old_high = self._range
        if old_low <= low and high <= old_high:
            return
        self._range = low, high = min(low, old_low), max(high, old_high)
        power = self._power if old_low <= old_high else 52 - math.frexp(max(-low, high))[1]
        while _key(high, power) - _key(low, power) >= _BINS:
            power -= 1
        first = _key(low, power)
        filled = np.flatnonzero(self._counts.any(axis=0))
        moved = (filled + self._first >> self._power - power) - first if len(filled) else filled
        for counts in self._counts:
            numbers = counts[filled]
            counts[:] = 0
            np.add.at(counts, moved, numbers)
        self._power, self._first = power, first


def _key(value: float, power: int) -> int:
    return math.floor(math.ldexp(value, power))
