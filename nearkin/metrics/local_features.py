"""Local features and attributes: what average pooling does to them, how hulls overlap, what attributes tell of classes.

What average pooling does to local features: nearly a convex combination of prototypes that cover them.
Each local feature goes to its nearest prototype with mass 1/n: the histogram operator. The prototypes weighted by that
histogram (PCC) lie no farther from the mean (GAP) than the features lie from their prototypes, because
|PCC - GAP| = |mean of (v_j - x_j)| <= mean of |v_j - x_j| <= max of |v_j - x_j|.
Reference: Gürbüz 2022, chapter 4; there the square of the left side is bounded, and only in the unit ball.

Zero-shot transfer of attributes: do they say of classes never seen where their embeddings lie? With Z (M, h) the
attribute vectors and Y (d, h) the mean embeddings of one half of the classes, the linear map
`A = Y (Z^T Z + ridge I)^-1 Z^T` predicts the mean embedding `A z` of a class of the other half from its attributes z.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import check_whole, is_real
from nearkin.errors import DataError
from nearkin.metrics.checks import as_plain
from nearkin.metrics.intervals import Interval, percentile_interval
from nearkin.metrics.labels import label_array, label_codes
from nearkin.search import as_vectors
from nearkin.spaces import euclidean_distance


def convex_hull(points: np.ndarray) -> np.ndarray:
    """Corners (h, 2) of the convex hull, counter-clockwise; of points on one line its two ends, of one point itself.

    Args:
        points: (k, 2) finite points.
    """
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or not np.isfinite(points).all():
        raise DataError(
            f"A hull in the plane needs finite points (k, 2), but got shape {points.shape} or other values."
        )
    ordered = np.unique(points, axis=0)  # sorted by x, then y
    if len(ordered) < 3:
        return ordered
    lower, upper = _chain(ordered), _chain(ordered[::-1])
    return np.array(lower[:-1] + upper[:-1])


def polygon_area(corners: np.ndarray) -> float:
    """The area of a polygon (h, 2); 0 with fewer than three corners."""
    if len(corners) < 3:
        return 0.0
    x, y = (corners - corners[0]).T  # far from the origin the products would swallow the area
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)


def intersection(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Corners (h, 2) of what two convex polygons, counter-clockwise, share; none if one has no area.

    `first` is cut along every edge of `second`.
    """
    if len(first) < 3 or len(second) < 3:
        return np.empty((0, 2))
    kept = first
    for start, end in zip(second, np.roll(second, -1, axis=0), strict=True):
        if not len(kept):
            break
        kept = _cut(kept, start, end)
    return kept


def hull_overlap(groups: Sequence[np.ndarray]) -> np.ndarray:
    """How much the hulls of groups of points overlap (C, C): area of the intersection over that of the union.

    0 where a hull has no area, even with itself.

    Args:
        groups: C arrays (k, 2) of points.
    """
    hulls = [convex_hull(group) for group in groups]
    areas = [polygon_area(hull) for hull in hulls]
    overlap = np.zeros((len(hulls), len(hulls)))
    for i, first in enumerate(hulls):
        for j in range(i, len(hulls)):
            shared = areas[i] if i == j else polygon_area(intersection(first, hulls[j]))
            union = areas[i] + areas[j] - shared
            overlap[i, j] = overlap[j, i] = min(shared / union, 1.0) if union > 0 else 0.0
    return overlap


def _chain(ordered: np.ndarray) -> list[np.ndarray]:
    """The lower half of the hull of sorted points, left turns only (Andrew's monotone chain)."""
    chain: list[np.ndarray] = []
    for point in ordered:
        while len(chain) > 1 and _turn(chain[-2], chain[-1], point) <= 0:
            chain.pop()
        chain.append(point)
    return chain


def _turn(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    """Positive where the way from a over b to c turns left."""
    return float((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]))


def _cut(corners: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """What of a convex polygon (h, 2) lies to the left of a line."""
    edge = end - start
    side = edge[0] * (corners[:, 1] - start[1]) - edge[1] * (corners[:, 0] - start[0])
    kept = []
    for place in range(len(corners)):
        before = place - 1
        if (side[before] < 0) != (side[place] < 0):
            share = side[before] / (side[before] - side[place])
            kept.append(corners[before] + share * (corners[place] - corners[before]))
        if side[place] >= 0:
            kept.append(corners[place])
    return np.array(kept).reshape(-1, 2)


_BLOCK_BYTES = 2**25
"""How much the features in double precision and their distances may take at once."""

_ROUNDING = 1e-12
"""Share of the largest norm that rounding may add to a distance in double precision."""


@dataclass(frozen=True, eq=False)
class BoundCheck:
    """Average pooling beside the convex combination of prototypes, of B images; everything in double precision.

    Args:
        nearest: (B, n) the prototype of each local feature.
        distance: (B, n) how far it is.
        histogram: (B, m) mass of each prototype, summing to 1.
        gap: (B, d) mean of the local features.
        pcc: (B, d) mean of their prototypes.
        error: (B,) |PCC - GAP|.
        holds: (B,) whether error <= radius; that it must, up to rounding.
    """

    nearest: Tensor
    distance: Tensor
    histogram: Tensor
    gap: Tensor
    pcc: Tensor
    error: Tensor
    holds: Tensor

    @property
    def cost(self) -> Tensor:
        """The least cost (B,) of transport from the local features to prototypes: the mean distance."""
        return self.distance.mean(dim=1)

    @property
    def radius(self) -> Tensor:
        """The covering radius (B,) of the prototypes over the local features of each image."""
        return self.distance.amax(dim=1)

    @property
    def covering_radius(self) -> float:
        """The covering radius over the features of all images; 0 without images."""
        return float(self.distance.max()) if len(self.distance) else 0.0


def prototype_histogram(features: Tensor, prototypes: Tensor) -> Tensor:
    """The histogram (B, m) of local features on prototypes, float64: mass 1/n of each feature to its nearest one.

    Of prototypes equally near the lower index counts. Reference: Gürbüz 2022, equations 4.2.5 and 4.2.6.

    Args:
        features: (B, n, d).
        prototypes: (m, d).
    """
    nearest, _ = nearest_prototypes(features, prototypes)
    return _shares(nearest, len(prototypes))


def pcc_embedding(histogram: Tensor, prototypes: Tensor) -> Tensor:
    """The convex combination of prototypes (B, d), float64, that a histogram weighs.

    Args:
        histogram: (B, m).
        prototypes: (m, d).
    """
    if histogram.dim() != 2 or prototypes.dim() != 2 or histogram.shape[1] != len(prototypes):
        raise DataError(
            f"A histogram (B, m) needs as many prototypes (m, d), but the shapes are {tuple(histogram.shape)} and "
            f"{tuple(prototypes.shape)}."
        )
    return histogram.double() @ prototypes.double()


@torch.no_grad()
def check_bound(features: Tensor, prototypes: Tensor) -> BoundCheck:
    """Compare the mean of the local features of each image with the convex combination of their prototypes.

    Args:
        features: (B, n, d), of the images being pooled.
        prototypes: (m, d).
    """
    nearest, distances = nearest_prototypes(features, prototypes)
    histogram = _shares(nearest, len(prototypes))
    gap = features.sum(dim=1, dtype=torch.float64) / features.shape[1]
    pcc = pcc_embedding(histogram, prototypes)
    error = (pcc - gap).norm(dim=1)
    radius = distances.amax(dim=1)
    largest = float(prototypes.double().norm(dim=1).max()) + (float(radius.max()) if len(radius) else 0.0)
    return BoundCheck(
        nearest=nearest,
        distance=distances,
        histogram=histogram,
        gap=gap,
        pcc=pcc,
        error=error,
        holds=error <= radius + _ROUNDING * largest,
    )


@torch.no_grad()
def nearest_prototypes(features: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest prototype (B, n) of each local feature and the distance to it (B, n), float64.

    Distances are differences in double precision, by blocks of features, so that the lower index wins only where two
    prototypes are equally near.

    Args:
        features: (B, n, d).
        prototypes: (m, d).
    """
    if features.dim() != 3 or not features.shape[1] or not features.shape[2]:
        raise DataError(
            f"Local features must have the shape (images, features of one, dimensions), not {tuple(features.shape)}."
        )
    if prototypes.dim() != 2 or not len(prototypes) or prototypes.shape[1] != features.shape[2]:
        raise DataError(
            f"The prototypes must have the shape (m, {features.shape[2]}), m >= 1, not {tuple(prototypes.shape)}."
        )
    if not prototypes.isfinite().all():
        raise DataError("The prototypes hold NaN or infinite values: pick them among finite features.")
    flat = features.reshape(-1, features.shape[2])
    centers = prototypes.double()
    rows = max(1, _BLOCK_BYTES // (8 * (flat.shape[1] + len(centers))))
    nearest = torch.empty(len(flat), dtype=torch.long, device=flat.device)
    distances = torch.empty(len(flat), dtype=torch.float64, device=flat.device)
    for start in range(0, len(flat), rows):
        some = slice(start, start + rows)
        found = euclidean_distance(flat[some].double(), centers)
        nearest[some] = found.argmin(dim=1)  # the first of equals
        distances[some] = found.amin(dim=1)
    if not distances.isfinite().all():
        raise DataError("The local features hold NaN or infinite values: check the model and its input.")
    return nearest.view(features.shape[:2]), distances.view(features.shape[:2])


def class_histograms(histogram: Tensor, codes: Tensor) -> Tensor:
    """The mean histogram (C, m) of each class.

    Args:
        histogram: (B, m).
        codes: (B,) class of each image, whole numbers from 0 to C - 1, each of which occurs.
    """
    if codes.shape != histogram.shape[:1]:
        raise DataError(
            f"{len(histogram)} histograms need one class each, but the classes have the shape {tuple(codes.shape)}."
        )
    counts = torch.bincount(codes)
    if not counts.all():
        raise DataError("Classes must be numbered without gaps: every number up to the largest must occur.")
    sums = histogram.new_zeros(len(counts), histogram.shape[1]).index_add_(0, codes, histogram)
    return sums / counts.unsqueeze(1)


def active_prototypes(histograms: Tensor, threshold: float = 0.005) -> Tensor:
    """Which prototypes are active in each class, bool (C, m): those with more than `threshold` of the class's mass.

    Args:
        histograms: (C, m) of classes.
        threshold: in [0, 1): below it a prototype holds strays.
    """
    if not 0.0 <= threshold < 1.0:
        raise DataError(f"The threshold of active prototypes must be a share in [0, 1), not {threshold}.")
    return histograms > threshold


def shared_mass(histograms: Tensor) -> Tensor:
    """The mass (C, C) that two classes put on the same prototypes: 1 - total variation, 1 for equal histograms.

    Args:
        histograms: (C, m) of classes, each summing to 1.
    """
    return torch.minimum(histograms.unsqueeze(1), histograms.unsqueeze(0)).sum(dim=2)


def _shares(nearest: Tensor, count: int) -> Tensor:
    """The histogram (B, count) of whole numbers (B, n) below `count`."""
    images, size = nearest.shape
    counted = torch.zeros(images, count, dtype=torch.float64, device=nearest.device)
    return counted.scatter_add_(1, nearest, torch.ones_like(nearest, dtype=torch.float64)) / size


_L2, _COSINE, _CHANCE = (f"attribute transfer, {name}" for name in ("l2", "cosine", "chance"))
_FEWEST = 4
_LEVEL = 0.95
_SPLIT_ENTRIES = 2**22  # float64 numbers that the splits of a block need: 32 MB


@dataclass(frozen=True, eq=False)
class AttributeTransfer:
    """How often the attributes of unseen classes lead to the right mean embedding.

    Attributes:
        values: "attribute transfer, l2" and "attribute transfer, cosine" (higher is better), the share of classes whose
            prediction is nearest to their own mean, averaged over splits; "attribute transfer, chance", what attributes
            that say nothing reach.
        intervals: (low, high) that hold the middle 95 % of the splits' accuracies. They say how much depends on which
            classes are seen. They do not shrink with more splits, and are no confidence intervals of the mean.
        classes: how many there are.
        splits: how many random halves were tried, each in both directions.
    """

    values: dict[str, float]
    intervals: dict[str, Interval]
    classes: int
    splits: int

    primary = _L2
    higher_is_better = True

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return as_plain(vars(self))


@torch.no_grad()
def attribute_transfer(
    attributes: Any, embeddings: Any, labels: Any, *, splits: int = 1000, ridge: float = 0.05, seed: int = 0
) -> AttributeTransfer:
    """Fit attributes to mean embeddings on half of the classes, name the other half by it; both ways, many splits.

    A class is represented by the mean of its items' attributes and the mean of its items' embeddings. Each split puts
    the classes into two halves at random, the first one class smaller if their number is odd. The map fitted on a half
    predicts the means of the other, and a prediction is right if of all true means of that other half its own is the
    nearest. A split's accuracy is the share of all classes that were predicted rightly, so chance is 2 / classes, the
    inverse of a half.

    Reference: Gürbüz 2022, section 5.3.3.

    Args:
        attributes: (n, M), array or tensor: how much of each of M things an item has, as poolings with attributes give
            it. Rows that sum to 1 suit the default ridge.
        embeddings: (n, d), array or tensor, in the space in which they are compared.
        labels: n labels of any hashable kind, of at least four classes.
        splits: how many random halves to try.
        ridge: what is added to the diagonal; above 0.
        seed: the same seed gives the same splits.

    Raises:
        DataError: if there are fewer than four classes, the numbers of rows differ, or a value is not finite.
    """
    given, vectors = as_vectors(attributes, "attributes"), as_vectors(embeddings)
    if len(given) != len(vectors):
        raise DataError(f"There are {len(given)} rows of attributes for {len(vectors)} embeddings: pass one for each.")
    (codes,) = label_codes(label_array(labels, len(vectors)))
    classes = len(np.unique(codes))
    if classes < _FEWEST:
        raise DataError(
            f"Attribute transfer needs at least {_FEWEST} classes, two in each half, and there are {classes}: "
            "add more classes."
        )
    check_whole(splits, "splits", 1)
    if not is_real(ridge) or not 0 < ridge < float("inf"):
        raise DataError(f"The ridge must be a finite number above 0, not {ridge!r}.")
    sizes = torch.from_numpy(np.bincount(codes)).unsqueeze(1)
    z, y = (_span_coordinates(rows, torch.from_numpy(codes), sizes) for rows in (given, vectors))
    vanishing = torch.finfo(z.dtype).eps * float(z.square().sum())
    if ridge <= vanishing:
        raise DataError(f"The ridge {ridge:g} is negligible for these attributes: raise it above {vanishing:.1g}.")
    blocks = [_accuracies(z, y, order, float(ridge)) for order in _orders(z, y, int(splits), seed)]
    found = np.concatenate(blocks, axis=1)
    values, intervals = {}, {}
    for name, accuracies in zip((_L2, _COSINE), found, strict=True):
        values[name], intervals[name] = float(accuracies.mean()), percentile_interval(accuracies, _LEVEL)
    return AttributeTransfer(values | {_CHANCE: 2 / classes}, intervals, classes, int(splits))


def _span_coordinates(rows: Tensor, codes: Tensor, sizes: Tensor) -> Tensor:
    """Class means of rows (n, k), float64, in a basis of the space they span, (c, min(c, k)): inner products stay."""
    sums = torch.zeros(len(sizes), rows.shape[1], dtype=torch.float64)
    means = sums.index_add_(0, codes, rows.detach().cpu().double()) / sizes
    return torch.linalg.qr(means.T, mode="r").R.T


def _orders(z: Tensor, y: Tensor, splits: int, seed: int) -> Iterator[Tensor]:
    """Random orders of the classes, (b, c) in blocks that memory holds; the first half of an order is one half."""
    classes, m = z.shape
    size = max(1, _SPLIT_ENTRIES // (m * m + classes * (m + y.shape[1] + classes)))
    rng = np.random.default_rng(seed)
    for start in range(0, splits, size):
        rows = min(size, splits - start)
        yield torch.from_numpy(rng.permuted(np.tile(np.arange(classes), (rows, 1)), axis=1))


def _accuracies(z: Tensor, y: Tensor, orders: Tensor, ridge: float) -> np.ndarray:
    """The accuracy by l2 and by cosine, (2, b), of the splits that orders (b, c) of the classes make."""
    half = orders.shape[1] // 2
    first, second = orders[:, :half], orders[:, half:]
    right = torch.zeros(2, len(orders), dtype=torch.float64)
    for seen, unseen in ((first, second), (second, first)):
        known, target = z[seen], y[unseen]
        # The same map as in the print, with the smaller system where there are more classes than attributes.
        system = known.mT @ known + ridge * torch.eye(known.shape[2], dtype=z.dtype)
        predicted = z[unseen] @ torch.linalg.solve(system, known.mT @ y[seen])
        products = predicted @ target.mT  # (b, prediction, true mean)
        squares = target.square().sum(dim=2).unsqueeze(1)
        own = torch.arange(unseen.shape[1])
        # What is left of |p - y|^2 and of cos(p, y) when the prediction's own length, equal for all y, is taken out.
        right[0] += ((squares - 2 * products).argmin(dim=2) == own).sum(dim=1)
        lengths = squares.sqrt().clamp_min(torch.finfo(torch.float64).tiny)
        right[1] += ((products / lengths).argmax(dim=2) == own).sum(dim=1)
    return (right / orders.shape[1]).numpy()
