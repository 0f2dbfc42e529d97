"""Which classes have shifted: a test of every class that both sides have, with as many divisions as that takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from nearkin.audits.drift_result import ClassDrift, Side
from nearkin.errors import DataError
from nearkin.metrics import TwoSampleResult, holm

LEAST_ITEMS = 2
"""Items of each side that a test needs."""

MOST_PERMUTATIONS = 20_000
"""Random divisions of the test of a class, unless more are asked for."""

_NAMED = 5

ClassTest = Callable[[np.ndarray, np.ndarray, int], TwoSampleResult]
"""The test of rows of the reference and of the new data, with so many permutations."""


def shared_classes(reference: np.ndarray, new: np.ndarray) -> list[str]:
    """The classes with two items or more among labels (m,) and among labels (n,), sorted.

    Raises:
        DataError: there is none.
    """
    counts = [dict(zip(*np.unique(labels.astype(str), return_counts=True), strict=True)) for labels in (reference, new)]
    shared = [str(name) for name in counts[0] if min(count.get(name, 0) for count in counts) >= LEAST_ITEMS]
    if not shared:
        raise DataError(
            "No class has two items or more in both sets, so classes cannot be tested one by one: leave out by_class."
        )
    return sorted(shared)


def measure_classes(
    reference: Side, new: Side, test: ClassTest, *, permutations: int, alpha: float, two_sided: bool
) -> tuple[list[ClassDrift], list[str]]:
    """The test of every shared class, by name and after Holm, and what a reader must know of these tests.

    Holm multiplies the smallest p by the number of classes: with k of them it reaches alpha only if there are at least
    k / alpha divisions, twice as many for a two-sided test.

    Args:
        reference: the one side.
        new: the other.
        test: see `ClassTest`.
        permutations: at least so many.
        alpha: the p-value up to which it is called drift.
        two_sided: whether the test is.
    """
    names = shared_classes(reference.labels, new.labels)
    needed = math.ceil((1 + two_sided) * len(names) / alpha)
    taken = max(permutations, min(needed, MOST_PERMUTATIONS))
    found = []
    for name in names:
        rows = np.flatnonzero(reference.labels == name), np.flatnonzero(new.labels == name)
        one = test(*rows, taken)
        sizes = len(rows[0]), len(rows[1])
        found.append(ClassDrift(name, *sizes, one.statistic, one.p_value, 1.0, one.reachable_p))
    corrected = holm([one.p_value for one in found])
    classes = [replace(one, corrected_p=float(p)) for one, p in zip(found, corrected, strict=True)]
    notes = [_taken_note(taken, permutations, needed, len(names)), _small_note(classes, alpha)]
    return classes, [note for note in notes if note]


def _taken_note(taken: int, permutations: int, needed: int, classes: int) -> str:
    if taken < needed:
        return (
            f"With {classes:,} classes and {taken:,} divisions of each, a class alone can hardly pass after Holm: ask "
            f"for {needed:,} permutations, or for fewer classes."
        )
    if taken > permutations:
        return f"Each class was divided {taken:,} times at random, as fewer could show nothing after Holm."
    return ""


def _small_note(classes: list[ClassDrift], alpha: float) -> str:
    """Name the classes that could not pass after Holm even if every class were as far apart as its sizes allow."""
    best = holm([one.smallest_p for one in classes])
    small = [one.name for one, p in zip(classes, best, strict=True) if p > alpha]
    if not small:
        return ""
    more = f" and {len(small) - _NAMED:,} more" if len(small) > _NAMED else ""
    return (
        f"Classes with too few items to show a drift at {alpha:g}, whatever they look like: "
        f"{', '.join(small[:_NAMED])}{more}."
    )
