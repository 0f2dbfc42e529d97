"""Mean corruption error: how often a model errs on corrupted inputs, corruption by corruption, against a reference.

Reference: Hendrycks, Dietterich 2019, Benchmarking neural network robustness to common corruptions and perturbations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearkin.errors import DataError


def mean_corruption_error(errors: Any, reference: Any | None = None) -> float:
    """mCE: for each corruption the errors summed over severities, over those of a reference model; then the mean.

    Args:
        errors: shares of 1 (corruptions, severities).
        reference: errors of the reference in the same cells; None: nothing is divided by, and it is the mean error.
    """
    own = _cells(errors)
    return float(own.mean()) if reference is None else _mean_ratio(own, _cells(reference))


def relative_corruption_error(errors: Any, clean: float, reference: Any, reference_clean: float) -> float:
    """Relative mCE: the same of what corruption adds to the clean error.

    Args:
        errors: shares of 1 (corruptions, severities).
        clean: error on clean inputs.
        reference: errors of the reference in the same cells.
        reference_clean: its error on clean inputs.
    """
    return _mean_ratio(_cells(errors) - clean, _cells(reference) - reference_clean)


def _mean_ratio(own: np.ndarray, theirs: np.ndarray) -> float:
    """The mean over corruptions of ratios of sums over severities; NaN where one of the reference is not above 0."""
    if own.shape != theirs.shape:
        raise DataError(f"Errors {own.shape} and those of the reference {theirs.shape} must be of the same cells.")
    above, below = own.sum(axis=1), theirs.sum(axis=1)
    return float(np.mean(above / below)) if (below > 0).all() else float("nan")


def _cells(errors: Any) -> np.ndarray:
    found = np.asarray(errors, dtype=np.float64)
    if found.ndim != 2 or not found.size:
        raise DataError(f"Errors are a table (corruptions, severities), not of shape {found.shape}.")
    return found
