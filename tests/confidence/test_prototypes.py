"""Prototypes: means with a point left out by loops, softmax and distance ratio by hand, many classes, gradients."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from nearkin.confidence import PrototypeRatio, PrototypeSoftmax, prototypes
from nearkin.confidence.temperature import fit_temperature
from nearkin.errors import DataError
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, Sphere

SPACES = [Sphere(), Sphere(metric="angle"), Euclidean(), PoincareBall(), LipschitzBall()]
BOTH = [PrototypeSoftmax, PrototypeRatio]


def clouds(seed=0, n=40, classes=5, dimensions=4, queries=8):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % classes)
    centres = rng.normal(size=(classes, dimensions))
    support = 0.2 * (centres[labels] + 0.7 * rng.normal(size=(n, dimensions)))
    return support.astype(np.float32), labels, (0.2 * rng.normal(size=(queries, dimensions))).astype(np.float32)


def mean(points, space):
    """By definition, in float64: arithmetic, direction of the mean direction, Einstein midpoint."""
    points = np.asarray(points, np.float64)
    if isinstance(space, Sphere):
        total = (points / np.linalg.norm(points, axis=1, keepdims=True)).mean(axis=0)
        return total / np.linalg.norm(total)
    if isinstance(space, PoincareBall):
        klein = 2 * points / (1 + (points**2).sum(axis=1, keepdims=True))
        factor = 1 / np.sqrt(1 - (klein**2).sum(axis=1, keepdims=True))
        middle = (factor * klein).sum(axis=0) / factor.sum()
        return middle / (1 + math.sqrt(1 - middle @ middle))
    return points.mean(axis=0)


def distance(x, y, space):
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if isinstance(space, Sphere):
        cosine = np.clip(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)), -1, 1)
        return math.sqrt(2 - 2 * cosine) if space.metric == "chord" else math.acos(cosine)
    if isinstance(space, PoincareBall):
        return math.acosh(1 + 2 * ((x - y) ** 2).sum() / ((1 - x @ x) * (1 - y @ y)))
    return np.linalg.norm(x - y)


def energy(d, kind):
    return d**2 if kind is PrototypeSoftmax else 0.5 * math.log(d**2 + 1e-10)


def softmax(values):
    weights = np.exp(values - np.max(values, axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def naive_left_out(support, labels, space, kind):
    """Energies (n, C) and positives (n, C): each point against the means of the classes, its own without it."""
    classes = sorted(set(labels.tolist()))
    energies, own = np.zeros((len(support), len(classes))), np.zeros((len(support), len(classes)), bool)
    for i, point in enumerate(support):
        for c, name in enumerate(classes):
            members = [j for j in range(len(support)) if labels[j] == name and j != i]
            if members:
                energies[i, c] = energy(distance(point, mean(support[members], space), space), kind)
                own[i, c] = labels[i] == name
    return energies, own


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("kind", BOTH)
def test_left_out_energies_match_loops(space, kind):
    support, labels, _ = clouds()
    labels[:2] = 100, 101  # classes of one point
    fitted = kind(space=space).fit(support, labels)
    energies, own = fitted._left_out_energies()
    expected, positive = naive_left_out(support, labels, space, kind)
    np.testing.assert_array_equal(own, positive)
    counted = positive.any(axis=1)
    np.testing.assert_allclose(energies[counted], expected[counted], atol=1e-4)
    fit = fit_temperature(expected, positive)
    assert fitted.temperature_ == pytest.approx(fit.temperature, rel=0.01)
    assert fitted.fit_.likelihood == pytest.approx(fit.likelihood, abs=1e-3)
    assert (fitted.fit_.used, fitted.fit_.left_out) == (38, 2)
    assert any("2" in note for note in fitted.notes_)


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("kind", BOTH)
def test_probabilities_match_a_softmax(space, kind):
    support, labels, queries = clouds()
    fitted = kind(space=space).fit(support, labels)
    classes = sorted(set(labels.tolist()))
    assert fitted.classes_.tolist() == classes
    means = [mean(support[labels == name], space) for name in classes]
    np.testing.assert_allclose(fitted.prototypes_.numpy(), means, atol=1e-5)
    lengths = np.array([[distance(query, point, space) for point in means] for query in queries])
    scores = np.array([[-energy(d, kind) / fitted.temperature_ for d in row] for row in lengths])
    prediction = fitted.predict(queries)
    np.testing.assert_allclose(prediction.probabilities.dense(), softmax(scores), atol=1e-4)
    np.testing.assert_allclose(prediction.distances, np.sort(lengths, axis=1), atol=1e-5)
    np.testing.assert_array_equal(prediction.indices, lengths.argsort(axis=1))
    again = fitted.predict_proba(prediction.distances, prediction.indices)
    np.testing.assert_allclose(again.dense(), prediction.probabilities.dense(), atol=1e-6)


@pytest.mark.parametrize(("scale", "soft"), [(1, 0.95257), (2, 0.99999)])
def test_oracle_values(scale, soft):
    """The distances are (1, 2), then (2, 4): the ratio does not care."""
    support, query = scale * np.array([[1.0, 0], [0, 2]]), np.zeros((1, 2))
    softmax = PrototypeSoftmax(temperature=1.0, space="euclidean").fit(support, ["a", "b"])
    ratio = PrototypeRatio(rho=2.0, space="euclidean").fit(support, ["a", "b"])
    assert ratio.rho_ == pytest.approx(2)
    assert softmax.predict(query).labels.tolist() == ratio.predict(query).labels.tolist() == ["a"]
    assert softmax.predict(query).confidence[0] == pytest.approx(soft, abs=5e-6)
    assert ratio.predict(query).confidence[0] == pytest.approx(0.8, abs=5e-6)
    near = (scale * np.array([[1.0, 2.0]]), [[0, 1]])
    assert softmax.predict_proba(*near).confidence[0] == pytest.approx(soft, abs=5e-6)
    assert ratio.predict_proba(*near).confidence[0] == pytest.approx(0.8, abs=5e-6)


@pytest.mark.parametrize("kind", BOTH)
def test_on_a_prototype(kind):
    support = np.array([[0.0, 0], [1, 0], [0, 1]])
    given = {"temperature": 1e-3} if kind is PrototypeSoftmax else {"rho": 2.0}
    fitted = kind(space="euclidean", **given).fit(support, [0, 1, 2])
    np.testing.assert_allclose(fitted.predict(support).probabilities.dense(), np.eye(3), atol=1e-6)
    x = torch.tensor(support, requires_grad=True)
    found = fitted.log_proba(x)
    found[:, 0].sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("kind", BOTH)
def test_more_than_200_classes_share_a_rest(kind):
    rng = np.random.default_rng(0)
    support, queries = rng.normal(size=(500, 3)), rng.normal(size=(6, 3))
    labels = np.arange(500) % 250
    fitted = kind(space="euclidean").fit(support.astype(np.float32), labels)
    found = fitted.predict(queries.astype(np.float32)).probabilities
    exact = fitted.log_proba(queries).exp().numpy()
    dense = found.dense()
    assert np.diff(found.offsets).tolist() == [200] * 6
    np.testing.assert_allclose(dense.sum(axis=1), 1, atol=1e-5)
    for row in range(6):
        order = np.argsort(-exact[row])
        np.testing.assert_allclose(dense[row, order[:200]], exact[row, order[:200]], atol=1e-5)
        np.testing.assert_allclose(dense[row, order[200:]], exact[row, order[200:]].mean(), atol=1e-6)
    np.testing.assert_array_equal(found.best, exact.argmax(axis=1))
    np.testing.assert_allclose(found.squares(), (dense.astype(np.float64) ** 2).sum(axis=1), atol=1e-5)


@pytest.mark.parametrize("block", [1, 9, 10**6])
@pytest.mark.parametrize("kind", BOTH)
def test_blocks_change_nothing(monkeypatch, kind, block):
    support, labels, queries = clouds()
    whole = kind().fit(support, labels)
    monkeypatch.setattr(prototypes, "_BLOCK", block)
    parted = kind().fit(support, labels)
    assert parted.temperature_ == pytest.approx(whole.temperature_, rel=1e-4)
    np.testing.assert_allclose(
        parted.predict(queries).probabilities.dense(), whole.predict(queries).probabilities.dense(), atol=1e-4
    )


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("space", ["sphere", Sphere(metric="angle"), "euclidean", "poincare-ball"], ids=str)
def test_log_proba_and_its_gradient(kind, space):
    support, labels, queries = clouds(dimensions=3, queries=3)
    fitted = kind(space=space).fit(support.astype(np.float64), labels)
    x = torch.tensor(queries, dtype=torch.float64, requires_grad=True)
    assert gradcheck(fitted.log_proba, (x,), eps=1e-6, atol=1e-4)
    found = fitted.predict(queries.astype(np.float64)).probabilities.dense()
    np.testing.assert_allclose(fitted.log_proba(x).exp().detach().numpy(), found, atol=1e-5)


def test_scale_changes_no_ratio():
    support, labels, queries = clouds()
    one = PrototypeRatio(space="euclidean", rho=3.0).fit(support, labels).predict(queries)
    two = PrototypeRatio(space="euclidean", rho=3.0).fit(50 * support, labels).predict(50 * queries)
    np.testing.assert_allclose(one.probabilities.dense(), two.probabilities.dense(), atol=1e-5)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("first", "second"), [(np.float32, np.float64), (np.float64, np.float32), (np.float32, np.int64)]
)
def test_precision_of_support_and_queries_may_differ(kind, first, second):
    support, labels, queries = clouds()
    fitted = kind(space="euclidean").fit((10 * support).astype(first), labels)
    found = fitted.predict((10 * queries).astype(second))
    same = fitted.predict((10 * queries).astype(second).astype(first))
    np.testing.assert_allclose(found.probabilities.dense(), same.probabilities.dense(), atol=1e-4)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("points", [3, 25])
def test_fitting_on_some_points(kind, points):
    support, labels, _ = clouds(n=60, classes=20)
    fitted = kind(points=points, seed=3).fit(support, labels)
    assert fitted.fit_.used == points
    rows = fitted.support_.draw(points, 3)
    energies, own = naive_left_out(support, labels, Sphere(), kind)
    assert fitted.temperature_ == pytest.approx(fit_temperature(energies[rows], own[rows]).temperature, rel=0.01)


@pytest.mark.parametrize("kind", BOTH)
def test_classes_of_one_point_need_a_given_temperature(kind):
    support, _, queries = clouds()
    with pytest.raises(DataError, match="single"):
        kind().fit(support, np.arange(40))
    given = {"temperature": 0.1} if kind is PrototypeSoftmax else {"rho": 2.0}
    found = kind(**given).fit(support, np.arange(40)).predict(queries)
    np.testing.assert_allclose(found.probabilities.dense().sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("kind", BOTH)
def test_a_single_class(kind):
    support, _, queries = clouds()
    fitted = kind().fit(support, ["x"] * 40)
    assert (fitted.predict(queries).confidence == 1).all()
    assert any("single" in note for note in fitted.notes_)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("space", ["cosine", "inner-product"])
def test_what_has_no_mean_is_refused(kind, space):
    support, labels, _ = clouds()
    with pytest.raises(DataError, match="mean"):
        kind(space=space).fit(support, labels)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "1", True])
def test_bad_parameters(value):
    support, labels, _ = clouds()
    with pytest.raises(DataError, match="temperature"):
        PrototypeSoftmax(temperature=value).fit(support, labels)
    with pytest.raises(DataError, match="rho"):
        PrototypeRatio(rho=value).fit(support, labels)


@pytest.mark.parametrize(
    ("near", "match"),
    [
        (([[1.0, 2]], [[0, 5]]), "0"),
        (([[2.0, 1]], [[0, 1]]), "nearest"),
        (([[1.0, math.nan]], [[0, 1]]), "finite"),
        (([[1.0]], [[0, 1]]), "shape"),
    ],
)
def test_bad_distances_to_prototypes(near, match):
    support, labels, _ = clouds()
    with pytest.raises(DataError, match=match):
        PrototypeSoftmax().fit(support, labels).predict_proba(*near)


def test_fewer_prototypes_share_the_whole():
    support, labels, _ = clouds()
    found = PrototypeSoftmax(temperature=1.0).fit(support, labels).predict_proba([[1.0, 2.0]], [[3, 1]]).dense()
    np.testing.assert_allclose(found[0, [3, 1]], softmax(np.array([-1.0, -4.0])), atol=1e-6)


@pytest.mark.parametrize("fitted", [PrototypeSoftmax(temperature=1e-29), PrototypeRatio(rho=1e29)], ids=["T", "rho"])
def test_extreme_temperatures_are_the_nearest_prototype(fitted):
    support, labels, queries = clouds()
    found = fitted.fit(support, labels).predict(queries)
    assert (found.confidence == 1).all()
    np.testing.assert_array_equal(found.probabilities.best, found.indices[:, 0])
