"""How well classes, predictions and neighbours follow a known class tree.

With d(a, b) the tree distance of two classes, y the class of an item and p_1, p_2, ... those predicted for it, the
likeliest first:

- mean correlation: Spearman's correlation of each class's distances to all others in the tree and in the embedding,
  averaged over classes by Fisher's z;
- AHD@k: the mean of `d(y, p_i)` over i <= k, of all items; at k = 1 the hierarchical cost of predictions;
- severity: the mean of `d(y, p_1)` over the mistakes alone (Bertinetto et al. 2020);
- HP@k: the share of p_1 ... p_k that are among the classes nearest to y: the smallest neighbourhood of y that has at
  least k classes, y itself and all ties included (Frome et al. 2013).

Retrieval against a class tree: how near in the tree are the classes of what lies near a query? The similarity of two
classes at tree distance d is `s = 1 - T(d)^2 / 2` with `T(d) = sqrt(2) d / (1 + d)`: 1 for the same class, falling
towards 0. With s_1, s_2, ... those of the query's neighbours, and b_1 >= b_2 >= ... those of all other items in the
best order:

- HS@k: `(s_1 + ... + s_k) / (b_1 + ... + b_k)` (Barz and Denzler 2019, as hierarchical precision);
- AHS@K: the area under HS@1 ... HS@K by the trapezoid rule, over K - 1, so that the best order has 1.

Reference: Kim 2023, article IV.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from nearkin.errors import DataError
from nearkin.metrics.checks import as_plain, ascending_ks, class_ids, number_table, square_matrix, symmetric_distances
from nearkin.metrics.intervals import Interval, class_bootstrap
from nearkin.metrics.labels import class_names, label_array, label_codes
from nearkin.search import as_pair, as_scorer, as_vectors, memory_bytes
from nearkin.search.brute_force import ordered_values, search_candidates
from nearkin.search.order import Order
from nearkin.search.tiles import key_scores
from nearkin.spaces import Space, Sphere
from nearkin.spaces.mds import chord_targets

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
        counts = {"items": len(self.labels), "mistakes": len(self.mistakes)}
        return as_plain({"values": self.values, **counts, "notes": self.notes})


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
        others = ~np.eye(len(left), dtype=bool)
        left, right = (matrix[others].reshape(len(matrix), -1) for matrix in (left, right))
    left, right = _tied(left), _tied(right)
    varied = (np.ptp(left, axis=1) > 0) & (np.ptp(right, axis=1) > 0) if left.shape[1] else np.zeros(len(left), bool)
    correlations = np.full(len(left), np.nan)
    if not varied.any():
        return MeanCorrelation(float("nan"), correlations, len(left), 0)
    ranks = [rankdata(rows[varied], axis=1) for rows in (left, right)]
    x, y = (rank - rank.mean(axis=1, keepdims=True) for rank in ranks)
    scale = np.sqrt(np.einsum("ij,ij->i", x, x) * np.einsum("ij,ij->i", y, y))
    found = np.clip(np.einsum("ij,ij->i", x, y) / scale, -1.0, 1.0)
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
    table = number_table(scores, "class scores", "(items, classes)")
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
    table = number_table(ranking, "ranked classes", "(items, k)", "iu")
    if table.min() < 0 or table.max() >= classes:
        raise DataError(
            f"The ranked classes go from {table.min()} to {table.max()}, but with distances between {classes} classes "
            f"they must be from 0 to {classes - 1}."
        )
    twice = (np.diff(np.sort(table, axis=1), axis=1) == 0).any(axis=1)
    if twice.any():
        raise DataError(f"A class is ranked twice for the item in row {int(np.argmax(twice))}: rank each once.")
    return table.astype(np.int64)


_SPARE = 32  # candidates beyond those asked for that are looked at first


def hierarchical_similarity(
    embeddings: Any,
    labels: Any,
    distances: Any,
    *,
    at: Sequence[int] = (50, 250),
    area: int | None = 250,
    space: Any = _SPHERE,
    class_names: Sequence[str] | None = None,
    memory_mb: float = 512,
) -> HierarchicalResult:
    """HS@k and AHS@K of embeddings, each searched among all others.

    A query is never its own neighbour, but its exact copies are. Equal distances go by the lower index. The score
    matrix is never held. A k beyond the number of other items is left out, which a note says.

    Args:
        embeddings: points of the space (n, d), array or tensor.
        labels: their classes (n,): whole numbers, rows of the distances, or labels spelt as in `class_names`.
        distances: tree distances (C, C); classes without items do no harm.
        at: the k of HS@k.
        area: the K of AHS@K, from 2 up; None for none.
        space: a space, its name, or any scorer, as for `nearkin.search.exact`.
        class_names: the class of each row of the distances.
        memory_mb: how much memory to take beside inputs and results, in MB (2^20 bytes).
    """
    scorer, memory = as_scorer(space), memory_bytes(memory_mb)
    points, _ = as_pair(embeddings, None)
    tree = symmetric_distances(distances, "tree distances")
    codes = class_ids(labels, len(points), len(tree), class_names, "embeddings")
    ks, span, notes = _depths(at, area, len(points) - 1)
    similarities = 1 - np.square(chord_targets(tree)) / 2
    order, rows = Order(points, points, scorer), np.arange(len(points))
    curves = _Curves(order, codes, similarities, ks, span)
    search_candidates(order, rows, np.full(len(rows), max([*ks, span or 0])), rows, curves.take, memory)
    return HierarchicalResult(
        {name: float(column.mean()) for name, column in curves.values.items()},
        curves.values,
        codes if class_names is None else np.asarray(class_names)[codes],
        notes=notes,
    )


def best_sums(similarities: np.ndarray, counts: np.ndarray, depth: int) -> np.ndarray:
    """The largest sums (C, depth) of the first 1, 2, ... similarities that a query of each class could reach.

    Args:
        similarities: of classes (C, C).
        counts: how many items each class has (C,); a query of a class finds one less of its own.
        depth: how many neighbours, fewer than there are items; 0 everywhere for a class without items.
    """
    sums = np.zeros((len(counts), depth))
    for row in np.flatnonzero(counts):
        others = counts.copy()
        others[row] -= 1
        order = np.argsort(-similarities[row], kind="stable")
        # A class serves no more neighbours than are asked for: large ones need not be written out.
        sums[row] = np.repeat(similarities[row, order], np.minimum(others[order], depth))[:depth].cumsum()
    return sums


class _Curves:
    """The values of every query, filled in as its neighbours come."""

    def __init__(
        self, order: Order, codes: np.ndarray, similarities: np.ndarray, ks: Sequence[int], span: int | None
    ) -> None:
        self._order, self._codes, self._similarities = order, codes, similarities
        self._ks, self._span = ks, span
        self._depth = max([*ks, span or 0])
        self._best = best_sums(similarities, np.bincount(codes, minlength=len(similarities)), self._depth)
        self._weights = _area_weights(self._best[:, :span])
        self._short_codes = codes.astype(np.int32)
        self._starts = self._short_codes * np.int32(len(similarities))
        names = [*(f"HS@{k}" for k in ks), *([] if span is None else [f"AHS@{span}"])]
        self.values = {name: np.empty(len(codes)) for name in names}

    def take(self, rows: np.ndarray, keys: np.ndarray) -> None:
        """Candidates of some queries, from any thread."""
        if len(rows) == 0:
            return
        few = keys[:, : self._depth + _SPARE]  # mostly enough to hold all that rounding confuses
        last = key_scores(few[:, self._depth - 1 : self._depth])
        if (key_scores(few[:, -1:]) >= last - self._order.doubt(rows)[:, None]).any():
            few = keys
        similar = ordered_values(self._order, rows, np.ascontiguousarray(few), self._depth, self._similar)
        own = self._codes[rows]
        for k in self._ks:
            self.values[f"HS@{k}"][rows] = similar[:, :k].sum(axis=1) / self._best[own, k - 1]
        if self._span is not None:
            area = np.einsum("ij,ij->i", similar[:, : self._span], self._weights[own])
            self.values[f"AHS@{self._span}"][rows] = area

    def _similar(self, rows: np.ndarray, near: np.ndarray) -> np.ndarray:
        """The similarity (b, c) of queries (b,) to the classes of items (b, c)."""
        return self._similarities.take(self._starts[rows][:, None] + self._short_codes[near])


def _area_weights(best: np.ndarray) -> np.ndarray:
    """What (C, K) each neighbour's similarity adds to the area under HS@1 ... HS@K, given the best sums (C, K).

    The area is linear in the similarities: neighbour i counts in HS@k for every k >= i.
    """
    rule = np.ones(best.shape[1])
    rule[[0, -1]] /= 2
    each = np.divide(rule, best, out=np.zeros_like(best), where=best > 0)
    return each[:, ::-1].cumsum(axis=1)[:, ::-1] / max(best.shape[1] - 1, 1)


def _depths(at: Sequence[int], area: int | None, others: int) -> tuple[list[int], int | None, list[str]]:
    """The k of HS@k and the K of AHS@K that there are enough other items for, and a note on what is left out."""
    asked, spans = ascending_ks(at, "HS@k"), [] if area is None else ascending_ks([area], "AHS@K")
    if spans == [1]:
        raise DataError("AHS@K is an area from 1 to K, so K must be 2 or more, not 1.")
    ks, span = [k for k in asked if k <= others], next((k for k in spans if k <= others), None)
    beyond = [*(f"HS@{k}" for k in asked if k > others), *(f"AHS@{k}" for k in spans if k > others)]
    if not ks and span is None:
        if not beyond:
            raise DataError("No metric requested: pass a k of HS@k in `at`, or a K of AHS@K in `area`.")
        raise DataError(
            f"A query has only {max(others, 0):,} others to find, too few for {', '.join(beyond)}: give more items or "
            "ask for fewer neighbours."
        )
    return ks, span, [f"Left out, as a query has only {others:,} others to find: {', '.join(beyond)}."] * bool(beyond)
