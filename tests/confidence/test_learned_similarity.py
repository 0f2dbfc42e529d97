"""Confidence over a learned similarity S: plain loops of exp(S / T), S taken from the layers pair by pair."""

import math

import numpy as np
import pytest
import torch

from nearkin.confidence import (
    NED,
    ConformalSets,
    DudaniVote,
    GouVote,
    KNNVote,
    PrototypeRatio,
    PrototypeSoftmax,
    SharpNED,
    UnknownRejector,
    best_k,
    choose_threshold,
    sweep_k,
)
from nearkin.errors import DataError
from nearkin.models.similarity import LearnedSpace, PairSimilarity
from nearkin.spaces import Euclidean

CLASSES, EACH, DIMENSION = 4, 12, 6


@pytest.fixture(scope="module")
def space():
    """A network whose weights would learn, as they do in a model, and that has learned a little of these clouds."""
    torch.manual_seed(0)
    network = PairSimilarity(DIMENSION, hidden=20, dropout=0.0)
    support, labels, _, _ = clouds(seed=5)
    points = torch.from_numpy(support)
    same = torch.from_numpy(labels[:, None] == labels[None]).float()
    optimiser = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(60):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(network.table(points, points), same)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return LearnedSpace(Euclidean(), network.eval())


def clouds(seed=0):
    rng = np.random.default_rng(seed)
    centres = 1.2 * np.random.default_rng(99).normal(size=(CLASSES, DIMENSION))
    labels = np.arange(CLASSES * EACH) % CLASSES
    asked = rng.integers(CLASSES, size=15)
    support = centres[labels] + rng.normal(size=(len(labels), DIMENSION))
    queries = centres[asked] + rng.normal(size=(15, DIMENSION))
    return support.astype(np.float32), labels, queries.astype(np.float32), asked


def similarity(space, enrolled, query):
    """One pair by hand, in float64."""
    network = space.network
    first, second = network.first, network.second
    pair = np.concatenate([enrolled, query]).astype(np.float64)
    hidden = first.weight.detach().double().numpy() @ pair + first.bias.detach().double().numpy()
    hidden = np.where(hidden > 0, hidden, network.slope * hidden)
    return float(second.weight.detach().double().numpy()[0] @ hidden + float(second.bias.detach()))


def nearest(space, support, query, k, without=None):
    """The k most similar support points, as (S, index)."""
    all_ = [(similarity(space, point, query), i) for i, point in enumerate(support) if i != without]
    return sorted(all_, key=lambda pair: -pair[0])[:k]


def naive(space, support, labels, queries, k, temperature, without=None):
    table = np.zeros((len(queries), CLASSES))
    for row, query in enumerate(queries):
        near = nearest(space, support, query, k, None if without is None else without[row])
        weights = [math.exp((s - near[0][0]) / temperature) for s, _ in near]
        for weight, (_, i) in zip(weights, near, strict=True):
            table[row, labels[i]] += weight / sum(weights)
    return table


@pytest.mark.parametrize("k", [5, 20, "all"])
def test_ned_is_a_loop_of_exponentials_of_the_similarity(space, k):
    support, labels, queries, _ = clouds()
    found = NED(k=k, space=space, temperature=0.7).fit(support, labels).predict(queries)
    expected = naive(space, support, labels, queries, len(support) if k == "all" else k, 0.7)
    np.testing.assert_allclose(found.probabilities.dense(), expected, atol=2e-5)
    first = [nearest(space, support, query, 1)[0] for query in queries]
    np.testing.assert_allclose(found.distances[:, 0], [-s for s, _ in first], rtol=1e-4, atol=1e-5)
    assert found.indices[:, 0].tolist() == [i for _, i in first]
    assert (found.distances < 0).any()  # a square would have lost the sign
    assert k == 5 or (found.distances > 0).any()


def test_the_temperature_is_that_of_points_left_out(space):
    support, labels, _, _ = clouds()
    fitted = NED(k=30, space=space, criterion="likelihood").fit(support, labels)
    assert math.isfinite(fitted.temperature_)
    assert fitted.temperature_ > 0

    def loss(temperature):
        table = naive(space, support, labels, support, 30, temperature, without=range(len(support)))
        own = table[np.arange(len(support)), labels]
        return -np.log(np.maximum(own[own > 0], 1e-12)).mean()

    at = loss(fitted.temperature_)
    assert fitted.fit_.likelihood == pytest.approx(-at, abs=1e-4)
    tried = [loss(fitted.temperature_ * factor) for factor in (0.5, 0.8, 0.95, 1.05, 1.25, 2.0)]
    assert at <= min(tried) + 1e-6
    assert max(tried) > at + 1e-4  # the temperature matters here


def test_a_left_out_point_never_votes_for_itself(space):
    support, labels, _, _ = clouds()
    rows, found = NED(k=8, space=space).fit(support, labels).leave_one_out()
    assert not (found.indices == rows[:, None]).any()


def test_gradients_reach_the_queries(space):
    support, labels, queries, _ = clouds()
    fitted = NED(k=10, space=space, temperature=0.5).fit(support.astype(np.float64), labels)
    x = torch.from_numpy(queries[:1].astype(np.float64)).requires_grad_()
    fitted.log_proba(x)[0, 0].backward()
    step, moved = 1e-6, queries[:1].astype(np.float64)
    numeric = np.zeros(DIMENSION)
    for place in range(DIMENSION):
        ends = []
        for sign in (1, -1):
            there = moved.copy()
            there[0, place] += sign * step
            ends.append(float(fitted.log_proba(there)[0, 0].detach()))
        numeric[place] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(x.grad[0].numpy(), numeric, rtol=1e-4, atol=1e-6)


def test_votes_over_the_similarity(space):
    support, labels, queries, _ = clouds()
    plain = KNNVote(k=7, space=space).fit(support, labels).predict(queries).probabilities.dense()
    falling = DudaniVote(k=7, space=space).fit(support, labels).predict(queries).probabilities.dense()
    for row, query in enumerate(queries):
        near = nearest(space, support, query, 7)
        first, last = near[0][0], near[-1][0]
        weights = [(s - last) / (first - last) for s, _ in near]
        votes, shares = np.zeros(CLASSES), np.zeros(CLASSES)
        for weight, (_, i) in zip(weights, near, strict=True):
            votes[labels[i]] += 1 / 7
            shares[labels[i]] += weight / sum(weights)
        np.testing.assert_allclose(plain[row], votes, atol=1e-6)
        np.testing.assert_allclose(falling[row], shares, atol=1e-4)


def test_what_needs_distances_says_so(space):
    support, labels, queries, _ = clouds()
    with pytest.raises(DataError, match="negative"):
        GouVote(k=7, space=space).fit(support, labels).predict(queries)
    with pytest.raises(DataError, match="negative"):
        PrototypeRatio(space=space).fit(support, labels)
    with pytest.raises(DataError, match="similarity"):
        UnknownRejector(estimator=NED(k=10, space=space), score="ratio").fit(support, labels)


def test_prototypes_are_means_of_the_base_compared_by_the_network(space):
    support, labels, queries, _ = clouds()
    fitted = PrototypeSoftmax(space=space).fit(support, labels)
    means = np.stack([support[labels == code].mean(axis=0) for code in range(CLASSES)])
    np.testing.assert_allclose(fitted.prototypes_.numpy(), means, atol=1e-5)
    scores = np.array([[similarity(space, mean, query) for mean in means] for query in queries])
    expected = np.exp((scores - scores.max(axis=1, keepdims=True)) / fitted.temperature_)
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(fitted.predict(queries).probabilities.dense(), expected, atol=1e-4)

    def loss(temperature):
        total = 0.0
        for row, query in enumerate(support):
            others = means.copy()
            mates = [i for i in range(len(support)) if labels[i] == labels[row] and i != row]
            others[labels[row]] = support[mates].mean(axis=0)
            energy = np.array([similarity(space, mean, query) for mean in others]) / temperature
            total -= energy[labels[row]] - energy.max() - np.log(np.exp(energy - energy.max()).sum())
        return total / len(support)

    at = loss(fitted.temperature_)
    assert fitted.fit_.likelihood == pytest.approx(-at, abs=1e-4)
    assert at <= min(loss(fitted.temperature_ * factor) for factor in (0.7, 0.95, 1.05, 1.4)) + 1e-6


def test_sharpened_conformal_and_open_set_run_over_it(space):
    support, labels, queries, asked = clouds()
    sharp = SharpNED(k=20, space=space).fit(support, labels)
    assert math.isfinite(sharp.temperature_ * sharp.sharpness_)
    np.testing.assert_allclose(sharp.predict(queries).probabilities.dense().sum(axis=1), 1, atol=1e-5)
    sets = ConformalSets(estimator=NED(k="all", space=space), coverage=0.8).fit(support, labels)
    assert len(sets.predict(queries).sizes) == len(queries)
    for score in ("density", "distance", "probability"):
        rejector = UnknownRejector(estimator=NED(k=10, space=space), score=score, accept=0.9).fit(support, labels)
        assert (rejector.known_scores_ >= rejector.threshold_).mean() >= 0.9
    near = np.array([nearest(space, support, query, 1, row)[0][0] for row, query in enumerate(support)])
    distance = UnknownRejector(estimator=NED(k=10, space=space), score="distance").fit(support, labels)
    np.testing.assert_allclose(distance.known_scores_, near, rtol=1e-4, atol=1e-5)
    scores = [similarity(space, support[i], query) for query in queries for i in range(len(support))]
    right = [labels[i] == label for label in asked for i in range(len(support))]
    assert math.isfinite(choose_threshold(np.array(scores), np.array(right), "eer").value)


def test_a_sweep_takes_one_network_and_no_other(space):
    support, labels, queries, asked = clouds()
    estimators = {"NED": NED(space=LearnedSpace(space.base, space.network)), "vote": KNNVote(space=space)}
    found = sweep_k(estimators, support, labels, queries, asked, ks=[5, 10])
    lone = NED(k=10, space=space).fit(support, labels).predict(queries)
    assert found["NED"][10].values["accuracy"] == pytest.approx((lone.labels == asked).mean())
    assert best_k(KNNVote(space=space), support, labels, ks=[3, 9]) in (3, 9)
    other = LearnedSpace(space.base, PairSimilarity(DIMENSION, hidden=20).eval())
    with pytest.raises(DataError, match="space"):
        sweep_k({"one": NED(space=space), "other": KNNVote(space=other)}, support, labels, queries, asked, ks=[5])
