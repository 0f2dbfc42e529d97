"""A bandwidth for each class: eq. 18 by loops, its gradient by differences, and who wins when."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from nearkin.confidence import NED, BandwidthComparison, bandwidths
from nearkin.confidence.bandwidths import _Terms, compare_bandwidths, fit_bandwidths
from nearkin.confidence.temperature import fit_temperature
from nearkin.errors import DataError


def naive_loss(energies, codes, own, logarithms, dimensions):
    """Mean of -log p by loops over eq. 18, with T for 2 alpha."""
    total = 0.0
    for row, classes, mine in zip(energies.tolist(), codes.tolist(), own.tolist(), strict=True):
        kernels = [
            math.exp(-energy / math.exp(logarithms[c])) / math.exp(logarithms[c]) ** (dimensions / 2)
            for energy, c in zip(row, classes, strict=True)
        ]
        ours = sum(kernel for kernel, c in zip(kernels, classes, strict=True) if c == mine)
        total -= math.log(max(ours / sum(kernels), 1e-12))
    return total / len(own)


def drawn(seed, n=12, k=6, classes=4):
    rng = np.random.default_rng(seed)
    energies = np.sort(rng.gamma(2, size=(n, k)), axis=1)
    codes = rng.integers(classes, size=(n, k)).astype(np.int32)
    own = codes[np.arange(n), rng.integers(k, size=n)]
    return energies, codes, own


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 7, 64]), st.integers(1, 20))
def test_objective_and_gradient(seed, dimensions, block):
    energies, codes, own = drawn(seed)
    place = np.random.default_rng(seed).normal(0, 0.4, 4)
    terms = _Terms(energies, codes, own, dimensions)
    value, gradient = terms(place)
    assert value == pytest.approx(naive_loss(energies, codes, own, place, dimensions), rel=1e-8)
    for c in range(4):
        step = 1e-5 * np.eye(4)[c]
        slope = (terms(place + step)[0] - terms(place - step)[0]) / 2e-5
        assert gradient[c] == pytest.approx(slope, rel=1e-4, abs=1e-6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bandwidths, "_BLOCK", block)
        parted, slopes = terms(place)
    assert parted == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(slopes, gradient, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_equal_bandwidths_are_the_shared_likelihood(seed):
    energies, codes, own = drawn(seed, n=30)
    fit = fit_temperature(energies, codes == own[:, None])
    value = _Terms(energies, codes, own, 5)(np.full(4, math.log(fit.temperature)))[0]
    assert -value == pytest.approx(fit.likelihood, abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_the_fit_is_that_of_a_search_without_gradient(seed):
    energies, codes, own = drawn(seed, n=60, k=8, classes=2)
    shared = fit_temperature(energies, codes == own[:, None]).temperature
    found = np.log(fit_bandwidths(energies, codes, own, 2, 2, shared))
    terms = _Terms(energies, codes, own, 2)
    reach = math.log(100) * np.array([[-1, 1]] * 2) + math.log(shared)
    start = np.full(2, math.log(shared))
    best = minimize(lambda x: terms(x)[0], start, method="Nelder-Mead", bounds=reach).fun
    assert terms(found)[0] <= terms(start)[0] + 1e-12
    assert terms(found)[0] <= best + 1e-4


def test_a_class_never_seen_keeps_the_shared_temperature():
    energies, codes, own = drawn(0, n=40)
    found = fit_bandwidths(energies, codes, own, 6, 2, 1.7)
    np.testing.assert_allclose(found[4:], 1.7, rtol=1e-12)
    assert (np.abs(np.log(found[:4] / 1.7)) > 1e-6).all()


def gaussians(seed, spreads, n=80, dimensions=2, gap=3.0):
    rng = np.random.default_rng(seed)
    labels = np.arange(n * len(spreads)) % len(spreads)
    centres = gap * rng.normal(size=(len(spreads), dimensions))
    return centres[labels] + np.array(spreads)[labels][:, None] * rng.normal(size=(len(labels), dimensions)), labels


def test_a_class_of_one_point_keeps_the_shared_temperature():
    """No point speaks for it, since it has no second one; the docstring says what it keeps."""
    points, labels = gaussians(0, [1, 1, 1])
    points, labels = np.concatenate([points, points[:1] + 0.3]), np.concatenate([labels, [9]])
    fitted = NED(space="euclidean", bandwidth="per-class").fit(points, labels)
    assert fitted.temperatures_[3] == pytest.approx(fitted.temperature_)


@pytest.mark.parametrize("seed", range(6))
def test_per_class_wins_where_spreads_differ(seed):
    points, labels = gaussians(seed, [0.05, 0.3, 2.0, 6.0], gap=1.0)
    fitted = NED(space="euclidean", bandwidth="auto").fit(points, labels)
    assert fitted.comparison_.winner == "per-class"
    assert fitted.comparison_.per_class > fitted.comparison_.shared + 0.01
    assert "per-class" in fitted.notes_[-1]
    order = [fitted.classes_.tolist().index(name) for name in range(4)]
    assert (np.diff(fitted.temperatures_[order]) > 0).all()


def test_shared_wins_where_spreads_are_equal():
    wins = []
    for seed in range(10):
        points, labels = gaussians(seed, [1.0] * 8, n=25, dimensions=8, gap=0.8)
        fitted = NED(space="euclidean", bandwidth="auto").fit(points, labels)
        wins.append(fitted.comparison_.winner == "shared")
        assert (fitted.temperatures_ is None) == wins[-1]
    assert sum(wins) >= 7


def test_per_class_is_used_when_asked_for_even_if_it_loses():
    points, labels = gaussians(0, [1.0] * 8, n=10, dimensions=8, gap=0.8)
    fitted = NED(space="euclidean", bandwidth="per-class").fit(points, labels)
    assert fitted.temperatures_.shape == (8,)
    assert (np.abs(np.log(fitted.temperatures_ / fitted.temperature_)) <= math.log(100) + 1e-9).all()


@pytest.mark.parametrize("dimensions", [2, 100])
def test_probabilities_are_those_of_equation_18(dimensions):
    points, labels = gaussians(3, [0.2, 1.0, 3.0], n=20, dimensions=dimensions, gap=1.0)
    points = points.astype(np.float32)
    fitted = NED(k=25, space="euclidean", bandwidth="per-class").fit(points, labels)
    queries = points[:8] + 0.1
    found = fitted.predict(queries).probabilities.dense()
    for row, query in enumerate(queries.astype(np.float64)):
        energies = ((points.astype(np.float64) - query) ** 2).sum(axis=1)
        near = np.argsort(energies)[:25]
        t = fitted.temperatures_[fitted.support_.codes[near]]
        exponents = -energies[near] / t - dimensions / 2 * np.log(t)
        kernels = np.exp(exponents - exponents.max())
        expected = np.bincount(fitted.support_.codes[near], kernels, minlength=3) / kernels.sum()
        np.testing.assert_allclose(found[row], expected, atol=2e-4)


def test_the_comparison_judges_each_half_by_the_other():
    energies, codes, own = drawn(5, n=41, k=6)
    found = compare_bandwidths(energies, codes, own, 4, 3, seed=2)
    halves = np.random.default_rng(2).permutation(41) % 2 == 0
    shared = per_class = 0.0
    for fitted, judged in ((halves, ~halves), (~halves, halves)):
        t = fit_temperature(energies[fitted], codes[fitted] == own[fitted][:, None]).temperature
        many = fit_bandwidths(energies[fitted], codes[fitted], own[fitted], 4, 3, t)
        rows = (energies[judged], codes[judged], own[judged])
        shared -= judged.sum() * naive_loss(*rows, np.full(4, math.log(t)), 3)
        per_class -= judged.sum() * naive_loss(*rows, np.log(many), 3)
    assert (found.shared, found.per_class) == pytest.approx((shared / 41, per_class / 41), rel=1e-6)
    assert found.points == 41


def test_points_without_positives_are_not_judged():
    energies, codes, own = drawn(6, n=30)
    own[:5] = 9
    found = compare_bandwidths(energies, codes, own, 10, 3)
    assert found.points == 25
    assert found == compare_bandwidths(energies[5:], codes[5:], own[5:], 10, 3)


def test_the_simpler_one_wins_a_draw():
    assert BandwidthComparison(-1.0, -1.0, 5).winner == "shared"
    assert str(BandwidthComparison(-1.0, -0.5, 5000)).startswith("On 5,000 support points it was not fitted to")


@pytest.mark.parametrize("labels", [[0, 0], [0, 0, 1], [0, 0, 1, 1]])
def test_a_handful_of_points(labels):
    points = np.random.default_rng(0).normal(size=(len(labels), 2))
    fitted = NED(space="euclidean", bandwidth="auto").fit(points, labels)
    np.testing.assert_allclose(fitted.predict(points).probabilities.dense().sum(axis=1), 1, atol=1e-6)


def test_one_point_cannot_be_judged_by_another():
    with pytest.raises(DataError, match="two"):
        compare_bandwidths(np.array([[1.0, 2.0]]), np.array([[0, 1]]), np.array([0]), 2, 3)
