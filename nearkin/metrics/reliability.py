"""Reliability: in bins of like confidence, how often the answers are right beside how sure they were.

A bin's gap is `|accuracy - mean confidence|`; ECE is the sum over bins of share of the queries times gap, MCE the
largest gap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """What a reliability diagram draws. Bin j holds confidences in [edges[j], edges[j + 1]), the last one closed.

    Attributes:
        edges: of the bins (m + 1,), ascending.
        counts: queries in each bin, int64 (m,).
        confidence: their mean confidence (m,), NaN where a bin is empty.
        accuracy: the share of them that is right (m,), NaN where a bin is empty.
    """

    edges: np.ndarray = field(repr=False)
    counts: np.ndarray
    confidence: np.ndarray = field(repr=False)
    accuracy: np.ndarray = field(repr=False)

    def expected_error(self) -> float:
        """The mean gap over the queries."""
        filled = self.counts > 0
        gaps = np.abs(self.accuracy - self.confidence)[filled]
        return float(np.dot(self.counts[filled], gaps) / self.counts.sum())

    def largest_error(self) -> float:
        """The largest gap of a bin that is not empty."""
        return float(np.abs(self.accuracy - self.confidence)[self.counts > 0].max())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; NaN is None."""
        return {
            "edges": self.edges.tolist(),
            "counts": self.counts.tolist(),
            "confidence": [None if math.isnan(value) else value for value in self.confidence.tolist()],
            "accuracy": [None if math.isnan(value) else value for value in self.accuracy.tolist()],
        }


def bin_edges(bins: int, kind: np.dtype[Any]) -> np.ndarray:
    """The edges (bins + 1,), rounded as the confidences are: a share of 7/10 in float32 is not below the edge 0.7."""
    return (np.arange(bins + 1) / bins).astype(kind).astype(np.float64)


def equal_width(levels: np.ndarray, counts: np.ndarray, hits: np.ndarray, edges: np.ndarray) -> ReliabilityCurve:
    """Bins between given edges (m + 1,).

    Args:
        levels: distinct confidences (u,), ascending.
        counts: how many queries have each (u,).
        hits: how many of these are right (u,).
        edges: ascending, the first at most the lowest level and the last at least the highest.
    """
    bins = len(edges) - 1
    place = np.searchsorted(edges[1:-1], levels, side="right")
    held = np.bincount(place, weights=counts, minlength=bins)
    means = np.full((2, bins), np.nan)
    for mean, sums in zip(means, (counts * levels, hits), strict=True):
        np.divide(np.bincount(place, weights=sums, minlength=bins), held, out=mean, where=held > 0)
    return ReliabilityCurve(edges, held.astype(np.int64), *means)


def equal_count(levels: np.ndarray, counts: np.ndarray, hits: np.ndarray, bins: int) -> ReliabilityCurve:
    """At most `bins` bins of as equal counts as the levels allow, none of them empty.

    The sorted queries are cut into `bins` equal parts. Queries of equal confidence stay together, in the part where the
    middle of their run lies: a bin then depends on confidences alone, not on the order in which queries came. Without
    equal confidences the counts differ by one at most; with many, bins are merged.

    Args:
        levels: distinct confidences (u,), ascending.
        counts: how many queries have each, int64 (u,), none of them 0.
        hits: how many of these are right (u,).
        bins: how many to aim at.
    """
    last = np.cumsum(counts)
    place = (2 * last - counts) * bins // (2 * last[-1])
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    held = np.add.reduceat(counts, starts)
    return ReliabilityCurve(
        edges=np.concatenate([levels[starts], levels[-1:]]),
        counts=held,
        confidence=np.add.reduceat(counts * levels, starts) / held,
        accuracy=np.add.reduceat(hits, starts) / held,
    )
