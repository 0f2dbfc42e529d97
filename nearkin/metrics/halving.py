"""Half of each class to know, half to ask."""

from __future__ import annotations

import numpy as np

from nearkin.metrics.labels import label_codes


def halves(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Half of each class as support, rounded up, and the other half as queries; ascending rows of labels (n,).

    A class with one item has it in the support. What the classes are called makes no difference.
    """
    (codes,) = label_codes(np.asarray(labels))
    shuffled = np.random.default_rng(seed).permutation(len(codes))
    grouped = shuffled[np.argsort(codes[shuffled], kind="stable")]
    sizes = np.bincount(codes)
    place = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    support = place < np.repeat((sizes + 1) // 2, sizes)
    return np.sort(grouped[support]), np.sort(grouped[~support])
