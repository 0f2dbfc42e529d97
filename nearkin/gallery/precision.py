"""What a smaller form of the vectors costs: neighbours that are lost, and retrieval before and after.

The stored vectors are rounded and the queries are not, as in a gallery. It has to be asked before, or of a gallery in
float32: afterwards nobody knows what the vectors were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.gallery.checks import labels_of, points_of_space, vector_rows
from nearkin.gallery.dtypes import check_dtype, rounded, row_bytes
from nearkin.metrics import class_bootstrap, retrieval_metrics
from nearkin.progress import Progress
from nearkin.search import exact
from nearkin.search.scan import true_distances
from nearkin.spaces import Space, make_space

NEIGHBOURS = (1, 10)
"""The k of recall@k."""

METRICS = ("MAP@R", "P@1")
_TIE = 1e-6  # relative; what is as far as the last true neighbour is as good


@dataclass(frozen=True)
class MetricChange:
    """A metric before and after.

    Attributes:
        value: with the rounded vectors.
        difference: from float32, the mean over the same queries.
        low: lower end of its 95 % interval, by drawing classes and queries anew.
        high: upper end.
    """

    value: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class PrecisionLoss:
    """What one form of the vectors costs.

    Attributes:
        dtype: the form.
        bytes: of a stored vector.
        recall: the share of the k nearest by float32 that are still among the k nearest, by k.
        metrics: MAP@R and P@1, if there are labels to measure them by.
        queries: how many items were asked for their neighbours.
        items: among how many.
    """

    dtype: str
    bytes: int
    recall: dict[int, float]
    metrics: dict[str, MetricChange] = field(default_factory=dict)
    queries: int = 0
    items: int = 0


def precision_loss(
    vectors: Any,
    labels: Any = None,
    *,
    space: str | Space = "sphere",
    dtypes: Sequence[str] = ("float16", "int8"),
    queries: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> list[PrecisionLoss]:
    """What it costs to store vectors in smaller forms; float32 comes first, as what the others are compared with.

    Args:
        vectors: (n, d), eleven or more.
        labels: as in `Gallery.add`; None: recall alone.
        space: how they are compared.
        dtypes: the forms.
        queries: how many of the vectors, drawn at random, are asked for their neighbours among all others.
        seed: of that draw.
        progress: show a progress bar.

    Raises:
        DataError: there are too few vectors, or a form is none.
    """
    where = make_space(space) if isinstance(space, str) else space
    for dtype in dtypes:
        check_dtype(dtype, where.to_dict())
    points = points_of_space(where, vector_rows(vectors, None))
    deepest = max(NEIGHBOURS)
    if len(points) <= deepest:
        raise DataError(f"{deepest} neighbours are looked for: give more than {deepest} vectors, not {len(points)}.")
    if queries < 1:
        raise DataError(f"`queries` must be at least 1, not {queries}.")
    asked = np.sort(np.random.default_rng(seed).permutation(len(points))[:queries])
    names = np.array(labels_of(labels, len(points)), object)
    true = exact(points[asked], points, deepest, space=where, exclude=asked)[0].numpy()
    limits = true + _TIE * np.abs(true)
    found: list[PrecisionLoss] = []
    usual: dict[str, np.ndarray] = {}
    forms = list(dict.fromkeys(("float32", *dtypes)))
    with Progress("Comparing", len(forms), progress) as bar:
        for dtype in forms:
            stored = rounded(points, dtype)
            near = exact(points[asked], stored, deepest, space=where, exclude=asked)[1].numpy()
            values, of = _retrieval(where, points, stored, names, asked)
            usual = usual or values
            size = row_bytes(dtype, points.shape[1])
            distances = true_distances(where, points[asked], points, near)
            shares = {k: float((distances[:, :k] <= limits[:, k - 1 : k]).sum(axis=1).mean() / k) for k in NEIGHBOURS}
            changes = {}
            for name in values:
                differences = values[name].astype(np.float64) - usual[name]
                low, high = class_bootstrap(differences, of)
                changes[name] = MetricChange(float(values[name].mean()), float(differences.mean()), low, high)
            found.append(PrecisionLoss(dtype, size, shares, changes, len(asked), len(points)))
            bar.advance()
    return found


def _retrieval(
    space: Space, points: np.ndarray, stored: np.ndarray, names: np.ndarray, asked: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The metrics of every query that has another item of its label to find, and the labels of these queries."""
    labelled = np.flatnonzero(names != None)  # noqa: E711 - an array of objects
    place = np.full(len(points), -1)
    place[labelled] = np.arange(len(labelled))
    chosen = asked[place[asked] >= 0]
    classes, sizes = np.unique(names[labelled].astype(str), return_counts=True)
    if not np.isin(names[chosen].astype(str), classes[sizes > 1]).any():
        return {}, np.empty(0, object)
    result = retrieval_metrics(
        points[chosen],
        names[chosen],
        gallery=stored[labelled],
        gallery_labels=names[labelled],
        metrics=METRICS,
        space=space,
        exclude=place[chosen],
    )
    return dict(result.per_query), np.asarray(result.labels)
