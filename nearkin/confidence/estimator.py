"""What all estimators over neighbours share: fit a support, find neighbours, weigh them, add up by class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from nearkin.confidence.checks import all_or_nothing
from nearkin.confidence.probabilities import ClassProbabilities, Prediction
from nearkin.confidence.support import Support, as_queries
from nearkin.errors import DataError
from nearkin.metrics.calibration import FLOOR
from nearkin.registry import Registry
from nearkin.spaces import Sphere

Neighbours = tuple[Any, Any]
K = int | Literal["all"]

SHOWN = 200
"""Neighbours that a prediction by all support points keeps, and classes that any prediction lists at the most there."""

FIT_POINTS = 10_000
"""Support points that are left out one at a time, at the most, when something is fitted."""

ENERGIES = 2**27
"""Energies held at the most while something is fitted: half a gigabyte."""

_BLOCK = 2**23
"""Distances that exist at once when every support point counts."""

_TINY = 1e-300

estimators: Registry[Callable[..., Any]] = Registry("confidence estimator")


@dataclass(eq=False, kw_only=True)
class Estimator(ABC):
    """What takes a support and gives class probabilities.

    Args:
        space: how embeddings are compared: a space, its name, "cosine", or any object with a `distance(x, y)`.

    Attributes:
        support_: the support, after `fit`.
        notes_: what a reader must know of the fit.
    """

    space: Any = field(default_factory=Sphere)
    support_: Support = field(init=False, repr=False)
    notes_: list[str] = field(init=False, repr=False)

    def fit(
        self, support: Any, labels: Any, *, neighbours: Neighbours | None = None, source: str | None = None
    ) -> Self:
        """Take a support and learn what there is to learn from it; if that fails, all is as before.

        Args:
            support: embeddings (n, d).
            labels: n labels of any hashable kind.
            neighbours: (distances, indices), each (n, k), of every support point among the others, itself left out, if
                they are at hand; estimators that learn nothing from neighbours do not need them.
            source: what made the embeddings, such as `model.fingerprint()`; `predict` then refuses those of another.
        """
        with all_or_nothing(self):
            self.support_ = Support.of(support, labels, self.space, source)
            self.notes_ = []
            if len(self.support_.classes) == 1:
                self.notes_.append("The support has a single class, so every probability is 1.")
            self._learn(neighbours)
        return self

    @abstractmethod
    def _learn(self, neighbours: Neighbours | None) -> None:
        """What there is to learn from the support."""

    @abstractmethod
    def predict(self, queries: Any, *, source: str | None = None) -> Prediction:
        """Labels, confidence and class probabilities of queries (q, d)."""

    @abstractmethod
    def predict_proba(self, distances: Any, indices: Any) -> ClassProbabilities:
        """Class probabilities from neighbours that were found already, at distances (q, k), nearest first."""

    @abstractmethod
    def log_proba(self, queries: Any) -> Tensor:
        """Log-probabilities (q, C), differentiable with respect to the queries (q, d), in the order of `classes_`."""

    @property
    def classes_(self) -> np.ndarray:
        """The names of the classes (C,)."""
        return self._fitted().classes

    def _fitted(self) -> Support:
        try:
            return self.support_
        except AttributeError:
            raise DataError(f"This {type(self).__name__} has no support yet: call fit(embeddings, labels).") from None


@dataclass(eq=False, kw_only=True)
class NeighbourEstimator(Estimator):
    """Class probabilities from weighted neighbours: `p(c) = sum of the weights of class c / sum of all weights`.

    Args:
        k: how many neighbours, or "all".
        space: as in every estimator.
    """

    k: Any = 10

    @abstractmethod
    def weights(self, distances: Tensor, codes: np.ndarray) -> Tensor:
        """Weights (q, k), not negative, of neighbours at distances (q, k), nearest first, of classes `codes` (q, k)."""

    def log_weights(self, distances: Tensor, codes: np.ndarray) -> Tensor:
        """Their logarithms in float64 (q, k), where the smallest weights count too; arguments as of `weights`."""
        return self.weights(distances.double(), codes).clamp_min(_TINY).log()

    def _learn(self, neighbours: Neighbours | None) -> None:
        """Nothing but whether there are k points."""
        self._count(len(self.support_))

    def with_k(self, k: K) -> Self:
        """The same estimator, not fitted, with another number of neighbours."""
        return replace(self, k=k)

    def predict(self, queries: Any, *, source: str | None = None) -> Prediction:
        """Labels, confidence and class probabilities of queries (q, d)."""
        support = self._fitted()
        points = support.check_queries(queries, source)
        return self._predict(points, None)

    def leave_one_out(self, *, points: int = FIT_POINTS, seed: int = 0) -> tuple[np.ndarray, Prediction]:
        """What the support says of its own points, each left out in turn: which points (n,), and the prediction.

        Args:
            points: take at most so many, drawn at random.
            seed: of the draw.
        """
        support = self._fitted()
        rows = support.draw(points, seed)
        return rows, self._predict(support.points[torch.from_numpy(rows)], rows)

    def predict_proba(self, distances: Any, indices: Any) -> ClassProbabilities:
        """Class probabilities from neighbours that were found already.

        Args:
            distances: (q, k) in the estimator's space, nearest first.
            indices: (q, k), which support points these are.
        """
        support = self._fitted()
        length, near = support.check_neighbours(distances, indices)
        codes = support.codes[near]
        weights = self.weights(torch.from_numpy(length), codes).numpy()
        return ClassProbabilities.of_neighbours(support.classes, codes, weights)

    def log_proba(self, queries: Any) -> Tensor:
        """Log-probabilities (q, C), differentiable with respect to the queries (q, d), in the order of `classes_`.

        Which points are neighbours counts as fixed: the gradient is that of their distances. A class without a
        neighbour has 1e-12 or less, and no gradient.
        """
        support = self._fitted()
        x = as_queries(queries, support.points)
        with torch.no_grad():
            k = self._count(len(support))
            _, indices = support.search(support.check_queries(x, None), k)
        distances = support.distances(x, indices)
        codes = torch.from_numpy(support.codes[indices.cpu().numpy()]).long().to(x.device)
        return self._log_by_class(distances, codes, len(support.classes))

    def _log_by_class(self, distances: Tensor, codes: Tensor, classes: int) -> Tensor:
        """Log-probabilities (q, C) of neighbours at distances (q, k) of classes `codes` (q, k)."""
        weights = self.weights(distances, codes.cpu().numpy())
        shares = weights / weights.sum(dim=1, keepdim=True)
        table = shares.new_zeros(len(shares), classes).scatter_add(1, codes, shares)
        return table.clamp_min(FLOOR).log()

    def _count(self, available: int) -> int:
        """How many neighbours to take of so many support points."""
        if isinstance(self.k, str) and self.k == "all":
            return available
        if isinstance(self.k, bool) or not isinstance(self.k, (int, np.integer)) or self.k < 1:
            raise DataError(f"The number of neighbours k must be a whole number from 1 on, or 'all', not {self.k!r}.")
        if self.k > available:
            raise DataError(
                f"k={self.k} neighbours cannot be taken from {available} support points: choose k up to {available}, "
                "or k='all'."
            )
        return int(self.k)

    def _predict(self, points: Tensor, left_out: np.ndarray | None) -> Prediction:
        """Predict points (q, d), each without the support point `left_out` (q,) if given."""
        support = self._fitted()
        k = self._count(len(support) - (left_out is not None))
        if not isinstance(self.k, str):
            distances, indices = (part.cpu().numpy() for part in support.search(points, k, left_out))
            return Prediction(self.predict_proba(distances, indices), distances, indices)
        parts = []
        for rows in blocks(len(points), k):
            hidden = None if left_out is None else left_out[rows]
            distances, indices = (part.cpu().numpy() for part in support.search(points[rows], k, hidden))
            found = self.predict_proba(distances, indices).shortened(SHOWN)
            parts.append(Prediction(found, distances[:, :SHOWN].copy(), indices[:, :SHOWN].copy()))
        return Prediction.joined(parts)


def blocks(queries: int, width: int, size: int = _BLOCK) -> Iterator[slice]:
    """Slices of so many queries that about `size` numbers exist at once, `width` a query; one if there are none."""
    rows = max(1, size // max(1, width))
    for start in range(0, max(1, queries), rows):
        yield slice(start, start + rows)
