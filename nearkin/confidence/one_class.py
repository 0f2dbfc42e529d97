"""A one-class support vector machine over a kernel that need not be positive definite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from nearkin.metrics.kernels import Kernel, kernel_matrix

_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class OneClassMachine:
    """A machine that was trained on the kernel among points, its negative eigenvalues set to zero.

    With `K = U L U'` among the points and P the projection on the eigenvectors of positive eigenvalues, the machine
    learns from `P K`, and a query with kernel values k to the points has `P k`. Both are inner products of one set of
    features, so a query that is one of the points has just the values that the point was trained with.

    Attributes:
        points: what it was trained on (n, d).
        kernel: with all its parameters.
        machine: scikit-learn's, trained on a precomputed kernel.
        projection: P (n, n); None where no eigenvalue is negative.
    """

    points: Tensor = field(repr=False)
    kernel: Kernel
    machine: Any = field(repr=False)
    projection: np.ndarray | None = field(repr=False)

    @classmethod
    def of(cls, points: Tensor, kernel: Kernel, nu: float) -> OneClassMachine:
        """Train on points (n, d); nu is about the share of them that may be left outside."""
        from sklearn.svm import OneClassSVM

        values, projection = clipped(kernel_matrix(points, kernel=kernel))
        return cls(points, kernel, OneClassSVM(kernel="precomputed", nu=nu).fit(values), projection)

    def scores(self, queries: Tensor) -> np.ndarray:
        """Minus the decision values (q,) of queries (q, d): above zero is outside."""
        parts = []
        for some in queries.split(_BLOCK):
            values = self.kernel(some, self.points).cpu().numpy()
            values = values if self.projection is None else values @ self.projection
            parts.append(-self.machine.decision_function(values))
        return np.concatenate(parts) if parts else np.empty(0)


def clipped(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The nearest positive semidefinite matrix (n, n) to a symmetric one, and the projection (n, n) that gives it.

    The projection is None where there is nothing to clip but rounding.
    """
    values, vectors = np.linalg.eigh(matrix)
    if values[0] >= -1e-10 * max(abs(values[-1]), 1e-300):
        return matrix, None
    kept = vectors[:, values > 0]
    projection = kept @ kept.T
    positive = matrix @ projection
    return (positive + positive.T) / 2, projection
