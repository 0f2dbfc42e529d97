"""The support: labelled embeddings that queries are compared with, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.confidence.checks import check_whole
from nearkin.errors import DataError
from nearkin.metrics.columns import as_array
from nearkin.metrics.labels import label_array, label_codes
from nearkin.search import Cosine, InnerProduct, Scorer, as_scorer, as_vectors, exact
from nearkin.spaces import Space


@dataclass(frozen=True, eq=False)
class Support:
    """Points with classes.

    Attributes:
        points: (n, d).
        codes: class of each point as an index into `classes`, int32 (n,).
        classes: the names of the classes (C,), sorted if they are strings or whole numbers.
        scorer: how two points are compared.
        source: what made the embeddings, such as a model's fingerprint; None: nobody said.
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
            raise DataError("The support is empty: give at least one embedding with its label.")
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
                "between embeddings of different models mean nothing, so embed both with one."
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
            raise DataError("Neighbours must come nearest first, as a search gives them: sort them by distance.")
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
