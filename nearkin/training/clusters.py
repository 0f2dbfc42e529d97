"""Clusters: how wide the training classes lie, how far they moved, and how well they follow a known tree.

The radius of a class is the mean distance of its items to their centroid; the drift of a centroid is its distance to
where it was at the validation before. Both are measured in the model's space, on the same items each time.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import NearkinError, RunError
from nearkin.metrics.hierarchy import class_distance_matrix, mean_correlation
from nearkin.objectives import Objective
from nearkin.objectives.proxy.bank import ClassVectors
from nearkin.search import exact
from nearkin.spaces import Space, make_space
from nearkin.storage import replacing
from nearkin.training.batches import TrainingPool

_FILE = "clusters.npz"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, BadZipFile, zlib.error)
_NUMBERS = ("steps", "centroids", "radii", "drift", "accuracy")


@dataclass(frozen=True)
class Clusters:
    """How C training classes lay at T validations.

    Attributes:
        steps: of the validations, ascending, (T,).
        class_names: of the classes, C of them.
        centroids: points of the space at the last two validations, the last one last, (min(T, 2), C, d).
        radii: mean distance of the items of a class to its centroid, (T, C).
        drift: how far each centroid was from where the validation before had it, (max(T - 1, 0), C).
        accuracy: share of the items that are nearest to the centroid of their own class, (T,).
        space: where all this was measured.
    """

    steps: np.ndarray
    class_names: tuple[str, ...]
    centroids: np.ndarray
    radii: np.ndarray
    drift: np.ndarray
    accuracy: np.ndarray
    space: Space

    def before(self, step: int) -> Clusters | None:
        """What was seen before a step; None if nothing was, or if the centroids of that time are no longer known."""
        times = int((self.steps < step).sum())
        later = len(self.steps) - times
        if not times or later >= len(self.centroids):
            return None
        return replace(
            self,
            steps=self.steps[:times],
            centroids=self.centroids[: len(self.centroids) - later],
            radii=self.radii[:times],
            drift=self.drift[: times - 1],
            accuracy=self.accuracy[:times],
        )


class ClusterWatch:
    """Looks at a few items of every training class again and again, and keeps what it saw in the run's directory.

    Args:
        folder: the run's directory.
        pool: the training items and the network.
        space: where embeddings are compared.
        class_names: of the classes 0 ... C - 1.
        items: how many of each class, or all of a class that has fewer.

    Raises:
        RunError: if what is in the directory is damaged, or of other classes or another model.
    """

    def __init__(self, folder: Path, pool: TrainingPool, space: Space, class_names: Sequence[str], items: int) -> None:
        self._folder = folder
        self._pool = pool
        self._space = space
        self._names = tuple(class_names)
        self._positions = pool.draw(0, items)
        # A class with fewer items comes with repeats, which would count twice.
        self._sizes = np.minimum(pool.counts, self._positions.shape[1])
        self._seen = check_clusters(folder, class_names, pool.embedder.dimension)

    def look(self, step: int) -> dict[str, float]:
        """Measure with the current weights, write it down, and return values to log.

        What an earlier run wrote of this step or later ones is dropped: it was not in the checkpoint that it resumed.
        Where that was more than one look, all is dropped, for the centroids of the time are no longer known.

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
        said = {"cluster_radius": float(radii.mean()), "centroid_accuracy": accuracy}
        now = Clusters(
            np.array([step]),
            self._names,
            centroids.numpy()[None],
            radii.numpy()[None],
            np.empty((0, len(self._names)), np.float32),
            np.array([accuracy]),
            self._space,
        )
        seen = None if self._seen is None else self._seen.before(step)
        if seen is not None:
            now = _after(seen, now)
            said["centroid_drift"] = float(now.drift[-1].mean())
        _write(self._folder, now)
        self._seen = now
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


def check_clusters(folder: Path, class_names: Sequence[str], dimension: int) -> Clusters | None:
    """What an earlier training left in the directory; None if nothing.

    Args:
        folder: the run's directory.
        class_names: of the training classes, in their order.
        dimension: of the model's embeddings.

    Raises:
        RunError: if it is damaged, or of other classes or another model.
    """
    found = read_clusters(folder)
    if found is not None and (found.class_names != tuple(class_names) or found.centroids.shape[2] != dimension):
        raise RunError(f"{folder / _FILE} is of other classes or another model: remove it, and resume again.")
    return found


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
            names, space = stored["class_names"], make_space(**json.loads(str(stored["space"])))
            if names.ndim != 1 or names.dtype.kind != "U":
                raise ValueError(f"class names of type {names.dtype} and shape {names.shape}")
            numbers: dict[str, Any] = {name: stored[name] for name in _NUMBERS}
        clusters = Clusters(class_names=tuple(names.tolist()), space=space, **numbers)
        _check(clusters)
    except (*_UNREADABLE, NearkinError) as error:  # the latter of the space
        raise RunError(f"{path} is damaged: remove it; a resumed run begins another.") from error
    return clusters


def _check(clusters: Clusters) -> None:
    """Raise ValueError unless types, shapes and values are as `_write` leaves them."""
    steps, *numbers = (getattr(clusters, name) for name in _NUMBERS)
    times, classes = steps.size, len(clusters.class_names)
    shapes = (steps.shape, *(part.shape for part in numbers))
    if clusters.centroids.ndim != 3 or shapes != (
        (times,),
        (min(times, 2), classes, clusters.centroids.shape[2]),
        (times, classes),
        (times - 1, classes),
        (times,),
    ):
        raise ValueError(f"shapes {shapes}")
    if steps.dtype.kind not in "iu" or any(part.dtype.kind != "f" for part in numbers):
        raise ValueError(f"types {[part.dtype for part in (steps, *numbers)]}")
    if (steps[1:] <= steps[:-1]).any() or not all(np.isfinite(part).all() for part in numbers):
        raise ValueError("steps that do not ascend, or values that are not finite")


def _after(seen: Clusters, now: Clusters) -> Clusters:
    """What was seen, and what is seen now."""
    seen = replace(seen, centroids=seen.centroids[-1:])
    x, y = (torch.from_numpy(clusters.centroids[-1]).unsqueeze(-2) for clusters in (now, seen))
    now = replace(now, drift=now.space.distance(x, y)[..., 0, 0].numpy()[None])
    both: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in (seen, now)]) for name in _NUMBERS}
    return replace(now, **both)


def _write(folder: Path, clusters: Clusters) -> None:
    numbers = {name: getattr(clusters, name) for name in _NUMBERS}
    names, space = np.array(clusters.class_names), json.dumps(clusters.space.to_dict())
    with replacing(folder / _FILE) as temporary, open(temporary, "wb") as handle:
        np.savez(handle, class_names=names, space=space, **numbers)


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
        pool: TrainingPool,
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
        """`MC_prototypes`, and `MC_proxies` where there are some, with the current weights.

        Nothing where the embeddings are not finite, or where no row of a matrix can be ranked.
        """
        points = self._space.project(self._pool.embed(self._positions))
        found = {"MC_prototypes": self._space.mean(points)}
        if isinstance(self._loss, ClassVectors):
            found["MC_proxies"] = self._loss.class_vectors()
        values = {
            name: mean_correlation(self._tree, class_distance_matrix(vectors.cpu(), self._space)).value
            for name, vectors in found.items()
            if vectors.isfinite().all()
        }
        return {name: value for name, value in values.items() if math.isfinite(value)}
