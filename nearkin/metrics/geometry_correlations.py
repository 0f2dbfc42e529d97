"""Which measures go with which over runs: Pearson's and Spearman's correlations with their p-values.

With few runs Spearman's p is exact: the share of all orders of the runs that agree at least as much. The usual t
distribution gives p = 0 to any perfect agreement, of three runs as of thirty. Reference: Kim 2023, table 5.6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import permutations
from typing import Any

import numpy as np

from nearkin.errors import DataError, suggestion
from nearkin.metrics.checks import as_plain
from nearkin.metrics.paired import holm

_FEWEST = 3
_EXACT = 8
"""Runs up to which all orders are tried."""
_TIE = 1e-9
"""Of correlations, and of a column that varies: less is rounding."""


@dataclass(frozen=True)
class MeasureCorrelation:
    """How one measure goes with another over runs; all NaN where one of them is constant.

    Attributes:
        measure: its name.
        runs: how many have finite values of both.
        constant: the name of what does not vary over these; empty if both do.
        pearson: correlation of the values.
        pearson_p: its two-sided p-value.
        pearson_holm: the same, corrected for all p-values of the table.
        spearman: correlation of the ranks.
        spearman_p: its two-sided p-value, exact for up to 8 runs.
        spearman_holm: the same, corrected for all p-values of the table.
    """

    measure: str
    runs: int
    constant: str = ""
    pearson: float = math.nan
    pearson_p: float = math.nan
    pearson_holm: float = math.nan
    spearman: float = math.nan
    spearman_p: float = math.nan
    spearman_holm: float = math.nan


@dataclass(frozen=True)
class CorrelationTable:
    """Measures against one other, over runs.

    Attributes:
        against: what the measures are correlated with.
        measures: name to correlation.
    """

    against: str
    measures: dict[str, MeasureCorrelation]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it; NaN is None."""
        plain = as_plain(asdict(self))
        for found in plain["measures"].values():
            del found["measure"]
        return plain


def geometry_correlations(rows: Sequence[Mapping[str, float]], of: Sequence[str], against: str) -> CorrelationTable:
    """Correlate measures with another over runs.

    Args:
        rows: a mapping of names to values for each run, at least three.
        of: the measures, such as `GEOMETRY`.
        against: what they are correlated with, such as "MAP@R" or "MC, input l2".

    Raises:
        DataError: if there are fewer than three runs, or one lacks a measure.
    """
    if len(rows) < _FEWEST:
        raise DataError(f"A correlation needs at least {_FEWEST} runs, but there are {len(rows)}: add more.")
    theirs = _column(rows, against)
    found = {name: _correlate(name, _column(rows, name), against, theirs) for name in of}
    kinds = ("pearson", "spearman")
    p = {(name, kind): getattr(one, f"{kind}_p") for name, one in found.items() for kind in kinds}
    known = {key: value for key, value in p.items() if not math.isnan(value)}
    held = dict(zip(known, holm(list(known.values())), strict=True))
    corrected = {
        name: replace(
            one,
            pearson_holm=held.get((name, "pearson"), math.nan),
            spearman_holm=held.get((name, "spearman"), math.nan),
        )
        for name, one in found.items()
    }
    return CorrelationTable(against, corrected)


def _column(rows: Sequence[Mapping[str, float]], name: str) -> np.ndarray:
    for place, row in enumerate(rows):
        if name not in row:
            raise DataError(f"Run {place + 1} of {len(rows)} has no value of '{name}'.{suggestion(name, row)}")
    return np.array([float(row[name]) for row in rows])


def _correlate(name: str, ours: np.ndarray, against: str, theirs: np.ndarray) -> MeasureCorrelation:
    """Correlations of two columns (n,), whose values that are not finite are left out."""
    from scipy.stats import pearsonr, spearmanr

    both = np.isfinite(ours) & np.isfinite(theirs)
    x, y, runs = ours[both], theirs[both], int(both.sum())
    if runs < _FEWEST:
        return MeasureCorrelation(name, runs)
    for column, what in ((x, name), (y, against)):
        if np.ptp(column) <= _TIE * np.abs(column).max():
            return MeasureCorrelation(name, runs, constant=what)
    pearson, spearman = pearsonr(x, y), spearmanr(x, y)
    p = _exact_p(x, y) if runs <= _EXACT else float(spearman.pvalue)
    return MeasureCorrelation(
        name,
        runs,
        pearson=float(pearson.statistic),
        pearson_p=float(pearson.pvalue),
        spearman=float(spearman.statistic),
        spearman_p=p,
    )


def _exact_p(x: np.ndarray, y: np.ndarray) -> float:
    """The share of all orders of y (n,) that agree with x (n,), or oppose it, at least as much as y does."""
    from scipy.stats import rankdata

    first, second = (rankdata(values) - (len(values) + 1) / 2 for values in (x, y))
    products = second[_orders(len(y))] @ first
    return float((np.abs(products) >= np.abs(first @ second) - _TIE * len(y) ** 2).mean())


@lru_cache(maxsize=8)
def _orders(count: int) -> np.ndarray:
    """All orders (count!, count) of so many things."""
    return np.array(list(permutations(range(count))), dtype=np.int64)
