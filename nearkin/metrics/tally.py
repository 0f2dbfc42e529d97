"""Distances of genuine and impostor pairs as they come in: held and sorted, or counted in bins."""

from __future__ import annotations

import math

import numpy as np

from nearkin.metrics.trade_off import TradeOff

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
