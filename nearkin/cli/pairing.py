"""Audited runs paired class by class: which can be compared, how far they are apart, and what to tell the reader."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nearkin.cli.judging import judged_unlike
from nearkin.metrics import PairedResult, holm, paired_permutation
from nearkin.report import Column, ComparisonRow
from nearkin.report.comparison import Contrast, Difference

_SHOWN = 0.05
_SAME_DATA = ("data", "classes", "items")
"""The facts of an audit that must agree: with other items to search among, a class has another value."""


@dataclass(frozen=True)
class Audited:
    """A run and its audit.

    Args:
        row: its line in the table.
        per_class: metric to the mean of each class; empty in audits of old.
        facts: what was audited.
        lower_is_better: the metrics of which less is better.
        numbers: the metrics that are plain numbers, not shares of 1.
        judged: how the hierarchy suite judged it; empty if it did not.
    """

    row: ComparisonRow
    per_class: Mapping[str, Mapping[str, float]]
    facts: Mapping[str, str]
    lower_is_better: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    judged: Mapping[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> str:
        """What was audited, in words."""
        name, classes, items = (self.facts.get(key, "?") for key in _SAME_DATA)
        return f"{name} with {classes} classes and {items} items"


def by_merit(runs: Sequence[Audited], column: Column) -> list[int]:
    """Places of the runs that have the metric, the best first."""
    values = {place: run.row.value(column.metric)[0] for place, run in enumerate(runs)}
    known = [place for place, value in values.items() if not math.isnan(value)]
    return sorted(known, key=lambda place: values[place] if column.lower_is_better else -values[place])


def contrast_with(runs: Sequence[Audited], column: Column, against: int | None) -> tuple[Contrast | None, list[str]]:
    """The paired differences of all runs to one, and the notes that belong to them.

    Args:
        runs: the runs.
        column: the metric to compare.
        against: place of the run the others are compared with; None takes the best.
    """
    metric = column.metric
    reference = next(iter(by_merit(runs, column)), 0) if against is None else against
    found = {place: _pair(run, runs[reference], metric) for place, run in enumerate(runs) if place != reference}
    tested = {place: result for place, result in found.items() if isinstance(result, PairedResult)}
    notes = _reasons(runs, reference, {place: why for place, why in found.items() if isinstance(why, str)})
    notes += [
        f"The audit of {run.row.run} is of neighbours that were re-ranked ({run.facts['re-ranking']})."
        for run in runs
        if "re-ranking" in run.facts
    ]
    notes += [
        f"The audit of {run.row.run} has other settings than its recipe ({run.facts['audit settings']})."
        for run in runs
        if "audit settings" in run.facts
    ]
    if not tested:
        return None, notes
    corrected = holm([result.p_value for result in tested.values()])
    differences = {
        place: Difference(result.difference, result.low, result.high, p_value)
        for (place, result), p_value in zip(tested.items(), corrected, strict=True)
    }
    contrast = Contrast(metric, reference, "best" if against is None else runs[reference].row.run, differences)
    explanation = _explanation(runs, contrast, tested)
    if against is None and len(tested) > 1:
        explanation.append(
            "The best of several is picked by these same numbers, which flatters it: to test a choice made beforehand, "
            "name it with --against."
        )
    return contrast, [*explanation, *notes]


def class_differences(run: Audited, other: Audited, metric: str) -> dict[str, float]:
    """Class to the value of one run minus that of the other; nothing if they cannot be paired."""
    result = _pair(run, other, metric)
    return result.differences if isinstance(result, PairedResult) else {}


def _pair(run: Audited, reference: Audited, metric: str) -> PairedResult | str:
    """The comparison of two runs, or why there is none."""
    if any(run.facts.get(key) != reference.facts.get(key) for key in _SAME_DATA):
        return f"the audits are of different data ({run.data}; {reference.data})"
    unlike = judged_unlike(run.judged, reference.judged, metric)
    if unlike:
        return f"{metric} is not the same in both, as {unlike}"
    for one in (run, reference):
        if not one.per_class:
            return f"the audit of {one.row.run} keeps no values of single classes; audit it again"
        if metric not in one.per_class:
            return f"{metric} is not kept for single classes; use --metric with one of {', '.join(one.per_class)}"
    a, b = run.per_class[metric], reference.per_class[metric]
    shared = sum(name in b for name in a)
    if shared < 2:
        return f"the audits have {shared or 'no'} class{'' if shared == 1 else 'es'} in common, and two are the least"
    return paired_permutation(a, b)


def _reasons(runs: Sequence[Audited], reference: int, why: Mapping[int, str]) -> list[str]:
    """A sentence for every reason, with the runs it holds for."""
    names: dict[str, list[str]] = {}
    for place, reason in why.items():
        names.setdefault(reason, []).append(runs[place].row.run)
    against = runs[reference].row.run
    return [f"No paired test of {', '.join(those)} against {against}: {reason}." for reason, those in names.items()]


def _explanation(runs: Sequence[Audited], contrast: Contrast, tested: Mapping[int, PairedResult]) -> list[str]:
    """What was tested, on how many classes, and what the reader must not conclude."""
    metric, reference = contrast.metric, runs[contrast.reference]
    counts = sorted({result.classes for result in tested.values()})
    classes = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    several = f", corrected for {len(tested)} comparisons by Holm's method" if len(tested) > 1 else ""
    notes = [
        f"Difference: a run's {metric} minus that of {reference.row.run}, averaged over the {classes} classes both "
        "have; below it the 95 % interval, for other classes of the same kind.",
        f"p: how often chance alone would make a difference as large if both were equally good (two-sided sign-flip "
        f"permutation test over classes{several}). Up to {_SHOWN} a difference usually counts as shown; above, it may "
        "still exist.",
    ]
    # Among runs that agree in every class there is nothing to show.
    smallest = min(result.smallest_p for result in tested.values())
    if smallest < 1 and len(tested) * smallest > _SHOWN:
        least = min(1.0, len(tested) * smallest)
        notes.append(f"With {classes} classes p cannot be less than {least:.3g} here: audit more classes.")
    partly = [runs[place].row.run for place in tested if not _same_classes(runs[place], reference, metric)]
    if partly:
        notes.append(
            f"{', '.join(partly)} and {reference.row.run} were audited on partly different classes, each searched "
            "among its own: audit them on the same data (--data) for a fair comparison."
        )
    if any(_unlike_the_values(runs[place], reference, contrast, place) for place in tested):
        over = "is no plain mean over classes" if metric.startswith("MC") else "is a mean over queries"
        notes.append(f"{metric} itself {over}; differences give every class the same weight.")
    return notes


def _same_classes(run: Audited, reference: Audited, metric: str) -> bool:
    return run.per_class[metric].keys() == reference.per_class[metric].keys()


def _unlike_the_values(run: Audited, reference: Audited, contrast: Contrast, place: int) -> bool:
    """Whether the paired difference is visibly another than that of the values in the table."""
    apart = run.row.value(contrast.metric)[0] - reference.row.value(contrast.metric)[0]
    return abs(apart - contrast.differences[place].mean) > 0.0005
