"""Kernels against naive loops."""

import math

import numpy as np
import pytest
import torch

from nearkin.errors import DataError
from nearkin.metrics import GaussianKernel, LearnedKernel, kernel_matrix, kernels
from nearkin.models.similarity import LearnedSpace, PairSimilarity
from nearkin.search import InnerProduct
from nearkin.spaces import make_space


@pytest.fixture
def learned():
    torch.manual_seed(0)
    network = PairSimilarity(5, hidden=16).eval().requires_grad_(False)
    network.second.weight.mul_(8)
    return LearnedSpace(make_space("euclidean"), network)


def draw(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 5)).astype(np.float32)


@pytest.mark.parametrize("symmetry", ["max", "mean"])
@pytest.mark.parametrize("scale", ["sigmoid", "logit"])
@pytest.mark.parametrize("own", [True, False])
def test_a_learned_kernel_is_what_a_loop_over_pairs_gives(learned, symmetry, scale, own, monkeypatch):
    monkeypatch.setattr(kernels, "_BLOCK_ENTRIES", 30)  # several blocks
    x, y = draw(11), draw(7, seed=1)
    found = kernel_matrix(x, None if own else y, LearnedKernel(learned, symmetry, scale))
    y = x if own else y
    network = learned.network
    for i, a in enumerate(torch.from_numpy(x)):
        for j, b in enumerate(torch.from_numpy(y)):
            both = [float(network(a, b)), float(network(b, a))]
            assert both[0] != pytest.approx(both[1], abs=1e-3) or (own and i == j)
            if scale == "sigmoid":
                both = [1 / (1 + math.exp(-value)) for value in both]
            wanted = max(both) if symmetry == "max" else sum(both) / 2
            assert found[i, j] == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize("space", ["euclidean", "sphere"])
def test_a_gaussian_kernel_with_the_median_distance(space, monkeypatch):
    monkeypatch.setattr(kernels, "_BLOCK_ENTRIES", 30)
    x, y = draw(9).astype(np.float64), draw(8, seed=1).astype(np.float64)
    found = kernel_matrix(x, y, "gaussian", space=space)
    pool = np.concatenate([x, y])
    if space == "sphere":
        pool = pool / np.linalg.norm(pool, axis=1, keepdims=True)
    distances = np.linalg.norm(pool[:, None] - pool[None], axis=-1)
    # torch's median is the lower of the two in the middle
    away = np.sort(distances[np.triu_indices(17, 1)])
    sigma = away[(len(away) - 1) // 2]
    np.testing.assert_allclose(found, np.exp(-(distances[:9, 9:] ** 2) / (2 * sigma**2)), rtol=1e-6)


@pytest.mark.parametrize("block", [1, 30, 10_000])
def test_among_one_set_every_pair_is_computed_once(learned, block, monkeypatch):
    monkeypatch.setattr(kernels, "_BLOCK_ENTRIES", block)
    asked = []

    class Counted(GaussianKernel):
        def __call__(self, x, y):
            asked.append(len(x) * len(y))
            return super().__call__(x, y)

    found = kernel_matrix(draw(12), kernel=Counted("euclidean", 1.0))
    assert np.array_equal(found, found.T)
    np.testing.assert_allclose(found, kernel_matrix(draw(12), draw(12), GaussianKernel("euclidean", 1.0)), rtol=1e-6)
    assert sum(asked) == (12 * 13 // 2 if block == 1 else sum(asked))
    assert sum(asked) <= 12 * 12


def test_a_bandwidth_does_not_depend_on_the_order_of_points():
    points = torch.from_numpy(draw(60))
    first = GaussianKernel("euclidean").fitted(points)
    assert first.bandwidth == pytest.approx(GaussianKernel("euclidean").fitted(points.flip(0)).bandwidth)
    assert GaussianKernel("euclidean", 3.0).fitted(points).bandwidth == 3.0
    # Equal points have no distance to take the median of.
    assert GaussianKernel("euclidean").fitted(torch.zeros(4, 2)).bandwidth == 1.0


def test_names_are_resolved_by_the_space(learned):
    assert kernels.as_kernel("auto", learned) == LearnedKernel(learned)
    assert kernels.as_kernel("auto", make_space("sphere")).name == "gaussian"
    # A Gaussian over a learned similarity is of the space that its points live in.
    gaussian = kernel_matrix(draw(6), kernel=GaussianKernel(learned, 1.0))
    np.testing.assert_allclose(gaussian, kernel_matrix(draw(6), kernel=GaussianKernel("euclidean", 1.0)))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: LearnedKernel("sphere"), "similarity"),
        (lambda: LearnedKernel(InnerProduct(), symmetry="min"), "'min'"),
        (lambda: LearnedKernel(InnerProduct(), scale="tanh"), "tanh"),
        (lambda: GaussianKernel("euclidean", -1.0), "positive"),
        (lambda: GaussianKernel("euclidian"), "euclidean"),
        (lambda: kernel_matrix(draw(4), kernel="rbf"), "rbf"),
        (lambda: kernel_matrix(draw(4), kernel=3), "kernel"),
        (lambda: kernel_matrix(draw(4), kernel=GaussianKernel(InnerProduct(), 1.0)), "negative"),
        (lambda: kernel_matrix(draw(4), np.zeros((3, 2)), "gaussian"), "dimensions"),
        (lambda: GaussianKernel()(torch.zeros(2, 2), torch.zeros(2, 2)), "bandwidth"),
    ],
)
def test_what_cannot_be_is_refused(make, told):
    with pytest.raises(DataError, match=told):
        make()
