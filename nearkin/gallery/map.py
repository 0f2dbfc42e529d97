"""The gallery as a map: items in the plane by t-SNE, near ones near each other, and queries placed among them."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.gallery.store import GalleryStore
from nearkin.gallery.values import MapPoint
from nearkin.search import as_vectors, exact

MOST_POINTS = 2000
"""Points that are laid out together; more are placed among these."""

_COMPONENTS = 50
_PERPLEXITY = 30.0
_STEPS = 500
_FEW = 4
"""So many points or fewer lie where their first two components are."""

_NEAR = 5
_SHARPNESS = 8
"""With which power nearness counts: a query between two far parts of the map belongs to the nearer one."""

_SEED = 0


@dataclass(frozen=True, eq=False)
class Projection:
    """Points in the plane and the vectors they stand for.

    Attributes:
        points: both coordinates in [0, 1], float64 (n, 2).
        vectors: float32 (m, d), those that were laid out together.
        laid_out: which of the n points these are (m,).
    """

    points: np.ndarray
    vectors: np.ndarray = field(repr=False)
    laid_out: np.ndarray = field(repr=False)

    def place(self, vector: Any) -> tuple[float, float]:
        """About where a vector (d,) lies: the mean of its nearest points, weighted by how near they are.

        This is no more than a hint: a map cannot show a point that is like nothing in it. An empty map has its middle.
        """
        rows = as_vectors(np.asarray(vector)[None] if not hasattr(vector, "detach") else vector[None], "vector")
        if len(self.vectors) and rows.shape[1] != self.vectors.shape[1]:
            raise DataError(
                f"The vector has {rows.shape[1]} numbers and those of the map have {self.vectors.shape[1]}: embed both "
                "with the same model."
            )
        (found,) = _placed(rows.cpu().numpy(), self.vectors, self.points[self.laid_out])
        return float(found[0]), float(found[1])


def project(vectors: Any) -> Projection:
    """Lay vectors (n, d) out in the plane: principal components, then t-SNE; the same vectors give the same map.

    Of more than 2,000 vectors, as many are laid out and the others placed among them.
    """
    if hasattr(vectors, "__len__") and not isinstance(vectors, str) and len(vectors) == 0:
        return Projection(np.empty((0, 2)), np.empty((0, 0), np.float32), np.empty(0, np.int64))
    rows = as_vectors(vectors, "vectors").cpu().numpy().astype(np.float32, copy=False)
    laid_out = np.arange(len(rows))
    if len(rows) > MOST_POINTS:
        laid_out = np.sort(np.random.default_rng(_SEED).choice(len(rows), MOST_POINTS, replace=False))
    plane = _scaled(_lay_out(rows[laid_out]))
    points = plane
    if len(laid_out) < len(rows):
        points = _placed(rows, rows[laid_out], plane)
        points[laid_out] = plane
    return Projection(points, rows[laid_out], laid_out)


def _lay_out(vectors: np.ndarray) -> np.ndarray:
    """Places (n, 2) of vectors (n, d), in no particular scale."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    # One thread, so that sums are always made in the same order.
    with threadpool_limits(1):
        sides, values, axes = np.linalg.svd(centred, full_matrices=False)
        # Which way an axis points is a matter of chance: its largest part is to be positive.
        signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])
        reduced = (sides * (values * np.where(signs == 0, 1, signs)))[:, :_COMPONENTS]
        if values[0] <= 1e-6 * max(1.0, float(np.abs(vectors).max())):
            return np.zeros((len(vectors), 2))
        start = np.pad(reduced[:, :2], ((0, 0), (0, max(0, 2 - reduced.shape[1]))))
        if len(vectors) <= _FEW:
            return start
        start = (1e-4 * start / start[:, 0].std()).astype(np.float32)
        perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
        # The name that this version of scikit-learn has for the number of steps.
        steps = "max_iter" if "max_iter" in TSNE.__init__.__code__.co_varnames else "n_iter"
        layout = TSNE(perplexity=perplexity, init=start, random_state=_SEED, n_jobs=1, **{steps: _STEPS})
        return layout.fit_transform(reduced.astype(np.float32)).astype(np.float64)


def _scaled(plane: np.ndarray) -> np.ndarray:
    """Places (n, 2) moved into the unit square, both axes by one scale."""
    low, high = plane.min(axis=0), plane.max(axis=0)
    size = float((high - low).max())
    if not np.isfinite(size) or size == 0:
        return np.full(plane.shape, 0.5)
    return np.clip((plane - (low + high) / 2) / size + 0.5, 0, 1)


def _placed(queries: np.ndarray, vectors: np.ndarray, plane: np.ndarray) -> np.ndarray:
    """Where queries (q, d) lie among vectors (m, d) with places (m, 2)."""
    if not len(vectors):
        return np.full((len(queries), 2), 0.5)
    gaps, near = (found.numpy() for found in exact(queries, vectors, min(_NEAR, len(vectors)), space="euclidean"))
    # A query that is one of the vectors lies where that one does.
    weights = np.where(gaps == 0, 1.0, (gaps[:, :1] / np.where(gaps == 0, 1.0, gaps).astype(np.float64)) ** _SHARPNESS)
    return (weights[:, :, None] * plane[near]).sum(axis=1) / weights.sum(axis=1, keepdims=True)


class GalleryMap:
    """A map of a store, kept until the store changes.

    Args:
        store: where the items are.
    """

    def __init__(self, store: GalleryStore) -> None:
        self.store = store
        self._making = Lock()
        self._made: tuple[tuple[int, int], list[MapPoint], Projection] | None = None

    def made(self, limit: int) -> tuple[list[MapPoint], Projection]:
        """Items in the plane, a sample if there are more than `limit`, and what places others among them."""
        with self._making:
            state = (self.store.generation, limit)
            if self._made is None or self._made[0] != state:
                sample = self.store.sample(limit, _SEED)
                projection = project(sample.vectors)
                points = [
                    MapPoint(item.id, item.label, float(x), float(y))
                    for item, (x, y) in zip(self.store.items(sample.keys), projection.points, strict=True)
                    if item is not None
                ]
                self._made = (state, points, projection)
            return self._made[1], self._made[2]
