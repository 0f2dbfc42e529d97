"""Novelty: how unlike everything in a reference a query is, by neighbours or a one-class support vector machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import all_or_nothing, check_between, check_whole
from nearkin.errors import DataError, suggestion
from nearkin.metrics.kernels import GaussianKernel, Kernel, as_kernel, check_dimensions, kernel_matrix, upper_blocks
from nearkin.search import as_scorer, as_vectors, exact

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


Method = Literal["nearest", "mean", "one-class-svm"]

_METHODS = ("nearest", "mean", "one-class-svm")
_BLOCK_ENTRIES = 2**22
_ROUNDING = 1e-5
"""Share of the largest reference score by which float32 may move a score: such ties count as at least as novel."""


@dataclass
class Novelty:
    """One-class scores: higher is more novel. No class labels are needed.

    "nearest": the mean distance to the k nearest reference points. "mean": minus the mean of a kernel to all reference
    points. "one-class-svm": minus the decision value of a one-class support vector machine over the kernel, whose
    spectrum is clipped at zero, since a learned similarity need not be positive definite (docs/methods/novelty.md).

    The p-values are conformal: the query is put among the reference points, each of these is scored against all
    others, and `p = (1 + #{scores >= the query's}) / (1 + n)`. For a query that is drawn as the reference was, p is at
    most a with a chance of at most a. The machine is not trained anew for each query: it learns from a share of the
    reference, and the other points, which it has not seen, are what queries are compared with.

    Example:
        >>> from nearkin.confidence import Novelty
        >>> reference = [[0.0], [0.1], [0.2], [0.3], [0.5], [0.6], [0.8], [0.9], [1.0]]
        >>> Novelty(space="euclidean").fit(reference).p_values([[0.45], [5.0]]).tolist()
        [0.9, 0.1]

    Args:
        method: "nearest", "mean" or "one-class-svm".
        space: how points are compared: a space such as `model.space`, its name, or any object with a `distance`.
        kernel: for "mean" and "one-class-svm": a kernel, or its name: "auto" is "learned" where the space is that of a
            learned similarity, and "gaussian" elsewhere, with the median distance to the nearest point as bandwidth.
        k: for "nearest": how many neighbours.
        nu: for "one-class-svm": about which share of the reference the machine may leave outside, between 0 and 1.
        calibration: for "one-class-svm": the share of the reference that it does not learn from, between 0 and 1.
        points: for "one-class-svm": how many reference points it learns from at the most.
        seed: of what is drawn.

    Attributes:
        reference_: the points that queries are compared with (n, d).
        kernel_: the kernel with its parameters; None for "nearest".
        scores_: of reference points that the score did not know (c,): each left out in turn, or for "one-class-svm"
            those it did not learn from.
    """

    method: Method = "nearest"
    space: Any = "sphere"
    kernel: Any = "auto"
    k: int = 1
    nu: float = 0.1
    calibration: float = 0.5
    points: int = 2000
    seed: int = 0
    reference_: Tensor = field(init=False, repr=False)
    kernel_: Kernel | None = field(init=False, repr=False)
    scores_: np.ndarray = field(init=False, repr=False)
    _sums: np.ndarray = field(init=False, repr=False)
    _last: np.ndarray = field(init=False, repr=False)
    _machine: OneClassMachine = field(init=False, repr=False)

    def fit(self, reference: Any) -> Self:
        """Learn what is not novel from points (n, d)."""
        with all_or_nothing(self):
            self._check_settings()
            points = as_vectors(reference, "reference points")
            least = max(self.k + 1, 2) if self.method == "nearest" else 2
            if len(points) < least:
                raise DataError(
                    f"Novelty by '{self.method}' needs a reference of {least} points or more, not {len(points)}."
                )
            self.kernel_ = None
            {"nearest": self._fit_nearest, "mean": self._fit_mean, "one-class-svm": self._fit_machine}[self.method](
                points
            )
        return self

    def score(self, queries: Any) -> np.ndarray:
        """How novel queries (q, d) are, float64 (q,); higher is more."""
        return self._scores(self._checked(queries))

    def p_values(self, queries: Any) -> np.ndarray:
        """How often a point like those of the reference would be at least as novel, float64 (q,), from 1 / (1 + n)."""
        points = self._checked(queries)
        scores = self._scores(points)
        limits = scores - _ROUNDING * float(np.abs(self.scores_).max())
        step = max(1, _BLOCK_ENTRIES // len(self.scores_))
        counts = np.empty(len(points), np.int64)
        for start in range(0, len(points), step):
            rows = slice(start, start + step)
            counts[rows] = (self._beside(points[rows]) >= limits[rows]).sum(axis=0)
        return (1 + counts) / (1 + len(self.scores_))

    def _fit_nearest(self, points: Tensor) -> None:
        distances, _ = exact(points, k=self.k, space=as_scorer(self.space))
        near = distances.cpu().numpy().astype(np.float64)
        self.reference_, self._sums, self._last = points, near.sum(axis=1), near[:, -1]
        self.scores_ = self._sums / self.k

    def _fit_mean(self, points: Tensor) -> None:
        self.kernel_ = self._fitted_kernel(points)
        sums = np.zeros(len(points))
        for start, block in upper_blocks(points, self.kernel_):
            stop = start + len(block)
            np.fill_diagonal(block, 0.0)
            sums[start:stop] += block.sum(axis=1)
            sums[stop:] += block[:, stop - start :].sum(axis=0)
        self.reference_, self._sums = points, sums
        self.scores_ = -sums / (len(points) - 1)

    def _fit_machine(self, points: Tensor) -> None:
        order = np.random.default_rng(self.seed).permutation(len(points))
        aside = min(max(1, round(self.calibration * len(points))), len(points) - 1)
        learned = np.sort(order[aside:][: self.points])
        self.reference_ = points[torch.from_numpy(learned)]
        # The bandwidth, too, must not have seen the points that queries are compared with.
        self.kernel_ = self._fitted_kernel(self.reference_)
        self._machine = OneClassMachine.of(self.reference_, self.kernel_, self.nu)
        self.scores_ = self._machine.scores(points[torch.from_numpy(np.sort(order[:aside]))])

    def _fitted_kernel(self, points: Tensor) -> Kernel:
        """The kernel with its parameters; a Gaussian without a bandwidth gets the median distance to the nearest point.

        The median over all pairs, which a test takes, is as wide as the whole reference: too wide for its gaps.
        """
        kernel = as_kernel(self.kernel, self.space)
        if isinstance(kernel, GaussianKernel) and kernel.bandwidth is None and len(points) > 1:
            distances, _ = exact(points, k=1, space=kernel.scorer)
            away = distances[distances > 0]
            kernel = replace(kernel, bandwidth=float(away.median())) if len(away) else kernel
        return kernel.fitted(points)

    def _scores(self, queries: Tensor) -> np.ndarray:
        if not len(queries):
            return np.empty(0)
        if self.method == "one-class-svm":
            return self._machine.scores(queries)
        if self.method == "nearest":
            distances, _ = exact(queries, self.reference_, self.k, space=as_scorer(self.space))
            return distances.cpu().numpy().astype(np.float64).mean(axis=1)
        kernel = self.kernel_
        assert kernel is not None
        parts = queries.split(max(1, _BLOCK_ENTRIES // len(self.reference_)))
        return np.concatenate([-kernel(part, self.reference_).mean(dim=1).cpu().numpy() for part in parts])

    def _beside(self, queries: Tensor) -> np.ndarray:
        """Scores (c, q) of reference points with each query put among the others."""
        if self.method == "one-class-svm":
            return np.repeat(self.scores_[:, None], len(queries), axis=1)
        if self.method == "mean":
            assert self.kernel_ is not None
            values = self.kernel_(self.reference_, queries).cpu().numpy()
            return -(self._sums[:, None] + values) / len(self.reference_)
        with torch.no_grad():
            away = as_scorer(self.space).distance(self.reference_, queries).double().cpu().numpy()
        # The query takes the place of the farthest of the k neighbours where it is nearer.
        return (self._sums[:, None] - np.maximum(self._last[:, None] - away, 0.0)) / self.k

    def _checked(self, queries: Any) -> Tensor:
        try:
            reference = self.reference_
        except AttributeError:
            raise DataError("This Novelty has no reference yet: call fit(embeddings).") from None
        points = as_vectors(queries, "queries").to(reference)
        check_dimensions(reference, points)
        return points

    def _check_settings(self) -> None:
        if self.method not in _METHODS:
            raise DataError(f"There is no novelty '{self.method}'.{suggestion(str(self.method), _METHODS)}")
        check_whole(self.k, "k", 1)
        check_between(self.nu, "nu")
        check_between(self.calibration, "calibration")
        check_whole(self.points, "points", 2)
        check_whole(self.seed, "seed", 0)
