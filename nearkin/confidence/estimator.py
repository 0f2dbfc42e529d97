"""Estimators over neighbours: the support (labelled embeddings) they fit, what all share, and the votes beside NED."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import all_or_nothing, check_whole
from nearkin.confidence.probabilities import ClassProbabilities, Prediction
from nearkin.errors import DataError
from nearkin.metrics.calibration import FLOOR
from nearkin.metrics.checks import as_array
from nearkin.metrics.labels import label_array, label_codes
from nearkin.registry import Registry
from nearkin.search import Cosine, InnerProduct, Scorer, as_scorer, as_vectors, exact
from nearkin.spaces import Space, Sphere


@dataclass(frozen=True, eq=False)
class Support:
    """Points with classes.

    Attributes:
        points: (n, d).
        codes: class of each point as an index into `classes`, int32 (n,).
        classes: the names of the classes (C,), sorted if they are strings or whole numbers.
        scorer: how two points are compared.
        source: what made the embeddings, such as a model's fingerprint; None if unknown.
    """

    points: Tensor = field(repr=False)
    codes: np.ndarray = field(repr=False)
    classes: np.ndarray
    scorer: Scorer
    source: str | None = None

    @classmethod
    def of(cls, embeddings: Any, labels: Any, space: Any, source: str | None = None) -> Support:
        """Check what was given."""
        scorer = as_scorer(space)
        points = as_vectors(embeddings, "support embeddings")
        if not len(points):
            raise DataError("The support is empty: pass at least one embedding with its label.")
        names = label_array(labels, len(points), "support labels")
        (codes,) = label_codes(names)
        _, first = np.unique(codes, return_index=True)
        return cls(points, codes.astype(np.int32), names[first], scorer, source)

    def __len__(self) -> int:
        return len(self.points)

    def check_queries(self, queries: Any, source: str | None) -> Tensor:
        """Queries (q, d) as a detached tensor, if they can have come from the same model."""
        if None not in (source, self.source) and source != self.source:
            raise DataError(
                f"The support was embedded by '{_short(self.source)}' and the queries by '{_short(source)}': distances "
                "between embeddings of different models are meaningless: embed both with the same model."
            )
        points = as_vectors(queries, "queries")
        if points.shape[1] != self.points.shape[1]:
            raise DataError(
                f"The queries have {points.shape[1]} dimensions and the support has {self.points.shape[1]}: embed both "
                "with the same model."
            )
        return points.to(self.points.device)

    def check_neighbours(self, distances: Any, indices: Any) -> tuple[np.ndarray, np.ndarray]:
        """Distances float32 (q, k) and indices int64 (q, k) as a search gives them."""
        length, near = as_array(distances, "neighbours' distances"), as_array(indices, "neighbours' indices")
        if length.ndim != 2 or length.shape != near.shape or length.shape[1] == 0 or near.dtype.kind not in "iu":
            raise DataError(
                "Neighbours are distances (q, k) and whole-number indices (q, k) of one shape, as a search gives them, "
                f"not {length.shape} and {near.shape} of {near.dtype}."
            )
        with np.errstate(over="ignore"):
            length = length.astype(np.float32, copy=False)
        if not np.isfinite(length).all():
            raise DataError(
                "The distances of neighbours must be finite numbers, below 1e38: look for NaN or overflow in the "
                "embeddings."
            )
        if near.size and not (near.min() >= 0 and near.max() < len(self)):
            raise DataError(f"The indices of neighbours must be those of the {len(self)} support points, from 0.")
        if (length[:, 1:] < length[:, :-1]).any():
            raise DataError("Neighbours must be sorted by distance, nearest first, as a search returns them.")
        return length, near.astype(np.int64, copy=False)

    def draw(self, points: int, seed: int) -> np.ndarray:
        """At most `points` rows of the support, drawn without replacement, ascending."""
        check_whole(points, "points", 1)
        check_whole(seed, "seed", 0)
        if len(self) <= points:
            return np.arange(len(self))
        return np.sort(np.random.default_rng(seed).choice(len(self), points, replace=False))

    def search(self, queries: Tensor, k: int, exclude: np.ndarray | None = None) -> tuple[Tensor, Tensor]:
        """The k nearest support points of queries (q, d), and which these are."""
        return exact(queries, self.points, k, space=self.scorer, exclude=exclude)

    def distances(self, queries: Tensor, indices: Tensor) -> Tensor:
        """Distances (q, k) of queries (q, d) to support points (q, k), differentiable with respect to the queries."""
        others = self.points.to(queries.dtype)[indices]
        if isinstance(self.scorer, (Space, Cosine, InnerProduct)):
            return self.scorer.distance(queries[:, None], others)[:, 0]
        # A scorer of the user's own compares two plain tables only.
        rows = [self.scorer.distance(query[None], near)[0] for query, near in zip(queries, others, strict=True)]
        return torch.stack(rows) if rows else queries.new_empty(indices.shape)

    def positives(self, rows: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Which neighbours (n, k) of the support points `rows` (n,) are of the point's own class."""
        return self.codes[indices] == self.codes[rows][:, None]


def as_queries(queries: Any, like: Tensor) -> Tensor:
    """Queries (q, d) as a checked tensor that keeps its gradient, in the support's precision or its own if better."""
    checked = as_vectors(queries, "queries")
    kept = queries if isinstance(queries, Tensor) else checked
    better = kept.dtype if kept.dtype in (torch.float32, torch.float64) else like.dtype
    return kept.to(device=like.device, dtype=torch.promote_types(better, like.dtype))


def _short(source: str | None) -> str:
    text = str(source)
    return text if len(text) <= 20 else f"{text[:12]}…"


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
        """Check that the support has k points: there is nothing else to learn."""
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
            raise DataError(f"k must be a whole number of at least 1, or 'all', not {self.k!r}.")
        if self.k > available:
            raise DataError(
                f"k={self.k} neighbours cannot be taken from {available} support points: use k up to {available}, "
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


@estimators.register("knn")
@dataclass(eq=False, kw_only=True)
class KNNVote(NeighbourEstimator):
    """The share of the k neighbours that are of a class: `p(c) = #(y_i = c) / k`.

    Reference: Karpusha, Yun, Fehervari, eq. 4.
    Needs: a k that suits the size of the classes.
    Use when: a plain baseline is wanted. Its confidence takes the values 1/k, 2/k, … only.
    """

    def weights(self, distances: Tensor, codes: np.ndarray) -> Tensor:
        """Ones (q, k)."""
        # Through the distances, so that a gradient exists; it is zero, as it should be.
        return torch.ones_like(distances) if not distances.requires_grad else distances * 0 + 1


@estimators.register("1nn")
@dataclass(eq=False, kw_only=True)
class NearestNeighbour(KNNVote):
    """The class of the nearest neighbour, always with probability 1.

    Use when: only the label counts; this is P@1 of retrieval.
    """

    k: Any = field(init=False, default=1)

    def with_k(self, k: K) -> Self:
        """The same: the nearest neighbour is one."""
        return replace(self)

    def weights(self, distances: Tensor, codes: np.ndarray) -> Tensor:
        """One for the first of k neighbours, zero for the others (q, k)."""
        weights = super().weights(distances, codes)
        return weights * (torch.arange(distances.shape[1], device=distances.device) == 0)


@estimators.register("wknn-dudani")
@dataclass(eq=False, kw_only=True)
class DudaniVote(NeighbourEstimator):
    """Votes that fall linearly with the distance: `w_i = (d_k - d_i) / (d_k - d_1)`, 1 if all are equally far.

    Reference: Dudani 1976; Karpusha, Yun, Fehervari, eq. 5.
    Needs: k > 1; the farthest neighbour has no vote.
    Use when: classes differ in size and a plain vote drowns the small ones.
    """

    def weights(self, distances: Tensor, codes: np.ndarray) -> Tensor:
        """Weights (q, k) in [0, 1]."""
        first, last = distances[:, :1], distances[:, -1:]
        apart = last > first
        # The denominator is replaced before the division: a gradient through 0/0 would be NaN even where it is masked.
        return torch.where(apart, (last - distances) / torch.where(apart, last - first, 1.0), 1.0)


@estimators.register("wknn-gou")
@dataclass(eq=False, kw_only=True)
class GouVote(DudaniVote):
    """Dudani's votes times `(d_k + d_1) / (d_k + d_i)`, which favours the nearest a little more.

    Reference: Gou, Du, Zhang, Xiong 2012; Karpusha, Yun, Fehervari, eq. 5.
    Needs: distances, not similarities; k > 1.
    """

    def weights(self, distances: Tensor, codes: np.ndarray) -> Tensor:
        """Weights (q, k) in [0, 1]."""
        if distances.numel() and float(distances.detach().min()) < 0:
            raise DataError(
                "Gou's votes divide by distances, which must not be negative, as minus a similarity is: use another "
                "space, or DudaniVote."
            )
        first, last = distances[:, :1], distances[:, -1:]
        below = last + distances
        ratio = torch.where(below > 0, (last + first) / torch.where(below > 0, below, 1.0), 1.0)
        return super().weights(distances, codes) * ratio
