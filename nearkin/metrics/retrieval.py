"""Retrieval: is what lies near a query of its class?

With R the number of items of the query's class that it can find, and hit_i whether its i-th neighbour is one of them:
`P@k = 1/k sum_{i<=k} hit_i`, `R-precision = P@R`, `MAP@R = 1/R sum_{i<=R} P@i hit_i`,
`MAP@k = 1/min(k, R) sum_{i<=k} P@i hit_i`, `MRR = 1 / rank of the first hit`, `Recall@k = any hit_{i<=k}`,
`kNN-Acc = more than half of hit_{i<=k}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nearkin.checks import check_whole
from nearkin.errors import DataError, suggestion
from nearkin.metrics.labels import class_names, label_array, label_codes
from nearkin.search import Reranker, as_exclude, as_pair, as_reranker, as_scorer, exact, memory_bytes
from nearkin.search.brute_force import Order, first_ranks, key_indices, key_scores, resolve_ties, search_candidates
from nearkin.spaces import Sphere

MRR = "MRR"


Compute = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class HitMetric:
    """A metric of a query.

    Args:
        name: what it is called.
        depth: how many neighbours it looks at, given R (b,); whole numbers (b,).
        compute: values (b,) from hits (b, c), R (b,) and how many items (b,) there are to find, c being at least the
            depth or all there is.
    """

    name: str
    depth: Callable[[np.ndarray], np.ndarray]
    compute: Compute


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
        names += [*(f"MAP@{k}" for k in map_at), *(f"Recall@{k}" for k in recall_at), "kNN-Acc"]
    names = _several(names)
    if len(names) == 0:
        raise DataError("No metric requested: name at least one, such as 'MAP@R', or omit `metrics` for all.")
    return [_metric(name, knn) for name in dict.fromkeys(names)]


def _several(given: Any) -> list[Any]:
    """A single one is a list of one."""
    return [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)


def _metric(name: str, knn: int) -> HitMetric:
    fixed = {
        "R-precision": HitMetric(name, lambda total: total, _r_precision),
        "MAP@R": HitMetric(name, lambda total: total, _map_at_r),
        MRR: HitMetric(name, np.ones_like, _reciprocal_rank),
        "kNN-Acc": HitMetric(
            name, lambda total: np.full_like(total, knn), lambda hits, _, there: _majority(hits, np.minimum(there, knn))
        ),
    }
    if name in fixed:
        return fixed[name]
    at = re.fullmatch(r"(P|MAP|Recall)@([1-9][0-9]*)", str(name))
    if at is None:
        known = ["P@1", *fixed, "MAP@10", "Recall@1"]
        raise DataError(f"There is no retrieval metric '{name}'.{suggestion(str(name), known)}")
    k = min(int(at[2]), np.iinfo(np.int32).max)
    compute: dict[str, Compute] = {
        "P": lambda hits, _, there: np.count_nonzero(hits[:, :k], axis=1) / np.minimum(there, k),
        "MAP": lambda hits, total, _: _average_precision(hits[:, :k], np.minimum(total, k)),
        "Recall": lambda hits, *_: np.count_nonzero(hits[:, :k], axis=1) > 0,
    }
    return HitMetric(name, lambda total: np.full_like(total, k), compute[at[1]])


def _r_precision(hits: np.ndarray, total: np.ndarray, _: np.ndarray) -> np.ndarray:
    return np.count_nonzero(_within(hits, total), axis=1) / total


def _map_at_r(hits: np.ndarray, total: np.ndarray, _: np.ndarray) -> np.ndarray:
    return _average_precision(_within(hits, total), total)


def _within(hits: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The hits (b, w) among the first R neighbours, w the largest R or all there is."""
    width = min(hits.shape[1], int(total.max(initial=0)))
    return hits[:, :width] & (np.arange(width) < total[:, None])


def _average_precision(hits: np.ndarray, divisor: np.ndarray) -> np.ndarray:
    found = np.cumsum(hits, axis=1, dtype=np.int32)
    found *= hits
    return np.multiply(found, 1 / np.arange(1, hits.shape[1] + 1)).sum(axis=1) / divisor


def _reciprocal_rank(hits: np.ndarray, *_: np.ndarray) -> np.ndarray:
    """Zero where none of the neighbours is a hit."""
    return np.where(hits.any(axis=1), 1 / (hits.argmax(axis=1) + 1), 0.0)


def _majority(hits: np.ndarray, voters: np.ndarray) -> np.ndarray:
    votes = hits & (np.arange(hits.shape[1]) < voters[:, None])
    return np.count_nonzero(votes, axis=1) > voters // 2


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
        plain: dict[str, Any] = {"values": dict(self.values), "dropped": self.dropped, "queries": len(self.kept)}
        if per_query:
            plain["kept"] = self.kept.tolist()
            plain["labels"] = self.labels.tolist()
            plain["per_query"] = {name: values.tolist() for name, values in self.per_query.items()}
        return plain

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
_PAIRS = 2**22
_SHARE = 50
_CLOSE, _FEW_CLOSE = 4, 1024


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
            Recall@k at the k below, and kNN-Acc. What is not asked for is not searched for.
        recall_at: the k of Recall@k.
        map_at: the k of MAP@k, which divides by `min(k, R)`.
        knn: how many neighbours vote in kNN-Acc; a strict majority must share the query's label (3 of 5).
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
    if (gallery is None) != (gallery_labels is None):
        raise DataError("gallery and gallery_labels go together: pass both or neither.")
    queries, points = as_pair(embeddings, gallery)
    hidden = as_exclude(exclude, len(queries), len(queries if points is None else points), leave_one_out=points is None)
    query_labels = label_array(labels, len(queries))
    if points is None:
        (codes,) = (point_codes,) = label_codes(query_labels)
    else:
        codes, point_codes = label_codes(query_labels, label_array(gallery_labels, len(points), "gallery labels"))
    classes = _Classes(codes, point_codes, hidden)
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
        deepest = np.max([metric.depth(classes.total[kept]) for metric in metrics], axis=0)
        self._depth, self._available = np.minimum(deepest, available), available
        pairs = len(kept) * len(order.gallery)
        self._careful = order.by_product and self._depth.sum() <= max(_PAIRS, pairs // _SHARE)
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
        self._write(self._kept, self._classes.hits(self._kept, near.cpu().numpy()[self._kept]))

    def _take(self, rows: np.ndarray, keys: np.ndarray) -> None:
        """Candidates of some queries, from any thread."""
        if len(rows) == 0:
            return
        near = key_indices(keys)
        hits = self._classes.hits(rows, near)
        if self._careful:
            close = self._close(rows, keys)
            matters = close & (hits[:, :-1] != hits[:, 1:])
            # Of a model that maps everything to one point all is close: that is not worth a second look.
            depth = self._depth[self._place[rows]]
            matters &= (np.count_nonzero(close, axis=1) <= _CLOSE * depth + _FEW_CLOSE)[:, None]
            if matters.any():
                near = near.copy()
                resolve_ties(self._order, rows, near, close, matters)
                hits = self._classes.hits(rows, near)
        self._write(rows, hits[:, : self._depth[self._place[rows]].max()])

    def _close(self, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Whether (b, c - 1) an item and the next may have changed places through rounding."""
        doubt = 2 * self._order.tolerance(torch.from_numpy(rows).to(self._order.queries.device)).cpu().numpy()
        scores = key_scores(keys)
        return (scores[:, :-1] <= scores[:, 1:] + doubt[:, None]) & (scores[:, 1:] > -np.inf)

    def _write(self, rows: np.ndarray, hits: np.ndarray) -> None:
        total, place = self._classes.total[rows], self._place[rows]
        for metric in self._metrics:
            self.values[metric.name][place] = metric.compute(hits, total, self._available[place])
