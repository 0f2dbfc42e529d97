"""The trade-off of verification: which errors a threshold on the distance makes, for every threshold there is.

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
