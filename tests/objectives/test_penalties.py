"""Regularisers against naive loops, their gradients and their limits."""

from __future__ import annotations

import math

import pytest
import torch

from nearkin.objectives import LossShape, regularisers
from nearkin.spaces import Euclidean, Sphere, make_space, spaces

OF_BATCHES = [name for name in regularisers if name != "distortion"]
"""That one looks at the proxies, not at a batch: test_distortion.py."""


def make(name, space=None):
    shape = LossShape(dimension=5, classes=3, space=space or Sphere(), features=5, epoch_steps=4)
    return regularisers.get(name).factory(shape)


def embeddings(n=8, dtype=torch.float64):
    return 2 * torch.randn(n, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)


LABELS = torch.arange(8) % 3


def test_embedding_norm():
    f = embeddings()
    expected = sum(sum(v * v for v in row) for row in f.tolist()) / len(f)
    assert make("embedding-norm")(f, LABELS).item() == pytest.approx(expected)


@pytest.mark.parametrize("space", spaces.names())
def test_koleo_is_minus_the_mean_log_of_nearest_distances(space):
    f, where = embeddings(), make_space(space)
    points = where.project(f)
    terms = []
    for i in range(len(f)):
        others = [where.distance(points[i : i + 1], points[j : j + 1]).item() for j in range(len(f)) if j != i]
        terms.append(math.log(min(others)))
    assert make("koleo", where)(f, LABELS).item() == pytest.approx(-sum(terms) / len(terms), rel=1e-5)


def test_koleo_spreads():
    f = (0.1 * embeddings() + 1).requires_grad_()
    module = make("koleo")
    before = module(f, LABELS)
    optimiser = torch.optim.Adam([f], lr=0.05)
    for _ in range(100):
        optimiser.zero_grad()
        module(f, LABELS).backward()
        optimiser.step()
    assert module(f, LABELS) < before - 1


@pytest.mark.parametrize("name", OF_BATCHES)
@pytest.mark.parametrize("n", [1, 2, 8])
def test_gradients(name, n):
    f = embeddings(n).requires_grad_()
    module = make(name, Euclidean()).double().eval()
    assert torch.autograd.gradcheck(lambda x: module(x, LABELS[:n]), f)


@pytest.mark.parametrize("name", OF_BATCHES)
def test_copies_are_finite(name):
    f = torch.ones(4, 5, requires_grad=True)
    value = make(name)(f, LABELS[:4])
    value.backward()
    assert value.isfinite()
    assert f.grad.isfinite().all()
