"""The graph of faiss over the first slots, and the coordinates in which they enter it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nearkin.errors import DataError, require
from nearkin.search.ann.faiss_index import reproducible
from nearkin.spaces import Euclidean, LipschitzBall, Space, Sphere

NEIGHBOURS = 32  # of a node, twice as many on the ground level; 16 missed more where tight and loose classes mix
BUILDING = 128  # efConstruction
SEARCHING = 128  # efSearch; at least twice as many as are proposed


@dataclass(frozen=True, eq=False)
class Frame:
    """Coordinates in which half precision tells points apart.

    Attributes:
        origin: what is subtracted, float64 (d,).
        scale: what the rest is multiplied by.
        directions: whether lengths are taken away first.
    """

    origin: np.ndarray
    scale: float
    directions: bool

    @classmethod
    def of(cls, space: Space, vectors: np.ndarray) -> Frame:
        """The frame for vectors like these (n, d): the mean for origin, and a scale that brings them within 1."""
        if isinstance(space, Sphere):
            return cls(np.zeros(vectors.shape[1]), 1.0, True)
        origin = vectors.mean(axis=0, dtype=np.float64)
        reach = float(np.abs(vectors - origin).max())
        return cls(origin, 2.0 ** -float(np.frexp(reach)[1]), False)

    def enter(self, vectors: np.ndarray) -> np.ndarray:
        """Coordinates float32 (n, d) of vectors (n, d), within the range of half precision."""
        wide = (vectors.astype(np.float64) - self.origin) * self.scale
        if self.directions:
            length = np.linalg.norm(wide, axis=1, keepdims=True)
            wide /= np.where(length == 0, 1, length)
        return np.clip(wide, -60_000, 60_000).astype(np.float32)


class Graph:
    """Slots 0, 1, 2, ... as nodes of a graph, kept in half precision.

    Args:
        frame: in which coordinates points enter.
        index: the graph of faiss; None: an empty one.
    """

    def __init__(self, frame: Frame, index: Any | None = None) -> None:
        self._kit = require("faiss", "faiss")
        self.frame = frame
        self.index = self._new(len(frame.origin)) if index is None else index

    @property
    def covered(self) -> int:
        """How many slots it has."""
        return int(self.index.ntotal)

    def add(self, vectors: np.ndarray) -> None:
        """Add the next slots, float32 (n, d); nobody may walk meanwhile."""
        points = self.frame.enter(vectors)
        with reproducible(self._kit):
            if not self.index.is_trained:
                self.index.train(points)
            self.index.add(points)

    def walk(self, queries: np.ndarray, width: int) -> np.ndarray:
        """About the nearest slots (q, width) of queries (q, d), -1 where the walk found no more.

        Nothing of the graph is set, so that many threads may walk at once.
        """
        effort = self._kit.SearchParametersHNSW(efSearch=max(SEARCHING, 2 * width))
        # faiss.contrib.torch_utils, which others import, puts a `search` without parameters in place of this one.
        search = getattr(self.index, "search_numpy", self.index.search)
        return np.asarray(search(self.frame.enter(queries), width, params=effort)[1])

    def _new(self, dimension: int) -> Any:
        index = self._kit.IndexHNSWSQ(dimension, self._kit.ScalarQuantizer.QT_fp16, NEIGHBOURS, self._kit.METRIC_L2)
        index.hnsw.efConstruction = BUILDING
        index.hnsw.rng = self._kit.RandomGenerator(0)
        return index


def check_space(space: Space) -> None:
    """Refuse a space that no graph can search."""
    if space.name == "learned":
        raise DataError(
            "A graph cannot search by a learned similarity, which is no distance: use index='exact', or 'auto', which "
            "is always exact for it."
        )
    if type(space) not in (Sphere, Euclidean, LipschitzBall):
        raise DataError(
            f"A graph cannot search the space '{space.name}': it knows the sphere, Euclidean space and the Lipschitz "
            "ball; use the exact index instead."
        )
