"""Novelty against naive loops; its p-values on data drawn again and again; what it finds on real data."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.svm import OneClassSVM

from nearkin.confidence import Novelty
from nearkin.confidence.novelty import OneClassMachine, clipped
from nearkin.errors import DataError
from nearkin.metrics import GaussianKernel, LearnedKernel, kernel_matrix
from nearkin.models.similarity import LearnedSpace, PairSimilarity
from nearkin.spaces import make_space

METHODS = ["nearest", "mean", "one-class-svm"]


def draw(count, seed=0, d=3):
    return np.random.default_rng(seed).normal(size=(count, d))


@pytest.fixture
def learned():
    torch.manual_seed(1)
    network = PairSimilarity(3, hidden=16).eval().requires_grad_(False)
    network.second.weight.mul_(20)
    return LearnedSpace(make_space("euclidean"), network)


def naive_nearest(point, others, k, distance):
    return float(np.mean(sorted(distance(point, other) for other in others)[:k]))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("kind", ["euclidean", "learned"])
def test_nearest_is_what_loops_over_a_bag_give(k, kind, learned):
    reference, queries = draw(12).astype(np.float32), 1.5 * draw(9, seed=1).astype(np.float32)
    space = learned if kind == "learned" else "euclidean"

    def distance(query, enrolled):
        if kind == "euclidean":
            return float(np.linalg.norm(query - enrolled))
        return -float(learned.network(torch.from_numpy(enrolled), torch.from_numpy(query)))

    fitted = Novelty(space=space, k=k).fit(reference)
    wanted = [naive_nearest(query, reference, k, distance) for query in queries]
    np.testing.assert_allclose(fitted.score(queries), wanted, rtol=1e-4, atol=1e-4)
    for query, score, p in zip(queries, wanted, fitted.p_values(queries), strict=True):
        bag = [*reference, query]
        scores = [
            naive_nearest(bag[i], [other for j, other in enumerate(bag) if j != i], k, distance) for i in range(12)
        ]
        assert p == (1 + sum(one >= score - 1e-4 * max(map(abs, fitted.scores_)) for one in scores)) / 13


def test_mean_is_what_loops_over_a_bag_give(learned):
    reference, queries = draw(12), 1.5 * draw(9, seed=1)
    for kernel in (GaussianKernel("euclidean", 0.8), LearnedKernel(learned)):
        fitted = Novelty("mean", kernel=kernel).fit(reference)
        bag_values = [kernel_matrix(np.vstack([reference, query]), kernel=kernel) for query in queries]
        for values, score, p in zip(bag_values, fitted.score(queries), fitted.p_values(queries), strict=True):
            assert score == pytest.approx(-values[12, :12].mean(), rel=1e-5)
            scores = [-np.mean([values[i, j] for j in range(13) if j != i]) for i in range(12)]
            assert p == (1 + sum(one >= score - 1e-4 * abs(score) for one in scores)) / 13


def test_the_machine_is_that_of_scikit_learn():
    points, queries = torch.from_numpy(draw(40)), torch.from_numpy(2 * draw(15, seed=1))
    machine = OneClassMachine.of(points, GaussianKernel("euclidean", 1.3), 0.2)
    peer = OneClassSVM(gamma=1 / (2 * 1.3**2), nu=0.2).fit(points.numpy())
    assert machine.projection is None
    np.testing.assert_allclose(machine.scores(queries), -peer.decision_function(queries.numpy()), rtol=1e-3, atol=1e-3)


def test_an_indefinite_kernel_is_clipped_the_same_for_points_and_queries(learned):
    points = torch.from_numpy(3 * draw(30).astype(np.float32))
    kernel = LearnedKernel(learned, scale="logit")
    values = kernel_matrix(points, kernel=kernel)
    eigenvalues, vectors = np.linalg.eigh(values)
    assert eigenvalues[0] < -0.01 * eigenvalues[-1]
    positive, projection = clipped(values)
    wanted = vectors @ np.diag(np.maximum(eigenvalues, 0)) @ vectors.T
    np.testing.assert_allclose(positive, wanted, atol=1e-8 * eigenvalues[-1])
    assert np.linalg.eigvalsh(positive)[0] > -1e-8 * eigenvalues[-1]
    # As queries, the points have the kernel values that the machine was trained with.
    np.testing.assert_allclose(values @ projection, positive, atol=1e-8 * eigenvalues[-1])
    machine = OneClassMachine.of(points, kernel, 0.2)
    peer = OneClassSVM(kernel="precomputed", nu=0.2).fit(wanted)
    np.testing.assert_allclose(machine.scores(points), -peer.decision_function(wanted), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("method", METHODS)
def test_p_values_promise_no_more_than_they_hold(method):
    found = []
    for place in range(250):
        points = draw(24, seed=(5, place))
        fitted = Novelty(method, space="euclidean", k=2, seed=place).fit(points[:19])
        found.append(fitted.p_values(points[19:20])[0])
    found = np.asarray(found)
    for level in (0.1, 0.2, 0.5):
        share = (found <= level + 1e-9).mean()
        assert share <= level + 3 * np.sqrt(level * (1 - level) / len(found))
    # Nor are they merely large: about half of them are below a half.
    assert (found <= 0.5).mean() > 0.35


@pytest.mark.parametrize("method", METHODS)
def test_digits_of_other_classes_are_novel(method):
    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32) / 16
    known, rng = np.isin(labels, [0, 1, 2]), np.random.default_rng(0)
    rows = rng.permutation(np.flatnonzero(known))
    reference, same, other = rows[:300], rows[300:500], rng.permutation(np.flatnonzero(~known))[:200]
    fitted = Novelty(method, space="euclidean").fit(images[reference])
    scores = fitted.score(images[np.concatenate([same, other])])
    assert roc_auc_score(np.repeat([0, 1], [len(same), 200]), scores) > 0.9
    p_same, p_other = fitted.p_values(images[same]), fitted.p_values(images[other])
    assert (p_same <= 0.1).mean() < 0.17
    assert (p_other <= 0.1).mean() > (p_same <= 0.1).mean() + 0.15


def test_far_away_is_as_novel_as_can_be():
    for method in METHODS:
        fitted = Novelty(method, space="euclidean").fit(draw(40))
        p = fitted.p_values(np.full((1, 3), 50.0))
        assert p == pytest.approx(1 / (1 + len(fitted.scores_)))
        assert fitted.p_values(np.empty((0, 3))).shape == (0,)


def test_a_query_that_is_a_reference_point_is_not_novel():
    reference = draw(30)
    assert (Novelty(space="euclidean").fit(reference).p_values(reference) > 0.9).all()


@pytest.mark.parametrize(
    ("options", "reference", "told"),
    [
        ({"method": "nearst"}, draw(5), "nearest"),
        ({"k": 0}, draw(5), r"\bk\b"),
        ({"k": 5}, draw(5), "6"),
        ({"nu": 1.0}, draw(5), r"\bnu\b"),
        ({"calibration": 0}, draw(5), "calibration"),
        ({"method": "mean"}, draw(1), "2"),
        ({"method": "mean", "kernel": "learned"}, draw(5), "similarity"),
        ({}, np.full((5, 2), np.nan), "NaN"),
    ],
)
def test_what_cannot_be_fitted_is_refused(options, reference, told):
    machine = Novelty(**options)
    with pytest.raises(DataError, match=told):
        machine.fit(reference)
    with pytest.raises(DataError, match="reference"):
        machine.score(draw(2))


def test_queries_of_another_model_are_refused():
    with pytest.raises(DataError, match="dimensions"):
        Novelty().fit(draw(5)).score(np.zeros((2, 2)))
