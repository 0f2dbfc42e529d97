"""NED that is less sure of queries which lie far away: its formula, its gradient, and what it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.confidence import NED, Widening, evaluate
from nearkin.errors import DataError
from nearkin.search import exact


def clusters(classes=20, each=12, dimensions=8, noise=0.8, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(classes, dimensions)), each, axis=0)
    return centres + noise * rng.normal(size=centres.shape), np.repeat(np.arange(classes), each)


def far(x, seed=1):
    """The same points with much of their class lost in noise."""
    return 0.7 * x + 1.2 * np.random.default_rng(seed).normal(size=x.shape)


def naive(x, support, labels, ned, usual, widening):
    """Probabilities (C,) of one query in float64 in Euclidean space."""
    squares = ((x - support) ** 2).sum(axis=1)
    near = np.argsort(squares)[: ned.k]
    ratio = max(1.0, squares[near][:10].mean() / usual)
    sums = np.zeros(labels.max() + 1)
    np.add.at(sums, labels[near], np.exp(-(squares[near] - squares.min()) / ned.temperature_))
    powered = sums ** (ned.sharpness_ / ratio**widening)
    powered[sums == 0] = 0
    return powered / powered.sum()


@pytest.mark.parametrize("criterion", ["likelihood", "calibration", "sharpened"])
@pytest.mark.parametrize("widening", [0.5, 2.0])
def test_probabilities_match_the_definition(criterion, widening):
    x, labels = clusters()
    support, own = x[::2], labels[::2]
    ned = NED(k=40, space="euclidean", criterion=criterion, widening=widening).fit(support, own)
    distances, _ = exact(support, k=40, space="euclidean")
    usual = np.median([np.mean(row[:10] ** 2) for row in distances.numpy().astype(np.float64)])
    assert ned.widening_.usual == pytest.approx(usual, rel=1e-5)
    queries = np.concatenate([x[1:20:2], far(x[1:20:2])])
    found = ned.predict(queries).probabilities.dense()
    for row, query in zip(found, queries, strict=True):
        np.testing.assert_allclose(row, naive(query, support, own, ned, usual, widening), rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(ned.log_proba(queries).exp().numpy(), found, rtol=2e-3, atol=1e-5)


def test_no_label_changes_and_nobody_gets_surer():
    x, labels = clusters()
    plain, wide = (NED(widening=power).fit(x[::2], labels[::2]) for power in (0.0, 2.0))
    for queries in (x[1::2], far(x[1::2])):
        before, after = (ned.predict(queries) for ned in (plain, wide))
        np.testing.assert_array_equal(before.labels, after.labels)
        assert (after.confidence <= before.confidence + 1e-6).all()


def test_it_helps_where_queries_have_moved():
    x, labels = clusters(classes=40, each=30)
    plain, wide = (NED(space="euclidean", widening=power).fit(x[::2], labels[::2]) for power in (0.0, 1.0))
    before, after = (evaluate(ned.predict(far(x[1::2])), labels[1::2]).values["ECE"] for ned in (plain, wide))
    assert after < before - 0.03


def test_a_query_at_a_usual_distance_is_as_sure_as_ever():
    widening = Widening.of(3.0, np.array([[1.0, 3.0], [2.0, 4.0], [9.0, 9.0]]))
    assert widening.usual == 3.0
    found = widening.powers(torch.tensor([[0.5, 1.0], [3.0, 3.0], [6.0, 6.0]]))
    assert found.tolist() == pytest.approx([1.0, 1.0, 0.125])


def test_neighbours_that_are_none_do_not_count():
    found = Widening(1.0, 2.0).powers(torch.tensor([[4.0, torch.inf], [4.0, 4.0]]))
    assert found.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("space", ["inner-product"])
def test_a_similarity_of_any_sign_is_not_widened(space):
    x, labels = clusters()
    wide, plain = (NED(space=space, widening=power).fit(x[::2], labels[::2]) for power in (1.0, 0.0))
    assert wide.widening_ == Widening()
    np.testing.assert_array_equal(wide.predict(x[1::2]).confidence, plain.predict(x[1::2]).confidence)


@pytest.mark.parametrize("space", ["euclidean", "sphere"])
def test_the_gradient_is_right(space):
    x, labels = clusters(classes=4, each=6, dimensions=5)
    ned = NED(k=12, space=space, temperature=0.3, widening=1.5).fit(torch.from_numpy(x), labels)
    query = torch.from_numpy(far(x[3:6])).requires_grad_()
    present = ned.log_proba(query).detach() > -20
    assert torch.autograd.gradcheck(lambda q: ned.log_proba(q)[present], query)


@pytest.mark.parametrize("wrong", [-1.0, np.inf, np.nan, True, "far"])
def test_bad_parameters_are_refused(wrong):
    with pytest.raises(DataError, match="widening"):
        NED(widening=wrong).fit(*clusters())
