"""1-NN of inputs against a naive search, with probabilities and gradients."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.neighbors import KNeighborsClassifier

from nearkin.attacks import L2, Combined, LInf
from nearkin.attacks.nearest_point import NearestPoint

NORMS = [L2(), LInf(), Combined(0.3)]
norms = pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.name)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.random((30, 1, 2, 2)), rng.choice(["fox", "ant", "cow"], 30), rng.random((50, 1, 2, 2))


@norms
def test_the_nearest_point_names_the_class(norm, data):
    points, labels, queries = data
    model = NearestPoint(torch.from_numpy(points), labels, norm)
    assert model.classes == ("ant", "cow", "fox")
    found = model(torch.from_numpy(queries).float())
    metric = {"l2": "euclidean", "linf": "chebyshev"}.get(
        norm.name, lambda a, b: 0.3 * np.abs(a - b).sum() + 0.7 * np.abs(a - b).max()
    )
    distances = cdist(queries.reshape(50, 4).astype(np.float32), points.reshape(30, 4), metric)
    least = np.stack([distances[:, labels == name].min(axis=1) for name in model.classes], axis=1)
    weights = np.exp(-least / np.ptp(points, axis=0).max())
    expected = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.exp().numpy(), expected, rtol=1e-9)
    named = np.array(model.classes)[found.argmax(dim=1)]
    assert np.array_equal(named, labels[distances.argmin(axis=1)])


def test_it_is_scikit_learn_s(data):
    points, labels, queries = data
    model = NearestPoint(torch.from_numpy(points), labels)
    theirs = KNeighborsClassifier(1).fit(points.reshape(30, 4), labels).predict(queries.reshape(50, 4))
    assert np.array_equal(np.array(model.classes)[model(torch.from_numpy(queries)).argmax(dim=1)], theirs)


@norms
def test_it_has_a_gradient(norm, data):
    points, labels, queries = data
    model = NearestPoint(torch.from_numpy(points), labels, norm)
    x = torch.from_numpy(queries[:6]).requires_grad_(True)
    assert torch.autograd.gradcheck(model, (x,))
    own = torch.from_numpy(points[:6]).requires_grad_(True)  # at a point itself there is a kink, and still a number
    model(own).exp()[:, 0].sum().backward()
    assert own.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 1e6])
def test_the_scale_of_the_data_does_not_matter(scale, data):
    """A point that is nearer by a hair wins, however small all numbers are."""
    points, labels, queries = data
    found, plain = (
        NearestPoint(torch.from_numpy(factor * points), labels)(torch.from_numpy(factor * queries))
        for factor in (scale, 1.0)
    )
    torch.testing.assert_close(found, plain)
    pair = scale * torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    hair = scale * torch.tensor([[0.5 - 1e-11, 3.0], [0.5 + 1e-11, 3.0]], dtype=torch.float64)
    for labels in (["a", "b"], ["b", "a"]):
        model = NearestPoint(pair, labels)
        assert [model.classes[code] for code in model(hair).argmax(dim=1)] == labels


def test_a_single_point():
    assert NearestPoint(torch.zeros(1, 2), ["a"])(torch.ones(3, 2)).tolist() == [[0.0]] * 3


def test_numbers_and_tensors_are_labels_too():
    x = torch.tensor([[0.0], [1.0], [2.0]])
    for labels in ([5, 3, 5], np.array([5, 3, 5]), torch.tensor([5, 3, 5])):
        model = NearestPoint(x, labels, "linf")
        assert model.classes == (3, 5)
        assert model(torch.tensor([[0.9], [1.6]])).argmax(dim=1).tolist() == [0, 1]
