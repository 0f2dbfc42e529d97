"""The mean correlation of input and feature distances against scipy."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr

from nearkin.errors import DataError
from nearkin.metrics import DistanceStructure, distance_correlation, geometry
from nearkin.metrics.geometry import feature_distances, input_distances, sampled_rows
from nearkin.spaces import Sphere


def data(n=30, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.random((n, 2, 4, 4))
    return inputs, inputs.reshape(n, -1)[:, :5] + 0.3 * rng.normal(size=(n, 5))


@pytest.mark.parametrize(("norm", "metric"), [("l2", "euclidean"), ("linf", "chebyshev")])
def test_it_is_spearman_row_by_row_averaged_by_fisher(norm, metric):
    inputs, features = data()
    left = cdist(inputs.reshape(30, -1), inputs.reshape(30, -1), metric)
    right = cdist(features, features)
    rows = [spearmanr(np.delete(left[i], i), np.delete(right[i], i)).statistic for i in range(30)]
    found = distance_correlation(inputs, features, norm=norm)
    assert found.value == pytest.approx(np.tanh(np.arctanh(rows).mean()))
    np.testing.assert_allclose(found.per_class, rows)
    np.testing.assert_allclose(input_distances(inputs, norm), left)


def test_features_are_compared_in_their_space():
    inputs, features = data()
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    np.testing.assert_allclose(feature_distances(features, Sphere()), cdist(unit, unit), atol=1e-7)
    on_sphere = distance_correlation(inputs, features, space=Sphere()).value
    assert on_sphere == pytest.approx(distance_correlation(inputs, unit).value)
    assert on_sphere != pytest.approx(distance_correlation(inputs, features).value)


def test_a_sample_is_drawn_by_the_seed():
    inputs, features = data(60)
    rows = sampled_rows(60, 20, 3)
    assert len(set(rows.tolist())) == 20
    assert (np.diff(rows) > 0).all()
    expected = distance_correlation(inputs[rows], features[rows]).value
    assert distance_correlation(inputs, features, sample=20, seed=3).value == expected
    assert distance_correlation(inputs, features, sample=20, seed=4).value != expected
    given = torch.from_numpy(inputs), torch.from_numpy(features)
    assert distance_correlation(*given, sample=20, seed=3).value == pytest.approx(expected)


def test_a_structure_can_be_kept_and_correlated():
    inputs, features = data()
    structure = DistanceStructure(input_distances(inputs), feature_distances(features))
    assert structure.correlation().value == distance_correlation(inputs, features).value


@pytest.mark.parametrize(
    ("options", "words"),
    [({"norm": "l1"}, "linf"), ({"sample": 2}, "3"), ({"sample": True}, "3")],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(DataError, match=words):
        distance_correlation(*data(), **options)


def test_items_must_be_the_same_and_enough():
    inputs, features = data()
    with pytest.raises(DataError, match="29"):
        distance_correlation(inputs, features[1:])
    with pytest.raises(DataError, match="2"):
        distance_correlation(inputs[:2], features[:2])


def test_the_example_of_the_docstring_runs():
    assert doctest.testmod(geometry).failed == 0
