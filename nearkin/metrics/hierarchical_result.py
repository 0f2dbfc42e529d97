"""The value object of measures against a class tree."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nearkin.metrics.intervals import Interval, class_bootstrap

SEVERITY = "severity"


@dataclass(frozen=True, eq=False)
class HierarchicalResult:
    """Measures of items against a class tree.

    Attributes:
        values: measure to its mean over the items; "severity" is the mean over mistakes alone, NaN if there are none.
        per_query: measure to float64 (n,), all but the severity.
        labels: the items' classes (n,).
        mistakes: which items got a wrong class, int64 (m,), ascending; empty where no class is predicted.
        severities: the tree distance of each mistake (m,).
        notes: what a reader must know.
    """

    values: dict[str, float]
    per_query: dict[str, np.ndarray] = field(repr=False)
    labels: np.ndarray = field(repr=False)
    mistakes: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    severities: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    notes: list[str] = field(default_factory=list)

    @property
    def lower_is_better(self) -> tuple[str, ...]:
        """The values of which less is better."""
        return tuple(name for name in self.values if name.startswith("AHD@") or name == SEVERITY)

    def intervals(self, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> dict[str, Interval]:
        """Measure to its interval (low, high) by `class_bootstrap`; there is none of the severity without mistakes."""
        found = class_bootstrap(self.per_query, self.labels, resamples=resamples, level=level, seed=seed)
        if len(self.mistakes):
            found[SEVERITY] = class_bootstrap(
                self.severities, self.labels[self.mistakes], resamples=resamples, level=level, seed=seed
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the means, None for one that is undefined, and how many items they are of."""
        values = {name: None if math.isnan(value) else value for name, value in self.values.items()}
        return {
            "values": values,
            "items": len(self.labels),
            "mistakes": len(self.mistakes),
            "notes": list(self.notes),
        }
