"""What average pooling does to local features: nearly a convex combination of prototypes that cover them.

Each local feature goes to its nearest prototype with mass 1/n: the histogram operator. The prototypes weighted by that
histogram (PCC) lie no farther from the mean (GAP) than the features lie from their prototypes, because
|PCC - GAP| = |mean of (v_j - x_j)| <= mean of |v_j - x_j| <= max of |v_j - x_j|.
Reference: Gürbüz 2022, chapter 4; there the square of the left side is bounded, and only in the unit ball.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.errors import DataError
from nearkin.spaces import euclidean_distance

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
    _check(features, prototypes)
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


def _check(features: Tensor, prototypes: Tensor) -> None:
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
