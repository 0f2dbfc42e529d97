"""How well classes and predictions follow a known class tree.

With d(a, b) the tree distance of two classes, y the class of an item and p_1, p_2, ... those predicted for it, the
likeliest first:

- mean correlation: Spearman's correlation of each class's distances to all others in the tree and in the embedding,
  averaged over classes by Fisher's z;
- AHD@k: the mean of `d(y, p_i)` over i <= k, of all items; at k = 1 the hierarchical cost of predictions;
- severity: the mean of `d(y, p_1)` over the mistakes alone (Bertinetto et al. 2020);
- HP@k: the share of p_1 ... p_k that are among the classes nearest to y: the smallest neighbourhood of y that has at
  least k classes, y itself and all ties included (Frome et al. 2013).

Reference: Kim 2023, article IV.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from nearkin.errors import DataError
from nearkin.metrics.checks import as_array, ascending_ks, class_ids, square_matrix
from nearkin.metrics.intervals import Interval, class_bootstrap
from nearkin.metrics.labels import class_names, label_array, label_codes
from nearkin.search import as_vectors
from nearkin.spaces import Space, Sphere

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


_SPHERE = Sphere()
_LARGEST = 1 - 1e-12
"""Of a correlation: Fisher's z of 1 is infinite."""

_TIE = 1e-9
"""Sums of branch lengths that differ by such a share are one distance."""

_SHORTEST = 0.5
"""Length of a mean on the sphere, of 1, below which it is of rounding errors alone."""


@dataclass(frozen=True, eq=False)
class MeanCorrelation:
    """How alike two distance matrices order the classes.

    Attributes:
        value: the mean over classes by Fisher's z, in [-1, 1]; NaN if no class is left.
        per_class: the correlation of each class (C,), NaN for those left out.
        dropped: how many classes are left out, as all others are equally far from them in one of the matrices.
        extreme: how many of the classes left agree or oppose fully. Their z, really infinite, is taken as about 14, far
            beyond that of any other, so they decide the mean: with few classes, or trees without ties, such a value
            says little, and `per_class` says more.
    """

    value: float
    per_class: np.ndarray = field(repr=False)
    dropped: int
    extreme: int = 0


def mean_correlation(first: Any, second: Any, *, diagonal: bool = False) -> MeanCorrelation:
    """Spearman's correlation of the rows of two distance matrices, averaged by Fisher's z.

    Distances of a row that differ by no more than rounding, a 1e-9 share of its largest, are ties.

    Example:
        >>> from nearkin.metrics.hierarchy import mean_correlation
        >>> tree = [[0, 2, 4, 4], [2, 0, 4, 4], [4, 4, 0, 2], [4, 4, 2, 0]]
        >>> learned = [[0, 1, 5, 6], [1, 0, 7, 8], [5, 7, 0, 9], [6, 8, 9, 0]]
        >>> mean_correlation(tree, learned).per_class.round(3).tolist()
        [0.866, 0.866, -0.866, -0.866]

    Args:
        first: distances (C, C), such as those of a tree.
        second: distances (C, C) between the same classes, such as those of proxies.
        diagonal: whether the distance of a class to itself counts as one of its row. It always agrees, so it raises the
            correlation; the article counts it.
    """
    from scipy.stats import rankdata

    left = square_matrix(first, "first distances")
    right = square_matrix(second, "second distances", len(left))
    if not diagonal:
        left, right = _without_diagonal(left), _without_diagonal(right)
    left, right = _tied(left), _tied(right)
    varied = (np.ptp(left, axis=1) > 0) & (np.ptp(right, axis=1) > 0) if left.shape[1] else np.zeros(len(left), bool)
    correlations = np.full(len(left), np.nan)
    if not varied.any():
        return MeanCorrelation(float("nan"), correlations, len(left), 0)
    ranks, others = (rankdata(rows[varied], axis=1) for rows in (left, right))
    ranks -= ranks.mean(axis=1, keepdims=True)
    others -= others.mean(axis=1, keepdims=True)
    scale = np.sqrt(np.einsum("ij,ij->i", ranks, ranks) * np.einsum("ij,ij->i", others, others))
    found = np.clip(np.einsum("ij,ij->i", ranks, others) / scale, -1.0, 1.0)
    correlations[varied] = found
    mean = np.tanh(np.arctanh(np.clip(found, -_LARGEST, _LARGEST)).mean())
    extreme = int((np.abs(found) >= _LARGEST).sum())
    return MeanCorrelation(float(mean), correlations, int((~varied).sum()), extreme)


def _tied(rows: np.ndarray) -> np.ndarray:
    """The place (C, m) of each value among the different ones of its row, those a rounding error apart being one."""
    order = np.argsort(rows, axis=1)
    ascending = np.take_along_axis(rows, order, axis=1)
    # By gaps rather than by decimals, where two equal values may still be on either side of a step.
    apart = np.diff(ascending, axis=1) > _TIE * np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    places = np.zeros(rows.shape, np.int64)
    np.put_along_axis(places, order[:, 1:], np.cumsum(apart, axis=1), axis=1)
    return places


def _without_diagonal(matrix: np.ndarray) -> np.ndarray:
    """A matrix (C, C) without its diagonal, (C, C - 1)."""
    return matrix[~np.eye(len(matrix), dtype=bool)].reshape(len(matrix), -1)


class ClassPrototypes(NamedTuple):
    """One point for each class.

    Args:
        names: the classes (C,).
        vectors: their points (C, d).
    """

    names: tuple[str, ...]
    vectors: np.ndarray


def class_prototypes(embeddings: Any, labels: Any, space: Space = _SPHERE) -> ClassPrototypes:
    """The mean of each class in the space; on the sphere the normalised mean of normalised embeddings.

    Args:
        embeddings: points of the space (n, d), array or tensor.
        labels: n labels of any hashable kind; classes are in the order of strings or numbers, else of appearance.
        space: whose mean is taken.

    Raises:
        DataError: if directions of a class cancel out, so that it has no mean on the sphere.
    """
    vectors = as_vectors(embeddings)
    names = label_array(labels, len(vectors))
    if not len(vectors):
        raise DataError("There are no embeddings to average: pass at least one.")
    (codes,) = label_codes(names)
    sizes = np.bincount(codes).tolist()
    grouped = vectors[torch.from_numpy(np.argsort(codes, kind="stable"))]
    means = torch.stack([space.mean(members) for members in grouped.split(sizes)])
    classes = tuple(class_names(names, codes))
    if isinstance(space, Sphere) and (lost := torch.linalg.vector_norm(means, dim=-1) < _SHORTEST).any():
        raise DataError(
            f"The embeddings of class '{classes[int(lost.int().argmax())]}' are zero or cancel out, so they have no "
            "mean on the sphere: remove the class, or use space=Euclidean()."
        )
    return ClassPrototypes(classes, means.cpu().numpy())


def class_distance_matrix(vectors: Any, space: Space = _SPHERE) -> np.ndarray:
    """Distances between points that stand for classes (C, d), such as proxies: float64 (C, C)."""
    points = as_vectors(vectors, "class vectors").double()
    distances = space.distance(points, points).cpu().numpy()
    distances = (distances + distances.T) / 2
    np.fill_diagonal(distances, 0.0)
    return distances


def hierarchical_metrics(
    scores: Any,
    truth: Any,
    distances: Any,
    *,
    at: Sequence[int] = (1, 5),
    precision_at: Sequence[int] = (5,),
    names: Sequence[str] | None = None,
) -> HierarchicalResult:
    """Top-k accuracy, AHD@k, HP@k and the severity of mistakes, from class scores.

    Args:
        scores: of each class for each item (n, C), the higher the likelier; equal ones go by the lower class number.
        truth: the class of each item (n,): whole numbers, or class names if `names` are given.
        distances: tree distances (C, C) in the order of the scores' columns.
        at: the k of the accuracy and of AHD@k. Those beyond the number of classes are left out, which a note says.
        precision_at: the k of HP@k.
        names: the class of each column.
    """
    deepest = max([1, *ascending_ks(at, "AHD@k"), *ascending_ks(precision_at, "HP@k")])
    ranking = rank_classes(scores, deepest)
    tree = square_matrix(distances, "tree distances", np.shape(scores)[1])
    return ranking_metrics(ranking, truth, tree, at=at, precision_at=precision_at, names=names)


def ranking_metrics(
    ranking: Any,
    truth: Any,
    distances: Any,
    *,
    at: Sequence[int] = (1, 5),
    precision_at: Sequence[int] = (5,),
    names: Sequence[str] | None = None,
) -> HierarchicalResult:
    """As `hierarchical_metrics`, from the class numbers predicted for each item (n, k), the likeliest first."""
    tree = square_matrix(distances, "tree distances")
    ranked = _as_ranking(ranking, len(tree))
    classes = class_ids(truth, len(ranked), len(tree), names, "items")
    ks = ascending_ks(at, "AHD@k")
    measures: dict[str, tuple[list[int], Callable[[int], np.ndarray]]] = {
        "top-": (ks, partial(top_accuracy, ranked, classes)),
        "AHD@": (ks, partial(hierarchical_distance, ranked, classes, tree)),
        "HP@": (ascending_ks(precision_at, "HP@k"), partial(hierarchical_precision, ranked, classes, tree)),
    }
    width = ranked.shape[1]
    per_query = {f"{kind}{k}": of(k) for kind, (asked, of) in measures.items() for k in asked if k <= width}
    beyond = [f"{kind}{k}" for kind, (asked, _) in measures.items() for k in asked if k > width]
    mistakes = np.flatnonzero(ranked[:, 0] != classes)
    severities = tree[classes[mistakes], ranked[mistakes, 0]]
    values = {name: float(column.mean()) for name, column in per_query.items()}
    values[SEVERITY] = float(severities.mean()) if len(mistakes) else float("nan")
    return HierarchicalResult(
        values,
        per_query,
        classes if names is None else np.asarray(names)[classes],
        mistakes,
        severities,
        [f"Left out, as there are only {width} classes to rank: {', '.join(beyond)}."] if beyond else [],
    )


def rank_classes(scores: Any, k: int) -> np.ndarray:
    """The k likeliest classes of each item, int64 (n, k), by scores (n, C); equal scores go by the lower class number.

    A k beyond the number of classes means all of them.
    """
    table = as_array(scores, "class scores")
    if table.ndim != 2 or 0 in table.shape:
        raise DataError(f"The class scores must have the shape (items, classes), not {table.shape}.")
    if np.isnan(table).any():
        row = int(np.argmax(np.isnan(table).any(axis=1)))
        raise DataError(f"The class scores hold NaN, first in row {row}: every class needs a score.")
    # Whole numbers without a sign have no negative.
    table = table if table.dtype.kind == "f" else table.astype(np.float64)
    return np.argsort(-table, axis=1, kind="stable")[:, :k]


def top_accuracy(ranking: Any, truth: Any, k: int) -> np.ndarray:
    """Whether the class (n,) of an item is among the first k of its ranking (n, at least k): 1 or 0, float64 (n,)."""
    first = _first(ranking, k)
    return (first == np.asarray(truth)[:, None]).any(axis=1).astype(np.float64)


def hierarchical_distance(ranking: Any, truth: Any, distances: np.ndarray, k: int) -> np.ndarray:
    """The mean tree distance (n,) from an item's class to the first k of its ranking (n, at least k).

    Args:
        ranking: class numbers, the likeliest first.
        truth: the items' class numbers (n,).
        distances: tree distances (C, C).
        k: how many predictions count.
    """
    return distances[np.asarray(truth)[:, None], _first(ranking, k)].mean(axis=1)


def hierarchical_precision(ranking: Any, truth: Any, distances: np.ndarray, k: int) -> np.ndarray:
    """The share (n,) of the first k of a ranking that are among the classes nearest to the item's own.

    These are the smallest neighbourhood that has at least k classes, the own class and all ties included. Arguments are
    those of `hierarchical_distance`.
    """
    truth = np.asarray(truth)
    radius = np.partition(distances, k - 1, axis=1)[:, k - 1] * (1 + _TIE)
    return (distances[truth[:, None], _first(ranking, k)] <= radius[truth, None]).mean(axis=1)


def _first(ranking: Any, k: int) -> np.ndarray:
    ranked = np.asarray(ranking)
    if not 1 <= k <= ranked.shape[1]:
        raise DataError(f"The ranking has {ranked.shape[1]} classes for each item: k must be from 1 to that, not {k}.")
    return ranked[:, :k]


def _as_ranking(ranking: Any, classes: int) -> np.ndarray:
    """Class numbers (n, k), none twice for an item."""
    table = as_array(ranking, "ranked classes")
    if table.ndim != 2 or 0 in table.shape or table.dtype.kind not in "iu":
        raise DataError(
            f"The ranked classes must be whole numbers of shape (items, k), not {table.dtype} of shape {table.shape}."
        )
    if table.min() < 0 or table.max() >= classes:
        raise DataError(
            f"The ranked classes go from {table.min()} to {table.max()}, but with distances between {classes} classes "
            f"they must be from 0 to {classes - 1}."
        )
    ordered = np.sort(table, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    if twice.any():
        raise DataError(f"A class is ranked twice for the item in row {int(np.argmax(twice))}: rank each once.")
    return table.astype(np.int64)
