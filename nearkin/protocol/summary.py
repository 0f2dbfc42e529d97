"""From the ledger to the lines of the table: means, intervals over classes, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearkin.metrics import PairedResult, class_bootstrap, holm, paired_permutation
from nearkin.metrics.retrieval import OVER_CLASSES, over_classes
from nearkin.protocol.book import Contents
from nearkin.protocol.candidates import UNTRAINED, UNTRAINED_CELL, Cell
from nearkin.protocol.ledger import CLUSTERED, COUNTED, KEPT, PRIMARY, Ledger
from nearkin.report.comparison import MODEL_KINDS, SEPARATE, BenchmarkRow, PairedDifference

Values = dict[str, tuple[float, float, float]]


@dataclass(frozen=True)
class Summary:
    """A book's results so far.

    Args:
        rows: one for each recipe, in the order in which they came.
        untrained: metric to (mean, low, high) of untrained features; empty where there are none.
        missing: cells that are still to be done.
        cells: all cells to be measured.
        smallest_p: the least p that the comparisons could have given, corrected; NaN without comparisons, or where
            recipes agree in every class.
        tested: how many comparisons the p-values of one kind are corrected for.
        further: whether any cell has Recall@k, kNN-Acc and NMI.
    """

    rows: list[BenchmarkRow]
    untrained: Values
    missing: int
    cells: int
    smallest_p: float
    tested: int
    further: bool = False


class Summariser:
    """Makes summaries of a book that grows; only what new cells change is computed again.

    Args:
        codes: the class of each query, (n,).
        ledger: what is measured.
    """

    def __init__(self, codes: np.ndarray, ledger: Ledger) -> None:
        self._ledger = ledger
        self._codes = codes
        self._sizes = np.bincount(codes)
        self._intervals: dict[tuple[Cell, ...], dict[str, tuple[float, float]]] = {}
        self._paired: dict[tuple[tuple[Cell, ...], tuple[Cell, ...]], PairedResult] = {}

    def summarise(self, contents: Contents) -> Summary:
        """The lines of the table as they stand."""
        planned = contents.planned()
        done = [cell for cell in planned if cell in self._ledger]
        untrained = [UNTRAINED_CELL] if UNTRAINED_CELL in self._ledger else []
        cells = {name: [cell for cell in done if cell.recipe == name] for name in contents.recipes}
        tests = {kind: self._tests(contents, cells, untrained, kind) for kind in MODEL_KINDS}
        differences = {kind: _corrected(results) for kind, results in tests.items()}
        rows = [
            self._row(name, cells[name], contents, {kind: differences[kind].get(name) for kind in MODEL_KINDS})
            for name in contents.recipes
        ]
        least = [_smallest(list(results.values())) for results in tests.values()]
        return Summary(
            rows,
            self._values(untrained),
            missing=len(planned) - len(done),
            cells=len(planned),
            smallest_p=max(filter(math.isfinite, least), default=math.nan),
            tested=max(map(len, tests.values())),
            further=any(map(self._ledger.has_further, [*done, *untrained])),
        )

    def _row(
        self, name: str, cells: Sequence[Cell], contents: Contents, found: Mapping[str, PairedDifference | None]
    ) -> BenchmarkRow:
        of_kind = {kind: [cell for cell in cells if cell.kind == kind] for kind in MODEL_KINDS}
        models = [self._ledger.rows[cell] for cell in of_kind[SEPARATE]]
        return BenchmarkRow(
            name,
            values={kind: self._values(some) for kind, some in of_kind.items() if some},
            spread={kind: self._spread(some) for kind, some in of_kind.items()},
            validation=_mean([row["validation_MAP@R"] for row in models]),
            against=contents.comparisons.get(name, ""),
            differences={kind: difference for kind, difference in found.items() if difference is not None},
            finished=len(models),
            planned=contents.recipes[name]["seeds"] * contents.models,
            seconds=math.fsum(row["seconds"] for row in models),
            ranges={
                kind: (min(values), max(values))
                for kind, some in of_kind.items()
                if len(some) > 1 and self._further(some)
                if (values := [self._ledger.rows[cell][CLUSTERED] for cell in some])
            },
        )

    def _values(self, cells: Sequence[Cell]) -> Values:
        """Metric to (mean, low, high) of all queries, each averaged over the cells; NMI, of no query, has its mean."""
        if not cells:
            return {}
        key, further = tuple(cells), self._further(cells)
        metrics = (*KEPT, *COUNTED) if further else KEPT
        if key not in self._intervals:
            queries = [self._ledger.per_query(cell) for cell in cells]
            averaged = {metric: np.mean([one[metric] for one in queries], axis=0) for metric in metrics}
            means = {over_classes(name): averaged[name] for name in KEPT}
            by_class = {name: np.bincount(self._codes, values) / self._sizes for name, values in means.items()}
            self._intervals[key] = class_bootstrap(averaged, self._codes)
            self._intervals[key] |= class_bootstrap(by_class, np.arange(len(self._sizes)))
        intervals = self._intervals[key] | ({CLUSTERED: (math.nan, math.nan)} if further else {})
        return {
            metric: (_mean([_value(self._ledger.rows[cell], metric) for cell in cells]), *interval)
            for metric, interval in intervals.items()
        }

    def _further(self, cells: Sequence[Cell]) -> bool:
        """Whether all cells have Recall@k, kNN-Acc and NMI: a mean over some would be of other models than MAP@R's."""
        return all(self._ledger.has_further(cell) for cell in cells)

    def _spread(self, cells: Sequence[Cell]) -> float:
        """Standard deviation of MAP@R over the seeds, each the mean of its cells."""
        by_seed: dict[int | None, list[float]] = {}
        for cell in cells:
            by_seed.setdefault(cell.seed, []).append(self._ledger.rows[cell][PRIMARY])
        means = [_mean(values) for values in by_seed.values()]
        return float(np.std(means, ddof=1)) if len(means) > 1 else math.nan

    def _tests(
        self, contents: Contents, cells: Mapping[str, Sequence[Cell]], untrained: Sequence[Cell], kind: str
    ) -> dict[str, PairedResult]:
        """Candidate to its paired test, over the folds and seeds that both have."""
        results = {}
        for name, base in contents.comparisons.items():
            ours = {(cell.fold, cell.seed): cell for cell in cells[name] if cell.kind == kind}
            if base == UNTRAINED:
                theirs = dict.fromkeys(ours, UNTRAINED_CELL) if untrained else {}
            else:
                theirs = {(cell.fold, cell.seed): cell for cell in cells[base] if cell.kind == kind}
            shared = [place for place in ours if place in theirs]
            if shared and len(contents.classes) > 1:
                pair = tuple(ours[place] for place in shared), tuple(theirs[place] for place in shared)
                if pair not in self._paired:
                    self._paired[pair] = paired_permutation(*map(self._per_class, pair))
                results[name] = self._paired[pair]
        return results

    def _per_class(self, cells: Sequence[Cell]) -> dict[int, float]:
        """Class to its MAP@R, averaged over cells."""
        values = np.mean([self._ledger.rows[cell]["per_class"][PRIMARY] for cell in cells], axis=0)
        return dict(enumerate(values.tolist()))


def _corrected(results: Mapping[str, PairedResult]) -> dict[str, PairedDifference]:
    """The differences, their p-values corrected for how many there are."""
    corrected = holm([result.p_value for result in results.values()])
    return {
        name: PairedDifference(result.difference, result.low, result.high, p_value)
        for (name, result), p_value in zip(results.items(), corrected, strict=True)
    }


def _smallest(results: Sequence[PairedResult]) -> float:
    # Where recipes agree in every class, it is not for want of classes that nothing is shown.
    least = min((result.smallest_p for result in results if result.ties < result.classes), default=math.nan)
    return min(1.0, len(results) * least) if math.isfinite(least) else math.nan


def _value(row: Mapping[str, Any], metric: str) -> float:
    """A value of a ledger's line; the mean over classes is made of those of the classes, which every line has."""
    if not metric.endswith(OVER_CLASSES):
        return float(row[metric])
    return _mean(row["per_class"][metric.removesuffix(OVER_CLASSES)])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
