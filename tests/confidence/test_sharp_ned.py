"""Sharpened NED: its formula, its fit, its gradient, and that it does what it is for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from nearkin.confidence import NED, SharpNED, evaluate
from nearkin.errors import DataError
from nearkin.search import exact


def clusters(classes=20, each=24, dimensions=32, noise=1.2, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(classes, dimensions)), each, axis=0)
    return centres + noise * rng.normal(size=centres.shape), np.repeat(np.arange(classes), each)


def naive(x, support, labels, k, temperature, power):
    """Probabilities (C,) of one query in float64, on the sphere."""
    unit = support / np.linalg.norm(support, axis=1, keepdims=True)
    squares = ((x / np.linalg.norm(x) - unit) ** 2).sum(axis=1)
    near = np.argsort(squares)[:k]
    sums = np.zeros(labels.max() + 1)
    np.add.at(sums, labels[near], np.exp(-(squares[near] - squares.min()) / temperature))
    return sums**power / (sums**power).sum()


@pytest.mark.parametrize("power", [0.5, 1.0, 2.5])
def test_probabilities_are_powers_of_the_class_sums(power):
    x, labels = clusters()
    model = SharpNED(k=50, temperature=0.1, sharpness=power).fit(x[::2], labels[::2])
    found = model.predict(x[1:20:2]).probabilities.dense()
    for row, query in zip(found, x[1:20:2], strict=True):
        np.testing.assert_allclose(row, naive(query, x[::2], labels[::2], 50, 0.1, power), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.log_proba(x[1:20:2]).exp().numpy(), found, rtol=1e-4, atol=1e-6)


def test_a_sharpness_of_one_is_ned():
    x, labels = clusters()
    ours = SharpNED(sharpness=1.0).fit(x[::2], labels[::2])
    peer = NED(criterion="likelihood", widening=0).fit(x[::2], labels[::2])
    assert ours.temperature_ == peer.temperature_
    np.testing.assert_allclose(
        ours.predict(x[1::2]).probabilities.dense(), peer.predict(x[1::2]).probabilities.dense(), atol=1e-6
    )


@pytest.mark.parametrize(("dimensions", "noise", "seed"), [(32, 1.2, 0), (8, 0.8, 1), (64, 1.6, 2)])
def test_temperature_and_sharpness_are_the_likeliest_pair(dimensions, noise, seed):
    x, labels = clusters(dimensions=dimensions, noise=noise, seed=seed)
    model = SharpNED(k=60).fit(x, labels)
    distances, indices = (part.numpy().astype(np.float64) for part in exact(x, k=60))
    near = labels[indices.astype(int)]
    counted = (near == labels[:, None]).any(axis=1)

    def loss(place):
        weights = np.exp(-(distances**2 - distances[:, :1] ** 2) / np.exp(place[0]))
        sums = np.stack([(weights * (near == code)).sum(axis=1) for code in range(20)], axis=1) ** np.exp(place[1])
        share = sums[np.arange(len(labels)), labels] / sums.sum(axis=1)
        return -np.log(np.maximum(share, 1e-12))[counted].mean()

    ours = loss((np.log(model.temperature_), np.log(model.sharpness_)))
    start = (np.log(NED(k=60, criterion="likelihood").fit(x, labels).temperature_), 0.0)
    best = minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-6}).fun
    assert ours <= best + 2e-3
    assert ours < loss(start)


def test_it_helps_where_one_number_cannot_do_both():
    x, labels = clusters(classes=40, each=30, dimensions=64, noise=2.0)
    kinds = (NED(criterion="likelihood", widening=0), SharpNED())
    plain, sharp = (kind.fit(x[::2], labels[::2]) for kind in kinds)
    before, after = (evaluate(model.predict(x[1::2]), labels[1::2]).values for model in (plain, sharp))
    assert sharp.sharpness_ > 1.2
    assert after["accuracy"] > before["accuracy"] + 0.02
    assert after["NLL"] < before["NLL"] - 0.05


@pytest.mark.parametrize("power", [0.6, 2.0])
def test_the_gradient_is_right(power):
    x, labels = clusters(classes=4, each=6, dimensions=5)
    model = SharpNED(k=12, temperature=0.3, sharpness=power).fit(torch.from_numpy(x), labels)
    query = torch.from_numpy(x[3:5] + 0.05).requires_grad_()
    present = model.log_proba(query).detach() > -20
    assert torch.autograd.gradcheck(lambda q: model.log_proba(q)[present], query)


def test_bad_parameters_are_refused():
    x, labels = clusters()
    for wrong in (0, -1.0, np.inf, np.nan, True, "high"):
        with pytest.raises(DataError, match="sharpness"):
            SharpNED(sharpness=wrong).fit(x, labels)
    with pytest.raises(DataError, match="bandwidth"):
        SharpNED(bandwidth="per-class").fit(x, labels)


def naive_ece(confidence, right):
    """The mean gap over 15 bins, by loops."""
    places = np.minimum((np.float32(confidence) * 15).astype(int), 14)
    gaps = [abs(confidence[places == bin].sum() - right[places == bin].sum()) for bin in range(15)]
    return sum(gaps) / len(confidence)


@pytest.mark.parametrize(("noise", "seed"), [(1.2, 0), (1.8, 1)])
def test_the_calibrated_temperature_has_the_lowest_error_of_points_left_out(noise, seed):
    x, labels = clusters(noise=noise, seed=seed)
    model = NED(k=60, criterion="calibration", widening=0).fit(x, labels)
    likely = NED(k=60, criterion="likelihood", widening=0).fit(x, labels)
    distances, indices = (part.numpy().astype(np.float64) for part in exact(x, k=60))
    near = labels[indices.astype(int)]

    def left_out(temperature):
        weights = np.exp(-(distances**2 - distances[:, :1] ** 2) / temperature)
        weights[near == labels[:, None]] *= 24 / 23  # a class that lacks a point counts whole
        sums = np.stack([(weights * (near == code)).sum(axis=1) for code in range(20)], axis=1)
        shares = sums / sums.sum(axis=1, keepdims=True)
        right = shares.argmax(axis=1) == labels
        return naive_ece(shares.max(axis=1), right), right.mean()

    usual, accuracy = left_out(likely.temperature_)
    ours, kept = left_out(model.temperature_)
    least = accuracy - np.sqrt(accuracy * (1 - accuracy) / len(labels))
    tried = [left_out(factor * likely.temperature_) for factor in np.exp(np.linspace(-1.5, 1.5, 31))]
    assert ours == pytest.approx(min(error for error, right in tried if right >= least), abs=2e-3)
    assert ours <= usual
    assert kept >= least


@pytest.mark.parametrize(
    ("parameters", "criterion"),
    [({"criterion": "likelihood"}, "likelihood"), ({"temperature": 0.1}, None), ({"bandwidth": "auto"}, "likelihood")],
)
def test_an_estimator_says_how_it_was_fitted(parameters, criterion):
    x, labels = clusters()
    model = NED(**parameters).fit(x[::2], labels[::2])
    assert model.criterion_ == criterion
    assert ("likelihood" in model.fitted_by) == (criterion is not None)
    assert model.sharpness_ == 1
    assert not model.widening_.power or criterion == parameters.get("criterion")


def test_a_given_temperature_leaves_nothing_to_fit():
    x, labels = clusters()
    with pytest.raises(DataError, match="criterion"):
        NED(temperature=0.1, criterion="calibration").fit(x, labels)
    with pytest.raises(DataError, match="criterion"):
        NED(criterion="likelyhood").fit(x, labels)
    with pytest.raises(DataError, match="bandwidth"):
        NED(bandwidth="per-class", criterion="calibration").fit(x, labels)
