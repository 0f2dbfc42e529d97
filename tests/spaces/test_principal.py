"""Principal-direction re-weighting against scikit-learn and by its limits."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from nearkin.errors import DataError
from nearkin.spaces import PrincipalReweighting, principal
from nearkin.spaces.principal import triangular_factor


def points(n=200, d=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * np.geomspace(4, 0.05, d) @ np.linalg.qr(rng.normal(size=(d, d)))[0] + 3


def test_directions_are_those_of_scikit_learn():
    x = points()
    ours, theirs = PrincipalReweighting().fit(x), PCA().fit(x)
    np.testing.assert_allclose(ours.mean_, theirs.mean_)
    np.testing.assert_allclose(ours.singular_values_, theirs.singular_values_)
    np.testing.assert_allclose(np.abs((ours.components_ * theirs.components_).sum(axis=1)), 1)


@pytest.mark.parametrize("power", [0.25, 1.0, -0.5])
def test_a_feature_is_the_weighted_sum_of_its_directions(power):
    x, new = points(), points(5, seed=1)
    found = PrincipalReweighting(power).fit(x)
    weights = found.singular_values_**-power
    scale = found.weights_ / weights
    np.testing.assert_allclose(scale, scale[0])
    for row, changed in zip(new, found.transform(new), strict=True):
        expected = sum(
            w * ((row - found.mean_) @ u) * u for w, u in zip(found.weights_, found.components_, strict=True)
        )
        np.testing.assert_allclose(changed, expected)


@given(st.floats(-1, 2), st.integers(0, 5))
def test_the_spread_of_the_fitted_points_is_kept(power, seed):
    x = points(seed=seed)
    changed = PrincipalReweighting(power).fit_transform(x)
    np.testing.assert_allclose(changed.mean(axis=0), 0, atol=1e-9)
    assert np.square(changed).sum() == pytest.approx(np.square(x - x.mean(axis=0)).sum())


def test_power_zero_only_centres_and_power_one_whitens():
    x = points()
    np.testing.assert_allclose(PrincipalReweighting(0).fit_transform(x), x - x.mean(axis=0), atol=1e-12)
    white = PrincipalReweighting(1).fit_transform(x)
    spread = np.cov(white.T)
    np.testing.assert_allclose(spread, spread[0, 0] * np.eye(len(spread)), atol=1e-9)
    ratio = white / PCA(whiten=True).fit(x).transform(x).std()
    assert ratio.std() == pytest.approx(np.sqrt(spread[0, 0]), rel=1e-2)


def test_given_weights_are_taken_as_they_are():
    x = points()
    found = PrincipalReweighting(weights=[1, 0, 0, 0, 0, 0]).fit(x)
    changed = found.transform(x)
    np.testing.assert_allclose(changed, PCA(1).fit(x).inverse_transform(PCA(1).fit_transform(x)) - x.mean(axis=0))


def test_directions_without_variance_are_not_blown_up():
    x = points()[:, :4] @ np.random.default_rng(2).normal(size=(4, 7))  # rank 4 in 7 dimensions
    found = PrincipalReweighting(1).fit(x.astype(np.float32))
    assert (found.weights_[:4] > 0).all()
    assert (found.weights_[4:] == 0).all()
    few = PrincipalReweighting(1).fit(points(3))  # fewer points than dimensions
    assert few.components_.shape == (6, 6)
    np.testing.assert_allclose(few.components_ @ few.components_.T, np.eye(6), atol=1e-12)
    assert np.count_nonzero(few.weights_) == 2


def test_precision_and_kind_of_the_input():
    x = torch.from_numpy(points()).float()
    found = PrincipalReweighting().fit(x)
    assert found.transform(x).dtype == np.float32
    assert found.transform(x.double()).dtype == np.float64
    assert found.transform(x.bfloat16()).dtype == np.float32
    assert PrincipalReweighting(power="x").power == "x"  # stored untouched, refused when fitted


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_blocks_of_rows_change_nothing(monkeypatch, rows):
    x = points()
    whole = PrincipalReweighting().fit_transform(x)
    monkeypatch.setattr(principal, "_BLOCK", rows * x.shape[1])
    np.testing.assert_allclose(PrincipalReweighting().fit_transform(x), whole, atol=1e-10)
    factor = triangular_factor(np.array_split(x, max(1, 200 // rows)))
    np.testing.assert_allclose(factor.T @ factor, x.T @ x)


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        ({"power": "a"}, points(), "power"),
        ({"power": np.nan}, points(), "power"),
        ({"power": 1e9}, points(), "power"),
        ({"weights": [0] * 6}, points(), "weights"),
        ({"weights": [1, 2]}, points(), "6"),
        ({"weights": [1, 2, 3, 4, 5, -1]}, points(), "weights"),
        ({"weights": "abc"}, points(), "weights"),
        ({}, points(1), "two"),
        ({}, np.ones((5, 3)) / 3, "identical"),
        ({}, np.full((5, 3), np.nan), "NaN"),
        ({}, np.ones(4), "shape"),
        ({}, [[1, 2], [3]], "rows"),
    ],
)
def test_what_cannot_be_used_is_refused(settings, given, words):
    with pytest.raises(DataError) as refused:
        PrincipalReweighting(**settings).fit(given)
    assert words in str(refused.value)


def test_transform_needs_fit_and_the_same_dimensions():
    with pytest.raises(DataError, match="fit"):
        PrincipalReweighting().transform(points())
    with pytest.raises(DataError, match="dimensions"):
        PrincipalReweighting().fit(points()).transform(points(d=5))


def test_the_example_of_the_docstring_runs():
    assert doctest.testmod(principal).failed == 0


def test_the_python_of_the_page_runs():
    page = Path(__file__).parents[2] / "docs" / "methods" / "principal-reweighting.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(compile(block, str(page), "exec"), {})
