"""The map of a gallery: near ones near, the same every time, and room for a query."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from nearkin.errors import DataError
from nearkin.gallery.map import project


def clusters(classes, items, seed=0, noise=0.3):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), items)
    points = rng.normal(size=(classes, 32))[labels] + noise * rng.normal(size=(len(labels), 32))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.fixture(scope="module")
def made():
    points, labels = clusters(8, 40)
    return points, labels, project(points)


def test_neighbours_in_the_plane_are_of_one_class(made):
    _, labels, found = made
    apart = ((found.points[:, None] - found.points) ** 2).sum(axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (labels[apart.argmin(axis=1)] == labels).mean() > 0.97


def test_the_unit_square_is_filled_and_the_map_repeats(made):
    points, _, found = made
    assert found.points.min() >= 0
    assert found.points.max() <= 1
    assert np.ptp(found.points, axis=0).max() == pytest.approx(1)
    assert np.array_equal(project(points.copy()).points, found.points)


def test_a_query_lies_in_its_class(made):
    points, labels, found = made
    queries, truth = clusters(8, 40)
    queries = queries + 0.05 * np.random.default_rng(5).normal(size=queries.shape).astype(np.float32)
    places = np.array([found.place(query) for query in queries])
    nearest = ((places[:, None] - found.points) ** 2).sum(axis=2).argmin(axis=1)
    assert (labels[nearest] == truth).mean() > 0.95
    assert found.place(points[17]) == pytest.approx(tuple(found.points[17]))
    assert found.place(torch.from_numpy(points[17]).requires_grad_()) == pytest.approx(tuple(found.points[17]))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 6, 7, 20])
@pytest.mark.parametrize("dimensions", [1, 2, 40])
def test_few_points_have_places(count, dimensions):
    points = np.random.default_rng(0).normal(size=(count, dimensions))
    found = project(points)
    assert found.points.shape == (count, 2)
    assert np.isfinite(found.points).all()
    assert ((found.points >= 0) & (found.points <= 1)).all()
    x, y = found.place(np.ones(dimensions))
    assert 0 <= x <= 1
    assert 0 <= y <= 1
    if count == 2:
        assert not np.allclose(found.points[0], found.points[1])


@pytest.mark.parametrize("value", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("count", [2, 50])
def test_equal_points_lie_in_the_middle(count, value):
    found = project(np.full((count, 8), value))
    assert np.array_equal(found.points, np.full((count, 2), 0.5))
    assert found.place(np.full(8, 3.0)) == (0.5, 0.5)


def test_two_thousand_points_take_seconds_and_more_are_placed_among_them():
    points, labels = clusters(20, 125)
    began = time.process_time()
    found = project(points)
    assert time.process_time() - began < 10
    assert len(found.points) == 2500
    assert len(found.vectors) == 2000
    others = np.setdiff1d(np.arange(2500), found.laid_out)
    nearest = ((found.points[others, None] - found.points[found.laid_out]) ** 2).sum(axis=2).argmin(axis=1)
    assert (labels[found.laid_out][nearest] == labels[others]).mean() > 0.9


@pytest.mark.parametrize("vectors", [np.full((3, 2), np.nan), np.ones(3), "x", [[1, 2], [3]]])
def test_bad_vectors_are_refused(vectors):
    with pytest.raises(DataError):
        project(vectors)


@pytest.mark.parametrize("vector", [np.ones(3), np.ones((2, 32)), np.full(32, np.nan)])
def test_bad_queries_are_refused(made, vector):
    with pytest.raises(DataError):
        made[2].place(vector)
