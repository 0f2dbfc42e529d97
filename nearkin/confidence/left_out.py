"""What the support says of its own points as if their whole class were unknown to it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from nearkin.confidence.estimator import SHOWN, NeighbourEstimator
from nearkin.confidence.probabilities import Prediction
from nearkin.confidence.support import Support
from nearkin.search import exact

_BLOCK = 2**23
"""Distances that exist at once."""

_COPIES = 32
"""How many classes, at the most, are each left out by a copy of the support without it."""

Found = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Places (r,) of some rows, and distances (r, w) and indices (r, w) of these rows' neighbours of other classes."""


def class_left_out(estimator: NeighbourEstimator, rows: np.ndarray, k: int) -> Iterator[tuple[np.ndarray, Prediction]]:
    """Predictions for support points `rows` (n,) by the nearest points of other classes, part by part.

    Of n support points, k neighbours are a share; the same share of what is left without a class of size m is taken,
    `k (n - m) / (n - 1)`, rounded. With all k, a query would be seen to reach farther than an unknown one does.

    Args:
        estimator: fitted to two classes or more.
        rows: which support points.
        k: how many neighbours of all others; one less than the support, or more, takes all.

    Yields:
        Places (r,) in `rows`, and the prediction for these; it keeps at most 200 neighbours and classes of each.
    """
    support = estimator.support_
    sizes = np.bincount(support.codes)
    # A large class would fill most of a list of neighbours, and a copy of the support for every small one is dear.
    large = sizes > max(k, len(support) / _COPIES)
    widths = reduced_k(k, sizes, len(support))
    for searched in (_without_large(support, rows, widths, large), _deeper(support, rows, widths, large, sizes)):
        for places, distances, indices in searched:
            found = estimator.predict_proba(distances, indices).shortened(SHOWN)
            yield places, Prediction(found, distances[:, :SHOWN].copy(), indices[:, :SHOWN].copy())


def reduced_k(k: int, sizes: np.ndarray, points: int) -> np.ndarray:
    """How many neighbours (C,) to take of so many points when a class of each of the sizes (C,) is left out."""
    left = points - sizes
    return np.clip(np.rint(min(k, points - 1) * left / (points - 1)), 1, left).astype(np.int64)


def _without_large(support: Support, rows: np.ndarray, widths: np.ndarray, large: np.ndarray) -> Iterator[Found]:
    """Search for the rows of every large class among the points of the others."""
    for code in np.flatnonzero(large):
        places = np.flatnonzero(support.codes[rows] == code)
        others = np.flatnonzero(support.codes != code)
        width = int(widths[code])
        gallery = support.points[torch.from_numpy(others)]
        for some in _parts(places, width):
            points = support.points[torch.from_numpy(rows[some])]
            near = [part.cpu().numpy() for part in exact(points, gallery, width, space=support.scorer)]
            yield some, near[0], others[near[1]]


def _deeper(
    support: Support, rows: np.ndarray, widths: np.ndarray, large: np.ndarray, sizes: np.ndarray
) -> Iterator[Found]:
    """Search deep enough for the rows of small classes that enough points are left when their own class is dropped."""
    own = support.codes[rows]
    k = int(widths.max())
    places = np.flatnonzero(~large[own])
    places = places[np.argsort(sizes[own[places]], kind="stable")]
    if not len(places):
        return
    for some in _parts(places, k + int(sizes[own[places[-1]]])):
        depth = min(k + int(sizes[own[some[-1]]]), len(support)) - 1
        points = support.points[torch.from_numpy(rows[some])]
        distances, indices = (part.cpu().numpy() for part in support.search(points, depth, rows[some]))
        order = np.argsort(support.positives(rows[some], indices), axis=1, kind="stable")
        wanted = widths[own[some]]
        for width in np.unique(wanted):
            alike = wanted == width
            kept = order[alike, :width]
            near = (np.take_along_axis(part[alike], kept, axis=1) for part in (distances, indices))
            yield some[alike], *near


def _parts(places: np.ndarray, width: int) -> Iterator[np.ndarray]:
    size = max(1, _BLOCK // max(1, width))
    for start in range(0, len(places), size):
        yield places[start : start + size]
