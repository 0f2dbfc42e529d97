"""Principal components: against scikit-learn, what they keep, and what they cannot be made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from nearkin.errors import DataError
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, PrincipalRotation, Sphere


def points(n=60, d=7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * np.geomspace(4, 0.2, d) + rng.normal(size=d)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_euclidean_components_are_those_of_scikit_learn(size):
    theirs = PCA(size).fit(points())
    ours = PrincipalRotation(Euclidean()).fit(points())
    turned = ours.transform(points(20, seed=1))[:, :size]
    np.testing.assert_allclose(np.abs(turned), np.abs(theirs.transform(points(20, seed=1))), atol=1e-9)
    assert ours.kept_[size - 1] == pytest.approx(theirs.explained_variance_ratio_.sum())


def test_on_the_sphere_directions_are_those_of_unit_vectors_and_nothing_is_taken_off():
    unit = points() / np.linalg.norm(points(), axis=1, keepdims=True)
    theirs = PCA().fit(unit)
    ours = PrincipalRotation(Sphere()).fit(points() * np.random.default_rng(2).uniform(0.5, 9, (60, 1)))
    np.testing.assert_allclose(np.abs(ours.components_), np.abs(theirs.components_), atol=1e-5)
    np.testing.assert_allclose(ours.transform(unit), unit @ ours.components_.T, atol=1e-12)


@given(st.integers(2, 9), st.integers(0, 1000))
def test_turning_keeps_distances_and_on_the_sphere_angles_too(d, seed):
    given_points = points(25, d, seed)
    flat = PrincipalRotation(Euclidean()).fit_transform(given_points)
    round_ = PrincipalRotation(Sphere()).fit_transform(given_points)
    wanted = np.linalg.norm(given_points[:, None] - given_points, axis=-1)
    np.testing.assert_allclose(np.linalg.norm(flat[:, None] - flat, axis=-1), wanted, atol=1e-9)
    np.testing.assert_allclose(round_ @ round_.T, given_points @ given_points.T, atol=1e-8)


def test_precision_is_kept_and_tensors_are_taken():
    rotation = PrincipalRotation().fit(torch.from_numpy(points()))
    assert rotation.transform(points().astype(np.float32)).dtype == np.float32
    assert rotation.transform(points()).dtype == np.float64


def test_fewer_points_than_dimensions_still_turn_without_loss():
    few = points(3, 7)
    rotation = PrincipalRotation(Euclidean()).fit(few)
    assert rotation.items_ == 3
    np.testing.assert_allclose(rotation.components_ @ rotation.components_.T, np.eye(7), atol=1e-9)
    assert rotation.kept_[1] == pytest.approx(1)


@pytest.mark.parametrize("space", [LipschitzBall(), PoincareBall()])
def test_other_spaces_are_refused(space):
    with pytest.raises(DataError, match=space.name):
        PrincipalRotation(space).fit(points())


@pytest.mark.parametrize(
    ("bad", "words"),
    [(np.ones((5, 3)), "identical"), (points(1), "two"), (np.full((4, 2), np.nan), "NaN"), ([1.0], "shape")],
)
def test_what_has_no_directions_is_refused(bad, words):
    with pytest.raises(DataError, match=words):
        PrincipalRotation(Euclidean()).fit(bad)


def test_transform_wants_a_fit_and_as_many_dimensions():
    with pytest.raises(DataError, match="fit"):
        PrincipalRotation().transform(points())
    with pytest.raises(DataError, match="dimensions"):
        PrincipalRotation().fit(points()).transform(points(d=6))
