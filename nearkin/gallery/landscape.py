"""The gallery as a map: items in the plane, made once for each state of the gallery."""

from __future__ import annotations

from threading import Lock

import numpy as np

from nearkin.gallery.projection import Projection, project
from nearkin.gallery.store import Store
from nearkin.gallery.values import MapPoint

_SEED = 0


class Landscape:
    """A map of a store, kept until the store changes.

    Args:
        store: where the items are.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._making = Lock()
        self._made: tuple[tuple[int, int], list[MapPoint], Projection] | None = None

    def points(self, limit: int) -> list[MapPoint]:
        """Items in the plane; a sample if there are more than `limit`."""
        return self._map(limit)[0]

    def place(self, vector: np.ndarray, limit: int) -> tuple[float, float]:
        """Where a vector (d,) lies among them, about."""
        return self._map(limit)[1].place(vector)

    def _map(self, limit: int) -> tuple[list[MapPoint], Projection]:
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
