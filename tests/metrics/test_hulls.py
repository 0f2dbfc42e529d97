"""Hulls in the plane against scipy, by hand, and where they have no area."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog
from scipy.spatial import ConvexHull, HalfspaceIntersection

from nearkin.errors import DataError
from nearkin.metrics.local_features import convex_hull, hull_overlap, intersection, polygon_area

SQUARE = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])


def shared_area(first, second):
    """The area that two hulls share, from the half-planes of both and a point inside all of them."""
    planes = np.vstack([ConvexHull(first).equations, ConvexHull(second).equations])
    deepest = linprog(
        [0, 0, -1], A_ub=np.hstack([planes[:, :2], np.ones((len(planes), 1))]), b_ub=-planes[:, 2], bounds=(None, None)
    )
    if deepest.x[2] <= 1e-9:
        return 0.0
    return ConvexHull(HalfspaceIntersection(planes, deepest.x[:2]).intersections).volume


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("far", [0.0, 1e5])
def test_hull_and_area_are_those_of_scipy(seed, far):
    points = np.random.default_rng(seed).normal(size=(3 + 7 * seed, 2)) + far
    hull, expected = convex_hull(points), ConvexHull(points)
    assert {tuple(corner) for corner in hull} == {tuple(points[place]) for place in expected.vertices}
    assert polygon_area(hull) == pytest.approx(expected.volume, rel=1e-6)
    x, y = (hull - hull.mean(axis=0)).T
    assert (np.diff(np.unwrap(np.arctan2(y, x))) > 0).all()  # counter-clockwise


@pytest.mark.parametrize("seed", range(8))
def test_what_two_hulls_share_is_that_of_their_half_planes(seed):
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=(9, 2)), rng.normal(size=(6, 2)) + rng.uniform(0, 2.5, size=2)
    found = polygon_area(intersection(convex_hull(first), convex_hull(second)))
    expected = shared_area(first, second)
    assert found == pytest.approx(expected, abs=1e-9)
    union = ConvexHull(first).volume + ConvexHull(second).volume - expected
    np.testing.assert_allclose(hull_overlap([first, second]), [[1, expected / union], [expected / union, 1]], atol=1e-9)


def test_squares_by_hand():
    overlap = hull_overlap([SQUARE, SQUARE + 0.5, SQUARE + np.array([1.0, 0.0]), SQUARE + 7, 0.5 * SQUARE + 0.25])
    np.testing.assert_allclose(overlap[0], [1.0, 0.25 / 1.75, 0.0, 0.0, 0.25], atol=1e-12)
    np.testing.assert_allclose(overlap, overlap.T)


@pytest.mark.parametrize(
    ("points", "corners"),
    [
        (np.zeros((0, 2)), 0),
        (np.ones((1, 2)), 1),
        (np.ones((5, 2)), 1),
        (np.array([[0.0, 0.0], [1.0, 1.0]]), 2),
        (np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [5.0, 5.0]]), 2),
        (np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 3.0]]), 2),
    ],
)
def test_hulls_without_area_overlap_with_nothing(points, corners):
    hull = convex_hull(points)
    assert hull.shape == (corners, 2)
    assert polygon_area(hull) == 0.0
    assert intersection(hull, SQUARE).shape == intersection(SQUARE, hull).shape == (0, 2)
    assert hull_overlap([points, SQUARE]).tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_a_line_keeps_its_ends():
    line = np.array([[1.0, 1.0], [0.0, 0.0], [3.0, 3.0], [2.0, 2.0]])
    assert convex_hull(line).tolist() == [[0.0, 0.0], [3.0, 3.0]]


points = arrays(np.float64, st.tuples(st.integers(1, 9), st.just(2)), elements=st.integers(-5, 5).map(float))


@settings(max_examples=150, deadline=None)
@given(points, points)
def test_an_overlap_is_a_share_and_symmetric(first, second):
    overlap = hull_overlap([first, second])
    assert ((overlap >= 0) & (overlap <= 1)).all()
    assert overlap[0, 1] == overlap[1, 0]
    assert overlap[0, 1] == pytest.approx(hull_overlap([second, first])[0, 1], abs=1e-9)
    hull = convex_hull(first)
    assert {tuple(corner) for corner in convex_hull(hull)} == {tuple(corner) for corner in hull}
    assert polygon_area(convex_hull(np.concatenate([first, second]))) >= polygon_area(hull) - 1e-9


@pytest.mark.parametrize("given_points", [np.zeros((3, 3)), np.zeros(4), np.full((3, 2), np.nan)])
def test_other_points_are_refused(given_points):
    with pytest.raises(DataError, match="points"):
        convex_hull(given_points)
