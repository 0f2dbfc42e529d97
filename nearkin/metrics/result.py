"""The value object that retrieval metrics fill and reports, comparisons and audits read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nearkin.errors import DataError, suggestion
from nearkin.metrics.labels import class_names, label_array, label_codes


@dataclass(frozen=True, eq=False)
class RetrievalResult:
    """Retrieval metrics of a set of queries.

    Attributes:
        values: metric name to its mean over the kept queries, in [0, 1], higher is better.
        per_query: metric name to float32 (kept,).
        kept: which queries have at least one positive, int64 (kept,), ascending.
        dropped: how many have none and are in no mean.
        labels: the kept queries' labels (kept,).
    """

    values: dict[str, float]
    per_query: dict[str, np.ndarray] = field(repr=False)
    kept: np.ndarray = field(repr=False)
    dropped: int
    labels: np.ndarray = field(repr=False)

    primary = "MAP@R"
    higher_is_better = True

    def per_class(self, metric: str) -> dict[str, float]:
        """The mean of a metric over the queries of each class, by class name."""
        if metric not in self.per_query:
            raise DataError(
                f"No values of '{metric}' for single queries are kept here.{suggestion(metric, self.per_query)}"
            )
        (codes,) = label_codes(self.labels)
        sums = np.bincount(codes, weights=self.per_query[metric].astype(np.float64))
        means = sums / np.bincount(codes)
        return dict(zip(class_names(self.labels, codes), means.tolist(), strict=True))

    def to_dict(self, per_query: bool = True) -> dict[str, Any]:
        """Plain JSON values; without `per_query` only the means and counts."""
        plain: dict[str, Any] = {"values": dict(self.values), "dropped": self.dropped, "queries": len(self.kept)}
        if per_query:
            plain["kept"] = self.kept.tolist()
            plain["labels"] = self.labels.tolist()
            plain["per_query"] = {name: values.tolist() for name, values in self.per_query.items()}
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> RetrievalResult:
        """The inverse of `to_dict`; what was not written stays empty."""
        labels = plain.get("labels", [])
        return cls(
            values=dict(plain["values"]),
            per_query={name: np.array(values, np.float32) for name, values in plain.get("per_query", {}).items()},
            kept=np.array(plain.get("kept", []), np.int64),
            dropped=int(plain["dropped"]),
            labels=label_array(labels, len(labels)),
        )
