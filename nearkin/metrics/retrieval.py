"""Retrieval: is what lies near a query of its class, and what is left of it when embeddings are cut short?

With R the number of items of the query's class that it can find, and hit_i whether its i-th neighbour is one of them:
`P@k = 1/k sum_{i<=k} hit_i`, `R-precision = P@R`, `MAP@R = 1/R sum_{i<=R} P@i hit_i`,
`MAP@k = 1/min(k, R) sum_{i<=k} P@i hit_i`, `MRR = 1 / rank of the first hit`, `Recall@k = any hit_{i<=k}`,
`kNN-Acc = more than half of hit_{i<=k}`; `kNN-Acc (plurality)` = no other class has as many of the first k, or one that
has begins farther away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import check_range, check_whole
from nearkin.errors import DataError, suggestion
from nearkin.metrics.checks import as_plain
from nearkin.metrics.intervals import Interval, class_bootstrap
from nearkin.metrics.labels import class_names, label_array, label_codes, label_pair
from nearkin.progress import Progress
from nearkin.search import Reranker, as_exclude, as_reranker, as_scorer, exact, memory_bytes
from nearkin.search.brute_force import first_ranks, ordered_values, search_candidates
from nearkin.search.order import Order
from nearkin.search.tiles import key_indices
from nearkin.spaces import Sphere
from nearkin.spaces.principal import check_turnable

MRR = "MRR"
MAJORITY, PLURALITY = "kNN-Acc", "kNN-Acc (plurality)"
"""More than half of the neighbours, as papers say, and the most of them, as papers with values above Recall@1 do it."""


Compute = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class HitMetric:
    """A metric of a query.

    Args:
        name: what it is called.
        depth: how many neighbours it looks at, given R (b,); whole numbers (b,).
        compute: values (b,) from hits (b, c), R (b,) and how many items (b,) there are to find, c being at least the
            depth or all there is.
        voters: of how many neighbours `compute` takes which class they are of, instead of hits: whole numbers (b, c),
            0 for the query's own class and -1 for no item.
    """

    name: str
    depth: Callable[[np.ndarray], np.ndarray]
    compute: Compute
    voters: int = 0


def choose_metrics(
    names: Sequence[str] | None, recall_at: Sequence[int], map_at: Sequence[int], knn: int
) -> list[HitMetric]:
    """The metrics called `names`; None means all, Recall and MAP at the given k.

    Raises:
        DataError: for an unknown name or a k below 1.
    """
    recall_at, map_at = _several(recall_at), _several(map_at)
    for k in (knn, *recall_at, *map_at):
        check_whole(k, "k", 1)
    if names is None:
        names = ["P@1", "R-precision", "MAP@R", MRR]
        names += [*(f"MAP@{k}" for k in map_at), *(f"Recall@{k}" for k in recall_at), MAJORITY, PLURALITY]
    names = _several(names)
    if len(names) == 0:
        raise DataError("No metric requested: name at least one, such as 'MAP@R', or omit `metrics` for all.")
    return [_metric(name, knn) for name in dict.fromkeys(names)]


def _several(given: Any) -> list[Any]:
    """A single one is a list of one."""
    return [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)


def _metric(name: str, knn: int) -> HitMetric:
    at = re.fullmatch(r"(P@|MAP@|Recall@)([1-9][0-9]*)", str(name))
    k = min(int(at[2]), np.iinfo(np.int32).max) if at else knn if name in (MAJORITY, PLURALITY) else 1

    def own(total: np.ndarray) -> np.ndarray:
        return total

    def first(total: np.ndarray) -> np.ndarray:
        return np.full_like(total, k)

    kinds: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Compute]] = {
        "R-precision": (own, lambda hits, total, _: _count(_within(hits, total)) / total),
        "MAP@R": (own, lambda hits, total, _: _average_precision(_within(hits, total), total)),
        MRR: (first, _reciprocal_rank),
        PLURALITY: (first, lambda near, *_: _plurality(near[:, :k])),
        MAJORITY: (
            first,
            lambda hits, _, there: _count(_within(hits, np.minimum(there, k))) > np.minimum(there, k) // 2,
        ),
        "P@": (first, lambda hits, _, there: _count(hits[:, :k]) / np.minimum(there, k)),
        "MAP@": (first, lambda hits, total, _: _average_precision(hits[:, :k], np.minimum(total, k))),
        "Recall@": (first, lambda hits, *_: _count(hits[:, :k]) > 0),
    }
    kind = at[1] if at else name
    if kind not in kinds or (kind.endswith("@") and at is None):
        known = ["P@1", "R-precision", "MAP@R", MRR, MAJORITY, PLURALITY, "MAP@10", "Recall@1"]
        raise DataError(f"There is no retrieval metric '{name}'.{suggestion(str(name), known)}")
    return HitMetric(name, *kinds[kind], voters=k if kind == PLURALITY else 0)


def _count(hits: np.ndarray) -> np.ndarray:
    return np.count_nonzero(hits, axis=1)


def _within(hits: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The hits (b, w) among the first R neighbours, w the largest R or all there is."""
    width = min(hits.shape[1], int(total.max(initial=0)))
    return hits[:, :width] & (np.arange(width) < total[:, None])


def _plurality(near: np.ndarray) -> np.ndarray:
    """Whether class 0 has the most of the neighbours (b, k); of equal classes the one that comes first wins."""
    votes = np.stack([_count(near == near[:, place, None]) for place in range(near.shape[1])], axis=1)
    return near[np.arange(len(near)), np.where(near < 0, 0, votes).argmax(axis=1)] == 0


def _average_precision(hits: np.ndarray, divisor: np.ndarray) -> np.ndarray:
    found = np.cumsum(hits, axis=1, dtype=np.int32)
    found *= hits
    return np.multiply(found, 1 / np.arange(1, hits.shape[1] + 1)).sum(axis=1) / divisor


def _reciprocal_rank(hits: np.ndarray, *_: np.ndarray) -> np.ndarray:
    """Zero where none of the neighbours is a hit."""
    return np.where(hits.any(axis=1), 1 / (hits.argmax(axis=1) + 1), 0.0)


def over_classes(metric: str) -> str:
    """What the mean of a metric over classes is called: `MAP@R (classes)`; the plain name is the mean over queries."""
    return f"{metric}{OVER_CLASSES}"


OVER_CLASSES = " (classes)"


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
        names = ("kept", "labels", "per_query") if per_query else ()
        plain = {"values": self.values, "dropped": self.dropped, "queries": len(self.kept)}
        return as_plain(plain | {name: getattr(self, name) for name in names})

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


_SPHERE = Sphere()
_PAIRS, _SHARE = 2**22, 50


def retrieval_metrics(
    embeddings: Any,
    labels: Any,
    *,
    gallery: Any | None = None,
    gallery_labels: Any | None = None,
    metrics: Sequence[str] | None = None,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    map_at: Sequence[int] = (10,),
    knn: int = 5,
    space: Any = _SPHERE,
    exclude: Any | None = None,
    rerank: Reranker | str | None = None,
    per_query: bool = True,
    memory_mb: float = 512,
) -> RetrievalResult:
    """Retrieval metrics of embeddings, each against all others or against a gallery.

    Without a gallery a query is never its own neighbour, but its exact copies are. Equal distances go by the lower
    index. Queries that have no item of their class to find are dropped and counted. A k beyond the gallery's size means
    all of it. The score matrix is never held.

    Neighbours that float32 cannot tell apart are compared in float64 wherever that costs little: where all queries
    together look at no more than 2^22 neighbours, or at a fiftieth of all pairs. In larger searches with very large
    classes such neighbours (some 1e-6 apart) may change places.

    Args:
        embeddings: points of the space (q, d), array or tensor.
        labels: q labels of any hashable kind.
        gallery: points (n, d) to search instead of the other embeddings; needs `gallery_labels`.
        gallery_labels: n labels.
        metrics: which to compute, such as `["MAP@R", "Recall@100"]`; None means P@1, R-precision, MAP@R, MRR, MAP@k and
            Recall@k at the k below, and both kNN-Acc. What is not asked for is not searched for.
        recall_at: the k of Recall@k.
        map_at: the k of MAP@k, which divides by `min(k, R)`.
        knn: how many neighbours vote in kNN-Acc; a strict majority must share the query's label (3 of 5). For
            "kNN-Acc (plurality)" it is enough that no other class has more.
        space: a space, its name, or any scorer, as for `nearkin.search.exact`.
        exclude: the index (q,) of the gallery item that a query must not find, -1 for none.
        rerank: measures the order that a re-ranker gives, such as `KReciprocal()` or its name; its list of neighbours
            is as long as the deepest metric asks, and a first hit beyond it counts 0 in MRR.
        per_query: whether the result keeps every query's values, which intervals and class means need.
        memory_mb: how much memory to take beside inputs and results, in MB (2^20 bytes).
    """
    chosen = choose_metrics(metrics, recall_at, map_at, knn)
    scorer, memory = as_scorer(space), memory_bytes(memory_mb)
    reranker = None if rerank is None else as_reranker(rerank)
    queries, points, query_labels, codes, point_codes = label_pair(embeddings, labels, gallery, gallery_labels)
    hidden = as_exclude(exclude, len(queries), len(queries if points is None else points), leave_one_out=points is None)
    classes = _Classes(codes, codes if point_codes is None else point_codes, hidden)
    kept = np.flatnonzero(classes.total > 0)
    if len(kept) == 0:
        raise DataError(
            "No query has another item of its class to find: give each class at least two items, or pass a gallery "
            "with the queries' classes."
        )
    order = Order(queries, queries if points is None else points, scorer)
    scorecard = _Scorecard(order, classes, chosen, kept)
    if reranker is None:
        scorecard.search(memory)
    else:
        scorecard.search_again(reranker, memory_mb)
    return RetrievalResult(
        values={name: float(values.mean()) for name, values in scorecard.values.items()},
        per_query={name: values.astype(np.float32) for name, values in scorecard.values.items()} if per_query else {},
        kept=kept,
        dropped=len(queries) - len(kept),
        labels=query_labels[kept],
    )


class _Classes:
    """Who belongs to whom: codes of queries (q,) and items (n,), and how many items (q,) a query can find."""

    def __init__(self, codes: np.ndarray, point_codes: np.ndarray, hidden: np.ndarray | None) -> None:
        self.codes, self.hidden = codes, hidden
        self._points = np.append(point_codes, -1)  # item -1, no item, is of no class
        sizes = np.bincount(point_codes, minlength=int(codes.max(initial=0)) + 1)
        self.total = sizes[codes]
        if hidden is not None:
            self.total = self.total - ((hidden >= 0) & (point_codes[hidden] == codes))
        self._by_class = np.argsort(point_codes, kind="stable")
        self._starts = np.cumsum(sizes) - sizes
        self._sizes = sizes

    def hits(self, rows: np.ndarray, near: np.ndarray) -> np.ndarray:
        """Which items (b, c) share their query's class; no item, -1, does not."""
        return self._points[near] == self.codes[rows][:, None]

    def near(self, rows: np.ndarray, near: np.ndarray, voters: int) -> np.ndarray:
        """Items (b, c) by class: 0 for the query's own; of the first `voters` the others too, from 1 on, else -1."""
        found = np.where(self.hits(rows, near), 0, -1)
        first = self._points[near[:, :voters]]
        found[:, :voters] = np.where((first < 0) | (found[:, :voters] == 0), found[:, :voters], first + 1)
        return found

    def members(self, rows: np.ndarray) -> np.ndarray:
        """The items (b, m) that are hits for queries (b,), -1 where there are fewer."""
        sizes = self._sizes[self.codes[rows]]
        place = np.arange(sizes.max())
        inside = place < sizes[:, None]
        first = self._starts[self.codes[rows]][:, None]
        items = np.where(inside, self._by_class[np.where(inside, first + place, 0)], -1)
        if self.hidden is not None:
            items[items == self.hidden[rows][:, None]] = -1
        return items


class _Scorecard:
    """The values of every kept query, filled in as its neighbours come."""

    def __init__(self, order: Order, classes: _Classes, metrics: list[HitMetric], kept: np.ndarray) -> None:
        self._order, self._classes, self._metrics, self._kept = order, classes, metrics, kept
        self._place = np.empty(len(order.queries), np.int64)
        self._place[kept] = np.arange(len(kept))
        available = np.full(len(kept), len(order.gallery))
        if classes.hidden is not None:
            available -= classes.hidden[kept] >= 0
        self._voters = max((metric.voters for metric in metrics), default=0)
        deepest = np.max([metric.depth(classes.total[kept]) for metric in metrics], axis=0)
        self._depth, self._available = np.minimum(deepest, available), available
        pairs = len(kept) * len(order.gallery)
        self._careful = self._depth.sum() <= max(_PAIRS, pairs // _SHARE)
        # Written in place: small results kept between large blocks would leave the allocator holes it cannot fill.
        self.values = {metric.name: np.empty(len(kept)) for metric in metrics}

    def search(self, memory: int) -> None:
        """One pass over the scores, and a second look at queries whose first hit lies deeper than asked for."""
        search_candidates(self._order, self._kept, self._depth, self._classes.hidden, self._take, memory)
        if MRR in self.values:
            late = self._kept[self.values[MRR] == 0]
            if len(late):
                ranks = first_ranks(self._order, late, self._classes.members, self._classes.hidden, memory)
                self.values[MRR][self._place[late]] = 1 / ranks

    def search_again(self, rerank: Reranker, memory_mb: float) -> None:
        """Take the neighbours from a re-ranker."""
        order, hidden = self._order, self._classes.hidden
        alone = order.queries is order.gallery
        _, near = exact(
            order.queries,
            None if alone else order.gallery,
            int(self._depth.max()),
            space=order.scorer,
            exclude=None if alone else hidden,
            rerank=rerank,
            memory_mb=memory_mb,
        )
        self._write(self._kept, self._look(self._kept, near.cpu().numpy()[self._kept]))

    def _take(self, rows: np.ndarray, keys: np.ndarray) -> None:
        """Candidates of some queries, from any thread."""
        if len(rows) == 0:
            return
        depth = self._depth[self._place[rows]]
        if self._careful:
            seen = ordered_values(self._order, rows, keys, depth, self._look)
        else:
            seen = self._look(rows, key_indices(keys))
        self._write(rows, seen[:, : depth.max()])

    def _look(self, rows: np.ndarray, near: np.ndarray) -> np.ndarray:
        """Whether items (b, c) are hits; where a metric asks for classes, these as `_Classes.near` gives them."""
        return self._classes.near(rows, near, self._voters) if self._voters else self._classes.hits(rows, near)

    def _write(self, rows: np.ndarray, seen: np.ndarray) -> None:
        total, place = self._classes.total[rows], self._place[rows]
        hits = seen == 0 if self._voters else seen
        for metric in self._metrics:
            taken = seen if metric.voters else hits
            self.values[metric.name][place] = metric.compute(taken, total, self._available[place])


@dataclass(frozen=True, eq=False)
class SizeCurve:
    """Metrics of the first dimensions of embeddings, by how many.

    Attributes:
        sizes: how many dimensions, ascending; the last is the whole embedding.
        results: the retrieval of each size.
        intervals: metric to the 95 % interval of each size, with classes and queries drawn anew.
        losses: metric to what each size loses against the whole: the difference and its interval, from the same
            queries; below zero the shorter embedding is better.
    """

    sizes: tuple[int, ...]
    results: tuple[RetrievalResult, ...]
    intervals: dict[str, tuple[Interval, ...]]
    losses: dict[str, tuple[tuple[float, float, float], ...]]

    primary = "MAP@R"

    @property
    def values(self) -> dict[str, tuple[float, ...]]:
        """Metric to the value of each size."""
        return {name: tuple(result.values[name] for result in self.results) for name in self.intervals}

    def smallest_within(self, loss: float = 0.01, metric: str = "MAP@R") -> int:
        """The smallest size that loses no more than this, nor do the larger ones, by the upper ends of the intervals.

        Args:
            loss: of a share of 1; 0.01 is a point.
            metric: by which.
        """
        chosen = self.sizes[-1]
        for size, (_, _, high) in reversed(list(zip(self.sizes, self.losses[metric], strict=True))):
            if high > loss:
                break
            chosen = size
        return chosen

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain = {"sizes": self.sizes, "values": self.values, "intervals": self.intervals}
        return as_plain(plain | {"loss against the whole": self.losses})


def size_curve(
    embeddings: Any,
    labels: Any,
    sizes: Sequence[int] | None = None,
    *,
    gallery: Any | None = None,
    gallery_labels: Any | None = None,
    metrics: Sequence[str] = ("MAP@R", "P@1"),
    space: Any = _SPHERE,
    resamples: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> SizeCurve:
    """Retrieval by the first dimensions of embeddings, for several sizes, each against what the whole gives.

    For PCA, give what `PrincipalRotation.transform` makes of the embeddings, fitted on other classes: then the first
    dimensions are principal components.

    Example:
        >>> import numpy as np
        >>> labels = np.repeat(np.arange(20), 5)
        >>> points = np.eye(20)[labels] + 0.1 * np.random.default_rng(0).normal(size=(100, 20))
        >>> curve = size_curve(points, labels, [10])
        >>> curve.sizes
        (10, 20)
        >>> short, whole = curve.values["MAP@R"]
        >>> short < whole
        True

    Args:
        embeddings: points of the space (q, d), array or tensor; also raw ones on the sphere.
        labels: q labels of any hashable kind.
        sizes: how many dimensions, from 1 to d; the whole is added. None: d and its halves down to 4.
        gallery: points (n, d) to search instead of the other embeddings; needs `gallery_labels`.
        gallery_labels: n labels.
        metrics: which to compute, as for `retrieval_metrics`.
        space: the sphere or Euclidean space.
        resamples: of the intervals.
        seed: of the intervals.
        progress: whether to show a bar.
    """
    check_turnable(space)
    points = _as_matrix(embeddings, "embeddings")
    others = None if gallery is None else _as_matrix(gallery, "gallery")
    dimension = points.shape[1]
    sizes = halved_sizes(dimension) if sizes is None else sizes
    for size in sizes:
        check_range(size, "sizes", 1, dimension)
    if len(set(sizes)) < len(sizes):
        raise DataError(f"A size is named twice: {', '.join(map(str, sizes))}.")
    chosen = tuple(sorted({*map(int, sizes), dimension}))
    results = []
    with Progress("Measuring sizes", len(chosen), progress) as bar:
        for size in chosen:
            near = None if others is None else space.project(others[:, :size])
            results.append(
                retrieval_metrics(
                    space.project(points[:, :size]),
                    labels,
                    gallery=near,
                    gallery_labels=gallery_labels,
                    metrics=metrics,
                    space=space,
                )
            )
            bar.advance(1)
    labels_kept, options = results[-1].labels, {"resamples": resamples, "seed": seed}
    intervals: dict[str, tuple[Interval, ...]] = {}
    losses: dict[str, tuple[tuple[float, float, float], ...]] = {}
    for name, whole in results[-1].per_query.items():
        values = {str(size): result.per_query[name] for size, result in zip(chosen, results, strict=True)}
        lost = {size: whole.astype(np.float64) - value for size, value in values.items()}
        intervals[name] = tuple(class_bootstrap(values, labels_kept, **options).values())
        of_losses = class_bootstrap(lost, labels_kept, **options)
        losses[name] = tuple((float(lost[size].mean()), *of_losses[size]) for size in lost)
    return SizeCurve(chosen, tuple(results), intervals, losses)


def halved_sizes(dimension: int, smallest: int = 4) -> list[int]:
    """A dimension and its halves, rounded down, as long as these are not below `smallest`; ascending."""
    return [*(halved_sizes(dimension // 2, smallest) if dimension // 2 >= smallest else []), dimension]


def _as_matrix(given: Any, what: str) -> Tensor:
    try:
        matrix = torch.as_tensor(given).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"The {what} must be a matrix of numbers, one row for each item ({error}).") from error
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise DataError(f"The {what} must have the shape (items, dimensions), not {tuple(matrix.shape)}.")
    return matrix if matrix.is_floating_point() else matrix.float()
