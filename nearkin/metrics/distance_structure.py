"""Does an embedding keep the distances of its inputs? The mean correlation of both, item by item.

For each of N items, Spearman's correlation of its distances to all others among the inputs and among the features,
averaged over items by Fisher's z. Reference: Kim 2023, section 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nearkin.errors import DataError
from nearkin.metrics.hierarchy import MeanCorrelation, mean_correlation
from nearkin.metrics.separation import Norm, flattened
from nearkin.search import as_vectors
from nearkin.spaces import Euclidean, Space

_EUCLIDEAN = Euclidean()
_ORDERS = {"l2": 2.0, "linf": torch.inf}
_FEWEST = 3
"""Items: with two, each has one other and nothing can be ordered."""


@dataclass(frozen=True, eq=False)
class DistanceStructure:
    """Distances between the same items, of inputs and of features.

    Attributes:
        inputs: float64 (N, N).
        features: float64 (N, N).
    """

    inputs: np.ndarray = field(repr=False)
    features: np.ndarray = field(repr=False)

    def correlation(self) -> MeanCorrelation:
        """The mean correlation; its `per_class` is by item here."""
        return mean_correlation(self.inputs, self.features)


def distance_correlation(
    inputs: Any,
    features: Any,
    *,
    norm: Norm = "l2",
    sample: int = 1000,
    seed: int = 0,
    space: Space = _EUCLIDEAN,
) -> MeanCorrelation:
    """The mean correlation (MC) between distances of inputs and distances of their features.

    The higher, the more the embedding keeps the order of distances that the inputs have. An item's distance to itself
    does not count. `per_class` of the result is by item.

    Example:
        >>> import numpy as np
        >>> pixels = np.random.default_rng(0).random((50, 3, 8, 8))
        >>> round(distance_correlation(pixels, pixels.reshape(50, -1)).value, 6)
        1.0

    Args:
        inputs: (n, ...), such as pixels (n, C, H, W), which are flattened.
        features: (n, d), points of the space.
        norm: of differences of inputs: "l2" or "linf".
        sample: how many items at the most are compared, all with all; they are drawn.
        seed: of the draw.
        space: how features are compared; a model's is `model.space`.
    """
    rows = sampled_rows(len(inputs), sample, seed)
    if len(features) != len(inputs):
        raise DataError(f"There are {len(inputs)} inputs and {len(features)} features: give both of the same items.")
    structure = DistanceStructure(input_distances(inputs[rows], norm), feature_distances(features[rows], space))
    return structure.correlation()


def sampled_rows(items: int, most: int, seed: int) -> np.ndarray:
    """At most so many of the items, drawn by a seed, ascending."""
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < _FEWEST:
        raise DataError(f"At least {_FEWEST} items must be compared, a whole number, not sample={most!r}.")
    if items < _FEWEST:
        raise DataError(f"Distances can be ordered with at least {_FEWEST} items, and there are {items}: give more.")
    if items <= most:
        return np.arange(items)
    return np.sort(np.random.default_rng(seed).permutation(items)[:most])


def input_distances(inputs: Any, norm: Norm = "l2") -> np.ndarray:
    """Distances of inputs (N, ...) by a norm of their differences: float64 (N, N)."""
    from scipy.spatial.distance import squareform

    if norm not in _ORDERS:
        raise DataError(f"The norm must be one of {', '.join(_ORDERS)}, not {norm!r}.")
    points = as_vectors(flattened(inputs), "inputs")
    return squareform(torch.nn.functional.pdist(points.cpu(), _ORDERS[norm]).double().numpy())


def feature_distances(features: Any, space: Space = _EUCLIDEAN) -> np.ndarray:
    """Distances of points (N, d) of a space: float64 (N, N)."""
    points = as_vectors(features, "features").double()
    return space.distance(points, points).cpu().numpy()
