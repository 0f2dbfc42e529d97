"""How widely classes spread."""

from __future__ import annotations

import numpy as np
import torch

from nearkin.spaces import covering_radius

_MOST = 100
"""Items of a class that are looked at: the cost grows with their square."""


def mean_class_radius(embeddings: np.ndarray, labels: np.ndarray) -> float:
    """The mean over classes of the covering radius, itself an average over k = 1 ... n centers.

    Of each class the first hundred items count.
    Reference: Gürbüz 2022, figure 3.3.

    Args:
        embeddings: points of the space (n, d); their Euclidean distances count.
        labels: their classes (n,).
    """
    _, codes = np.unique(labels, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    starts = np.cumsum(counts) - counts
    width = min(_MOST, int(counts.max()))
    places = starts[:, None] + np.arange(width)
    mask = np.arange(width) < counts[:, None]
    points = torch.from_numpy(embeddings[order[np.minimum(places, len(order) - 1)]])
    return float(covering_radius(points, mask=torch.from_numpy(mask)).mean())
