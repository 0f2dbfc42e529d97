"""The page of `best.py`: what its ledger says, as tables, a picture and sentences that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nearkin.metrics import class_bootstrap

Rows = Sequence[dict[str, Any]]


def per_class(rows: Rows, study: str, candidate: str, folds: Sequence[int] | None = None) -> dict[str, float]:
    """MAP@R of each class; a class is measured in one fold."""
    found: dict[str, float] = {}
    for row in rows:
        if (row["study"], row["candidate"]) == (study, candidate) and (folds is None or row["fold"] in folds):
            found |= row["classes"]
    return found


def difference(ours: dict[str, float], theirs: dict[str, float]) -> tuple[float, float, float]:
    """Mean over the classes that both have of the difference in MAP@R, in points, with its 95 % interval."""
    names = sorted(set(ours) & set(theirs))
    values = 100 * np.array([ours[name] - theirs[name] for name in names])
    return float(values.mean()), *class_bootstrap(values, np.array(names))


def mean(values: dict[str, float]) -> tuple[float, float, float]:
    """Mean over classes in percent, with its 95 % interval."""
    points = 100 * np.array([values[name] for name in sorted(values)])
    return float(points.mean()), *class_bootstrap(points, np.array(sorted(values)))


def write_page(rows: Rows) -> None:
    """To be."""
