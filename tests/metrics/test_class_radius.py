"""The mean covering radius of classes against loops."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.metrics import mean_class_radius


def radius(points):
    """The radius of k greedy centers, averaged over k = 1 ... n; the first center is the best single one."""
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    centers = [int(distances.max(axis=1).argmin())]
    found = []
    while True:
        nearest = distances[:, centers].min(axis=1)
        found.append(nearest.max())
        if len(centers) == len(points):
            return np.mean(found)
        centers.append(int(nearest.argmax()))


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_mean_over_classes_of_any_size_in_any_order(seed):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(["a", "b", "c", "d"], [1, 2, 7, 15]))
    points = rng.normal(size=(len(labels), 5)).astype(np.float32)
    expected = np.mean([radius(points[labels == name]) for name in "abcd"])
    assert mean_class_radius(points, labels) == pytest.approx(expected, rel=1e-5)


def test_of_a_large_class_the_first_hundred_items_count():
    points = np.random.default_rng(0).normal(size=(130, 3)).astype(np.float32)
    labels = np.zeros(130, dtype=int)
    assert mean_class_radius(points, labels) == pytest.approx(radius(points[:100]), rel=1e-5)
    assert mean_class_radius(points, labels) != pytest.approx(radius(points), rel=1e-3)
