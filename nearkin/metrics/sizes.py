"""What is left of retrieval when embeddings are cut short: metrics against the number of dimensions kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nearkin.errors import DataError
from nearkin.metrics.intervals import Interval, class_bootstrap
from nearkin.metrics.retrieval import RetrievalResult, retrieval_metrics
from nearkin.progress import Progress
from nearkin.spaces import Sphere
from nearkin.spaces.principal import check_turnable

_SPHERE = Sphere()
_METRICS = ("MAP@R", "P@1")
_SMALLEST = 4


@dataclass(frozen=True, eq=False)
class SizeCurve:
    """Metrics of the first dimensions of embeddings, by how many.

    Attributes:
        sizes: how many dimensions, ascending; the last is the whole embedding.
        results: the retrieval of each size.
        intervals: metric to the 95 % interval of each size, with classes and queries drawn anew.
        losses: metric to what each size loses against the whole: the difference and its interval, from the same
            queries; below zero the shorter embedding is better.
    """

    sizes: tuple[int, ...]
    results: tuple[RetrievalResult, ...]
    intervals: dict[str, tuple[Interval, ...]]
    losses: dict[str, tuple[tuple[float, float, float], ...]]

    primary = "MAP@R"

    @property
    def values(self) -> dict[str, tuple[float, ...]]:
        """Metric to the value of each size."""
        return {name: tuple(result.values[name] for result in self.results) for name in self.intervals}

    def smallest_within(self, loss: float = 0.01, metric: str = "MAP@R") -> int:
        """The smallest size that loses no more than this, nor do the larger ones, by the upper ends of the intervals.

        Args:
            loss: of a share of 1; 0.01 is a point.
            metric: by which.
        """
        chosen = self.sizes[-1]
        for size, (_, _, high) in reversed(list(zip(self.sizes, self.losses[metric], strict=True))):
            if high > loss:
                break
            chosen = size
        return chosen

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "sizes": list(self.sizes),
            "values": {name: list(values) for name, values in self.values.items()},
            "intervals": {name: [list(pair) for pair in pairs] for name, pairs in self.intervals.items()},
            "loss against the whole": {name: [list(row) for row in rows] for name, rows in self.losses.items()},
        }


def size_curve(
    embeddings: Any,
    labels: Any,
    sizes: Sequence[int] | None = None,
    *,
    gallery: Any | None = None,
    gallery_labels: Any | None = None,
    metrics: Sequence[str] = _METRICS,
    space: Any = _SPHERE,
    resamples: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> SizeCurve:
    """Retrieval by the first dimensions of embeddings, for several sizes, each against what the whole gives.

    For PCA, give what `PrincipalRotation.transform` makes of the embeddings, fitted on other classes: then the first
    dimensions are principal components.

    Example:
        >>> import numpy as np
        >>> labels = np.repeat(np.arange(20), 5)
        >>> points = np.eye(20)[labels] + 0.1 * np.random.default_rng(0).normal(size=(100, 20))
        >>> curve = size_curve(points, labels, [10])
        >>> curve.sizes
        (10, 20)
        >>> short, whole = curve.values["MAP@R"]
        >>> short < whole
        True

    Args:
        embeddings: points of the space (q, d), array or tensor; also raw ones on the sphere.
        labels: q labels of any hashable kind.
        sizes: how many dimensions, from 1 to d; the whole is added. None: d and its halves down to 4.
        gallery: points (n, d) to search instead of the other embeddings; needs `gallery_labels`.
        gallery_labels: n labels.
        metrics: which to compute, as for `retrieval_metrics`.
        space: the sphere or Euclidean space.
        resamples: of the intervals.
        seed: of the intervals.
        progress: whether to show a bar.
    """
    check_turnable(space)
    points = _as_matrix(embeddings, "embeddings")
    others = None if gallery is None else _as_matrix(gallery, "gallery")
    chosen = _as_sizes(sizes, points.shape[1])
    results = []
    with Progress("Measuring sizes", len(chosen), progress) as bar:
        for size in chosen:
            near = None if others is None else space.project(others[:, :size])
            results.append(
                retrieval_metrics(
                    space.project(points[:, :size]),
                    labels,
                    gallery=near,
                    gallery_labels=gallery_labels,
                    metrics=metrics,
                    space=space,
                )
            )
            bar.advance(1)
    labels_kept, options = results[-1].labels, {"resamples": resamples, "seed": seed}
    intervals: dict[str, tuple[Interval, ...]] = {}
    losses: dict[str, tuple[tuple[float, float, float], ...]] = {}
    for name, whole in results[-1].per_query.items():
        values = {str(size): result.per_query[name] for size, result in zip(chosen, results, strict=True)}
        lost = {size: whole.astype(np.float64) - value for size, value in values.items()}
        intervals[name] = tuple(class_bootstrap(values, labels_kept, **options).values())
        of_losses = class_bootstrap(lost, labels_kept, **options)
        losses[name] = tuple((float(lost[size].mean()), *of_losses[size]) for size in lost)
    return SizeCurve(chosen, tuple(results), intervals, losses)


def halved_sizes(dimension: int, smallest: int = _SMALLEST) -> list[int]:
    """A dimension and its halves, rounded down, as long as these are not below `smallest`; ascending."""
    sizes = [dimension]
    while sizes[-1] // 2 >= smallest:
        sizes.append(sizes[-1] // 2)
    return sizes[::-1]


def _as_matrix(given: Any, what: str) -> torch.Tensor:
    try:
        matrix = torch.as_tensor(given).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"The {what} must be a matrix of numbers, one row for each item ({error}).") from error
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise DataError(f"The {what} must have the shape (items, dimensions), not {tuple(matrix.shape)}.")
    return matrix if matrix.is_floating_point() else matrix.float()


def _as_sizes(sizes: Sequence[int] | None, dimension: int) -> tuple[int, ...]:
    if sizes is None:
        return tuple(halved_sizes(dimension))
    for size in sizes:
        whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
        if not whole or not 1 <= size <= dimension:
            raise DataError(
                f"Embeddings of {dimension} dimensions can be cut to whole numbers from 1 to {dimension}, not to "
                f"{size!r}."
            )
    if len(set(sizes)) < len(sizes):
        raise DataError(f"A size is named twice: {', '.join(map(str, sizes))}.")
    return tuple(sorted({*map(int, sizes), dimension}))
