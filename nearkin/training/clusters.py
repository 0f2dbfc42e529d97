"""Clusters: how wide the training classes lie, and how far their centroids moved, at each validation.

The radius of a class is the mean distance of its items to their centroid; the drift of a centroid is its distance to
where it was at the validation before. Both are measured in the model's space, on the same items each time.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import NearkinError, RunError
from nearkin.search import exact
from nearkin.spaces import Space, make_space
from nearkin.storage import replacing
from nearkin.training.schedules.pool import Pool

_FILE = "clusters.npz"


@dataclass(frozen=True)
class Clusters:
    """How C training classes lay at T validations.

    Attributes:
        steps: of the validations, ascending, (T,).
        class_names: of the classes, C of them.
        centroids: points of the space, (T, C, d).
        radii: mean distance of the items of a class to its centroid, (T, C).
        accuracy: share of the items that are nearest to the centroid of their own class, (T,).
        space: where all this was measured.
    """

    steps: np.ndarray
    class_names: tuple[str, ...]
    centroids: np.ndarray
    radii: np.ndarray
    accuracy: np.ndarray
    space: Space

    @property
    def drift(self) -> np.ndarray:
        """How far each centroid was from where the validation before had it, (T - 1, C)."""
        return _between(self.space, self.centroids[1:], self.centroids[:-1])


class ClusterWatch:
    """Looks at a few items of every training class again and again, and keeps what it saw in the run's directory.

    Args:
        folder: the run's directory.
        pool: the training items and the network.
        space: where embeddings are compared.
        class_names: of the classes 0 ... C - 1.
        items: how many of each class, or all of a class that has fewer.
    """

    def __init__(self, folder: Path, pool: Pool, space: Space, class_names: Sequence[str], items: int) -> None:
        self._folder = folder
        self._pool = pool
        self._space = space
        self._names = tuple(class_names)
        self._positions = pool.draw(0, items)
        # A class with fewer items comes with repeats, which would count twice.
        self._sizes = np.minimum(pool.counts, self._positions.shape[1])

    def look(self, step: int) -> dict[str, float]:
        """Measure with the weights of now, write it down, and return what the log shall say of it.

        What an earlier run wrote of this step or later ones is dropped: it was not in the checkpoint that it resumed.

        Args:
            step: steps done.

        Returns:
            `cluster_radius`, the mean over the classes; `centroid_drift`, likewise, from the second look on;
            `centroid_accuracy`. Nothing, and nothing is written, where the embeddings are not finite.
        """
        points = self._space.project(self._pool.embed(self._positions)).cpu()
        if not bool(points.isfinite().all()):
            return {}
        centroids, radii = self._measure(points)
        accuracy = self._accuracy(points, centroids)
        seen = self._seen_before(step)
        clusters = Clusters(
            np.append(seen.steps, step),
            self._names,
            np.concatenate([seen.centroids, centroids.numpy()[None]]),
            np.concatenate([seen.radii, radii.numpy()[None]]),
            np.append(seen.accuracy, accuracy),
            self._space,
        )
        _write(self._folder, clusters)
        said = {"cluster_radius": float(radii.mean()), "centroid_accuracy": accuracy}
        if len(seen.steps):
            said["centroid_drift"] = float(_between(self._space, *clusters.centroids[-2:]).mean())
        return said

    def _measure(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Centroids (C, d) and radii (C,) of points (C, n, d), classes of one size together."""
        centroids, radii = points.new_empty(len(points), points.shape[2]), points.new_empty(len(points))
        for size in np.unique(self._sizes):
            classes = torch.from_numpy(np.flatnonzero(self._sizes == size))
            own = points[classes, :size]
            middle = self._space.mean(own)
            centroids[classes] = middle
            radii[classes] = self._space.distance(own, middle.unsqueeze(1)).mean(dim=(1, 2))
        return centroids, radii

    def _accuracy(self, points: Tensor, centroids: Tensor) -> float:
        """Share of the items, of points (C, n, d), that are nearest to the centroid of their own class."""
        counted = torch.from_numpy(np.arange(points.shape[1]) < self._sizes[:, None])
        nearest = exact(points[counted], centroids, 1, space=self._space)[1][:, 0]
        return float((nearest == torch.where(counted)[0]).double().mean())

    def _seen_before(self, step: int) -> Clusters:
        """What was written of earlier steps."""
        found = read_clusters(self._folder)
        classes, dimension = len(self._names), self._pool.embedder.dimension
        if found is None:
            nothing = np.empty((0, classes, dimension), np.float32)
            return Clusters(np.empty(0, np.int64), self._names, nothing, nothing[:, :, 0], np.empty(0), self._space)
        if found.class_names != self._names or found.centroids.shape[2] != dimension:
            raise RunError(f"{self._folder / _FILE} is of other classes or another model: remove it, and resume again.")
        kept = found.steps < step
        return Clusters(
            found.steps[kept],
            self._names,
            found.centroids[kept],
            found.radii[kept],
            found.accuracy[kept],
            self._space,
        )


def read_clusters(folder: str | Path) -> Clusters | None:
    """What training saw of its classes at each validation; None in a directory of a run that did not look.

    Args:
        folder: the run's directory.

    Raises:
        RunError: if the file cannot be read.
    """
    path = Path(folder) / _FILE
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            clusters = Clusters(
                stored["steps"],
                tuple(stored["class_names"].tolist()),
                stored["centroids"],
                stored["radii"],
                stored["accuracy"],
                make_space(**json.loads(str(stored["space"]))),
            )
        _check_shapes(clusters)
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error, NearkinError) as error:
        raise RunError(f"{path} is damaged: remove it; a run that goes on begins another.") from error
    return clusters


def _check_shapes(clusters: Clusters) -> None:
    times, classes = len(clusters.steps), len(clusters.class_names)
    shapes = (clusters.steps.shape, clusters.radii.shape, clusters.accuracy.shape, clusters.centroids.shape)
    if shapes != ((times,), (times, classes), (times,), (times, classes, *clusters.centroids.shape[2:3])):
        raise ValueError(f"shapes {shapes}")


def _write(folder: Path, clusters: Clusters) -> None:
    with replacing(folder / _FILE) as temporary, open(temporary, "wb") as handle:
        np.savez(
            handle,
            steps=clusters.steps,
            class_names=np.array(clusters.class_names),
            centroids=clusters.centroids,
            radii=clusters.radii,
            accuracy=clusters.accuracy,
            space=json.dumps(clusters.space.to_dict()),
        )


def _between(space: Space, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Distances (...) between points (..., d) and (..., d), one by one."""
    x, y = (torch.from_numpy(points).unsqueeze(-2) for points in (left, right))
    distances: np.ndarray = space.distance(x, y)[..., 0, 0].numpy()
    return distances
