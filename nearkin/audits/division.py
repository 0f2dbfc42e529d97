"""Who is asked and who answers: items divided into a support, whose labels are known, and queries."""

from __future__ import annotations

import numpy as np

from nearkin.audits.subject import Subject
from nearkin.metrics.halving import halves


def divide(subject: Subject, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the support and of the queries: the published division, or half of each class by a seed."""
    if subject.gallery is not None:
        return np.flatnonzero(subject.gallery), np.flatnonzero(~subject.gallery)
    return halves(subject.labels, seed)


def leave_classes_out(labels: np.ndarray, rows: np.ndarray, seed: int) -> np.ndarray:
    """Which of `rows` (r,) are of a random half of their classes, rounded up, bool (r,): the known half."""
    names = np.unique(labels[rows])
    known = np.random.default_rng(seed).permutation(len(names)) < (len(names) + 1) // 2
    return np.isin(labels[rows], names[known])
