"""Retrieval against a class tree: how near in the tree are the classes of what lies near a query?

The similarity of two classes at tree distance d is `s = 1 - T(d)^2 / 2` with `T(d) = sqrt(2) d / (1 + d)`: 1 for the
same class, falling towards 0. With s_1, s_2, ... those of the query's neighbours, and b_1 >= b_2 >= ... those of all
other items in the best order:

- HS@k: `(s_1 + ... + s_k) / (b_1 + ... + b_k)`;
- AHS@K: the area under HS@1 ... HS@K by the trapezoid rule, over K - 1, so that the best order has 1.

Reference: Barz and Denzler 2019 (as hierarchical precision); Kim 2023, article IV.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nearkin.errors import DataError
from nearkin.metrics.checks import ascending_ks, class_ids, symmetric_distances
from nearkin.metrics.hierarchy import HierarchicalResult
from nearkin.search import as_pair, as_scorer, memory_bytes
from nearkin.search.brute_force import Order, key_indices, key_scores, resolve_ties, search_candidates
from nearkin.spaces import Sphere
from nearkin.spaces.mds import chord_targets

_SPHERE = Sphere()
_CLOSE, _FEW_CLOSE = 4, 1024
_SPARE = 32
"""Candidates beyond those asked for that are looked at first: mostly enough to hold all that rounding confuses."""


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
    curves = _Curves(Order(points, points, scorer), codes, similarities, ks, span)
    curves.search(memory)
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

    def search(self, memory: int) -> None:
        """One pass over the scores."""
        rows = np.arange(len(self._codes))
        search_candidates(self._order, rows, np.full(len(rows), self._depth), rows, self._take, memory)

    def _take(self, rows: np.ndarray, keys: np.ndarray) -> None:
        """Candidates of some queries, from any thread."""
        if len(rows) == 0:
            return
        keys, scores, doubt = self._needed(rows, keys)
        near = key_indices(keys)
        similar = self._similar(rows, near)
        if self._order.by_product:
            close = (scores[:, :-1] <= scores[:, 1:] + doubt) & (scores[:, 1:] > -np.inf)
            matters = close & (similar[:, :-1] != similar[:, 1:])
            # Of a model that maps everything to one point all is close: that is not worth a second look.
            matters &= (np.count_nonzero(close, axis=1) <= _CLOSE * self._depth + _FEW_CLOSE)[:, None]
            if matters.any():
                near = near.copy()
                resolve_ties(self._order, rows, near, close, matters)
                similar = self._similar(rows, near)
        self._write(rows, similar[:, : self._depth])

    def _needed(self, rows: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The keys (b, c) that rounding could put among the nearest, their scores, and what these may be off (b, 1)."""
        doubt = 2 * self._order.tolerance(torch.from_numpy(rows).to(self._order.queries.device)).cpu().numpy()[:, None]
        few = keys[:, : self._depth + _SPARE]
        last = key_scores(few[:, self._depth - 1 : self._depth])
        if (key_scores(few[:, -1:]) >= last - doubt).any():
            few = keys
        few = np.ascontiguousarray(few)
        return few, key_scores(few), doubt

    def _similar(self, rows: np.ndarray, near: np.ndarray) -> np.ndarray:
        """The similarity (b, c) of queries (b,) to the classes of items (b, c)."""
        return self._similarities.take(self._starts[rows][:, None] + self._short_codes[near])

    def _write(self, rows: np.ndarray, similar: np.ndarray) -> None:
        own = self._codes[rows]
        for k in self._ks:
            self.values[f"HS@{k}"][rows] = similar[:, :k].sum(axis=1) / self._best[own, k - 1]
        if self._span is not None:
            area = np.einsum("ij,ij->i", similar[:, : self._span], self._weights[own])
            self.values[f"AHS@{self._span}"][rows] = area


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
