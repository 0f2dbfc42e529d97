"""How well the training classes lie as a known tree says, at each validation (Kim 2023, article IV, figure 9)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nearkin.data.hierarchy import Hierarchy
from nearkin.metrics.hierarchy import class_distance_matrix, mean_correlation
from nearkin.objectives import Objective
from nearkin.objectives.proxy.protocols import ClassVectors
from nearkin.spaces import Space
from nearkin.training.schedules.pool import Pool


class HierarchyWatch:
    """Compares the distances between prototypes, and between proxies where there are some, with those of a tree.

    Args:
        pool: the training items and the network.
        objective: whose loss may have proxies.
        space: where embeddings are compared.
        hierarchy: the tree.
        class_names: of the classes 0 ... C - 1.
        items: how many of each class make its prototype, or all of a class that has fewer.
    """

    def __init__(
        self,
        pool: Pool,
        objective: Objective,
        space: Space,
        hierarchy: Hierarchy,
        class_names: Sequence[str],
        items: int,
    ) -> None:
        self._pool = pool
        self._loss = objective.loss
        self._space = space
        self._tree = hierarchy.distances(class_names)
        self._positions = pool.draw(0, items)  # a small class comes with repeats, which move its mean little

    @torch.no_grad()
    def look(self, step: int) -> dict[str, float]:
        """`MC_prototypes`, and `MC_proxies` where there are some, with the weights of now.

        Nothing where the embeddings are not finite, or where no row of a matrix can be ranked.
        """
        points = self._space.project(self._pool.embed(self._positions))
        found = {"MC_prototypes": self._space.mean(points)}
        if isinstance(self._loss, ClassVectors):
            found["MC_proxies"] = self._loss.class_vectors()
        values = {name: self._correlation(vectors) for name, vectors in found.items() if vectors.isfinite().all()}
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def _correlation(self, vectors: Tensor) -> float:
        """With the tree, of the distances between vectors (C, d)."""
        return mean_correlation(self._tree, class_distance_matrix(vectors.cpu(), self._space)).value
