"""What suites of confidence share: a sample of queries, and answers to them as class tables."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nearkin.confidence import Estimator
from nearkin.metrics.binned import class_table
from nearkin.metrics.labels import label_codes


def draw_rows(queries: np.ndarray, size: int, seed: int) -> np.ndarray:
    """At most `size` of the queries, ascending; the same for the same seed."""
    if len(queries) <= size:
        return queries
    return np.sort(np.random.default_rng(seed).choice(queries, size, replace=False))


def tables_of(fitted: Mapping[str, Estimator], queries: np.ndarray, truth: np.ndarray) -> dict[str, np.ndarray]:
    """Every estimator's answers to queries as a class table (C, bins, 3)."""
    (codes,) = label_codes(np.asarray(truth))
    found = {}
    for name, estimator in fitted.items():
        predicted = estimator.predict(queries)
        found[name] = class_table(predicted.confidence, predicted.labels == truth, codes)
    return found
