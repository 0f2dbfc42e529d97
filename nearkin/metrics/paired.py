"""Is it luck? Paired tests of two models over the classes both have, and correlations of measures over runs.

Which measures go with which over runs: Pearson's and Spearman's correlations with their p-values. With few runs
Spearman's p is exact: the share of all orders of the runs that agree at least as much. The usual t distribution gives
p = 0 to any perfect agreement, of three runs as of thirty. Reference: Kim 2023, table 5.6.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from nearkin.errors import DataError, suggestion
from nearkin.metrics.checks import as_plain
from nearkin.metrics.intervals import class_bootstrap
from nearkin.metrics.labels import label_array, label_codes

_SIGNS_AT_ONCE = 2**22
_ROUNDING = 1e-12


@dataclass(frozen=True)
class PairedResult:
    """What the classes say about model a against model b.

    Attributes:
        difference: mean over the classes of a minus b; above zero a is ahead.
        low: lower end of its bootstrap interval over classes.
        high: upper end.
        p_value: how often signs at random give a mean at least as far from zero, two-sided.
        smallest_p: the smallest p these classes and permutations could have given; above 0.05 nothing can be shown.
        exact: whether all signs were tried rather than a sample of them.
        classes: how many classes both have.
        wins: classes where a is higher.
        losses: classes where b is higher.
        ties: classes where they are equal.
        differences: a minus b of every shared class, in the order of a.
    """

    difference: float
    low: float
    high: float
    p_value: float
    smallest_p: float
    exact: bool
    classes: int
    wins: int
    losses: int
    ties: int
    differences: dict[Any, float] = field(repr=False)


def paired_permutation(
    a: Any, b: Any, labels: Any | None = None, *, permutations: int = 10_000, level: float = 0.95, seed: int = 0
) -> PairedResult:
    """Compare two models by the differences of their class means, with a sign-flip permutation test.

    If the models were equally good, each class could as well have favoured the other one: `T = mean of d_c` is compared
    with the T of differences whose signs are drawn at random, `p = (1 + #{|T*| >= |T|}) / (1 + permutations)`. Where
    there are no more than `permutations` ways to choose the signs, all are tried and p is exact. Every class counts the
    same, however many queries it has. Classes are the units because queries of a class succeed and fail together.

    Example:
        >>> from nearkin.metrics import paired_permutation
        >>> a = {"owl": 0.6, "wren": 0.7, "crow": 0.5, "gull": 0.8, "kite": 0.4}
        >>> b = {"owl": 0.5, "wren": 0.5, "crow": 0.4, "gull": 0.6, "kite": 0.3}
        >>> paired_permutation(a, b).p_value  # 2 of 32 signs: the least five classes can give
        0.0625

    Args:
        a: class to value, such as `result.per_class("MAP@R")`; or with labels, a value for each query (n,).
        b: the same of the other model. Classes that only one has are left out.
        labels: the queries' labels (n,), when a and b are values of queries.
        permutations: how many signs to draw.
        level: level of the interval.
        seed: the same seed gives the same result.

    Raises:
        DataError: if fewer than two classes are shared, or a value is not finite.
    """
    if permutations < 1:
        raise DataError(f"A permutation test needs at least one permutation, not {permutations}.")
    if labels is not None:
        a, b = _class_means(a, b, labels)
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        raise DataError("Give a value for each class (a mapping) of both models, or values of queries with labels=.")
    differences = {name: float(a[name]) - float(b[name]) for name in a if name in b}
    if len(differences) < 2:
        raise DataError(
            f"A paired test needs at least two classes measured on both models; these share {len(differences)}."
        )
    d = np.array(list(differences.values()))
    if not np.isfinite(d).all():
        raise DataError("A paired test needs a finite value of every class.")
    p_value, smallest, exact = _sign_test(d, permutations, seed)
    low, high = class_bootstrap(d, np.arange(len(d)), level=level, seed=seed)
    wins, losses = int((d > 0).sum()), int((d < 0).sum())
    return PairedResult(
        difference=float(d.mean()),
        low=low,
        high=high,
        p_value=p_value,
        smallest_p=smallest,
        exact=exact,
        classes=len(d),
        wins=wins,
        losses=losses,
        ties=len(d) - wins - losses,
        differences=differences,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of k p-values, in their order: each is then valid although k were looked at.

    The i-th smallest is multiplied by `k + 1 - i`; none falls below a smaller one, none exceeds 1 (Holm 1979).
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise DataError("Holm's correction needs a flat list of p-values between 0 and 1.")
    order = np.argsort(p, kind="stable")
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return [float(value) for value in corrected]


def _class_means(a: Any, b: Any, labels: Any) -> tuple[dict[Hashable, float], dict[Hashable, float]]:
    """Class to mean for both, from values of the same queries (n,)."""
    first, second = (np.asarray(values, dtype=np.float64) for values in (a, b))
    if first.ndim != 1 or first.shape != second.shape:
        raise DataError(
            f"With labels, both models need a value for each of the same queries, not {first.shape} and {second.shape}."
        )
    names = label_array(labels, len(first))
    (codes,) = label_codes(names)
    _, rows, sizes = np.unique(codes, return_index=True, return_counts=True)
    means = ((np.bincount(codes, weights=values) / sizes).tolist() for values in (first, second))
    a_means, b_means = (dict(zip(names[rows].tolist(), values, strict=True)) for values in means)
    return a_means, b_means


def _sign_test(d: np.ndarray, permutations: int, seed: int) -> tuple[float, float, bool]:
    """p, the smallest p there could have been, and whether all signs were tried."""
    d = d[d != 0]  # a tie adds nothing with either sign
    if len(d) == 0:
        return 1.0, 1.0, True
    d = d / np.abs(d).max()
    # Sums in another order differ by rounding, and equal sums must count as equal.
    limit = abs(d.sum()) - _ROUNDING * np.abs(d).sum()
    if len(d) < 63 and 2 ** len(d) <= permutations:
        ways = 2 ** len(d)
        return _count_exact(d, limit) / ways, 2 / ways, True
    return (1 + _count_drawn(d, limit, permutations, seed)) / (1 + permutations), 1 / (1 + permutations), False


def _count_exact(d: np.ndarray, limit: float) -> int:
    """How many of all signs give a sum of at least the limit, either way; at most 2^16 of them at a time."""
    some, others = _signed_sums(d[:16]), _signed_sums(d[16:])
    return sum(int((np.abs(some + other) >= limit).sum()) for other in others)


def _signed_sums(d: np.ndarray) -> np.ndarray:
    """The sums (2^n,) of d (n,) with all signs."""
    sums = np.zeros(1)
    for difference in d:
        sums = np.concatenate([sums + difference, sums - difference])
    return sums


def _count_drawn(d: np.ndarray, limit: float, permutations: int, seed: int) -> int:
    """The same among signs drawn at random, a block of them at a time; memory is 40 MB, or a few vectors like d."""
    rng = np.random.default_rng(seed)
    block = max(1, _SIGNS_AT_ONCE // len(d))
    count = 0
    for start in range(0, permutations, block):
        size = min(block, permutations - start)
        # Whole words of random bits for each row, so that the size of a block does not change the draws.
        words = rng.integers(0, 2**64, size=(size, -(-len(d) // 64)), dtype=np.uint64)
        bits = np.unpackbits(words.view(np.uint8), axis=1, count=len(d))
        sums = 2 * (bits.astype(np.float64) @ d) - d.sum()
        count += int((np.abs(sums) >= limit).sum())
    return count


_FEWEST = 3
_EXACT = 8
"""Runs up to which all orders are tried."""
_SAME = 1e-9
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


def rank_correlations(
    rows: Sequence[Mapping[str, float]], of: Sequence[str]
) -> dict[tuple[str, str], MeasureCorrelation]:
    """Correlations of every two of some measures over runs, by the pair of their names in the order given.

    p-values are corrected for all pairs of the table, those of ranks and of values each for themselves.

    Reference: Kim 2023, article IV, tables S2 to S4, which have Spearman's.

    Args:
        rows: a mapping of names to values for each run, at least three.
        of: two measures or more.

    Raises:
        DataError: if there are fewer than three runs or two measures, or a run lacks one.
    """
    names = list(dict.fromkeys(of))
    if len(rows) < _FEWEST or len(names) < 2:
        raise DataError(
            f"A table of correlations needs at least {_FEWEST} runs and two measures, but there are {len(rows)} and "
            f"{len(names)}: add more."
        )
    columns = {name: _column(rows, name) for name in names}
    pairs = list(itertools.combinations(names, 2))
    found = {pair: _correlate(pair[0], columns[pair[0]], pair[1], columns[pair[1]]) for pair in pairs}
    for kind in ("pearson", "spearman"):
        known = [pair for pair in pairs if not math.isnan(getattr(found[pair], f"{kind}_p"))]
        for pair, p in zip(known, holm([getattr(found[pair], f"{kind}_p") for pair in known]), strict=True):
            corrected: dict[str, Any] = {f"{kind}_holm": p}
            found[pair] = replace(found[pair], **corrected)
    return found


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
        if np.ptp(column) <= _SAME * np.abs(column).max():
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
    return float((np.abs(products) >= np.abs(first @ second) - _SAME * len(y) ** 2).mean())


@lru_cache(maxsize=8)
def _orders(count: int) -> np.ndarray:
    """All orders (count!, count) of so many things."""
    return np.array(list(itertools.permutations(range(count))), dtype=np.int64)
