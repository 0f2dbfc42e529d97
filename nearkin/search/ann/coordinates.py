"""Vectors whose order under faiss's own metrics is the order of a space."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.errors import DataError
from nearkin.search.scorers import Cosine, InnerProduct, Scorer
from nearkin.spaces import Euclidean, EuclideanOrder, LipschitzBall, Sphere

_ROWS = 2**14


class Coordinates:
    """How points enter faiss: by squared Euclidean distance, or by inner product for scorers that are one.

    Euclidean coordinates have the gallery's mean for origin, and all are scaled by a power of two: single precision
    then tells points far from zero apart, and squares neither overflow nor vanish.

    Args:
        gallery: points (n, d) to be searched.
        space: a space or scorer.

    Raises:
        DataError: faiss has no metric that orders as this space does.
    """

    def __init__(self, gallery: Tensor, space: Scorer) -> None:
        self.by_product = isinstance(space, Cosine | InnerProduct)
        if not (self.by_product or _unweighted(space, gallery[:1])):
            raise DataError(
                f"faiss cannot search {_name(space)}: it knows the sphere, Euclidean space, the Lipschitz ball, cosine "
                "and inner product; use nearkin.search.exact instead."
            )
        self._space = space
        self._origin, self._scale = torch.zeros_like(gallery[0], dtype=torch.float64), 1.0
        blocks = gallery.split(_ROWS)
        if not self.by_product:
            self._origin = torch.stack([self._flatten(block).sum(dim=0) for block in blocks]).sum(dim=0) / len(gallery)
        reach = max(float((self._flatten(block) - self._origin).abs().amax()) for block in blocks)
        self._scale = 2.0 ** -float(np.frexp(reach)[1])
        self._longest = max(float(torch.linalg.vector_norm(self._enter(block), dim=1).amax()) for block in blocks)

    def enter(self, points: Tensor) -> np.ndarray:
        """Coordinates (n, d) in float32 of points (n, d)."""
        parts = [self._enter(block).cpu().numpy() for block in points.split(_ROWS)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def rounding(self, coordinates: np.ndarray) -> np.ndarray:
        """By how much (q,) faiss's numbers for these queries (q, d) can be off."""
        lengths = np.linalg.norm(coordinates, axis=1) + self._longest
        return (coordinates.shape[1] + 8) * np.finfo(np.float32).eps * lengths**2

    def distances(self, scores: np.ndarray) -> np.ndarray:
        """Distances of the space from faiss's squared distances or products, of any shape."""
        if isinstance(self._space, InnerProduct):
            return -scores / self._scale**2
        if isinstance(self._space, Cosine):
            return 1 - scores / self._scale**2
        lengths = np.sqrt(np.maximum(scores, 0)) / self._scale
        if isinstance(self._space, Sphere) and self._space.metric == "angle":
            return 2 * np.arcsin(np.minimum(lengths / 2, 1))
        if isinstance(self._space, Sphere | Euclidean | LipschitzBall):
            return lengths
        raise DataError(f"The distances of {_name(self._space)} need the vectors: keep exact_distances=True.")

    def _flatten(self, points: Tensor) -> Tensor:
        points = points.double()
        if isinstance(self._space, Cosine):
            return normalize(points, dim=1)
        if isinstance(self._space, EuclideanOrder):
            return self._space.as_euclidean(points)[0]
        return points

    def _enter(self, points: Tensor) -> Tensor:
        return ((self._flatten(points) - self._origin) * self._scale).float()


def _unweighted(space: Scorer, points: Tensor) -> bool:
    return isinstance(space, EuclideanOrder) and space.as_euclidean(points)[1] is None


def _name(space: Any) -> str:
    return f"the space '{space.name}'" if hasattr(space, "name") else f"an object of type {type(space).__name__}"
