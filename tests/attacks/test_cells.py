"""Voronoi cells by brute force: duplicates, neighbours, nearest others, and who is inside."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist

from nearkin.attacks import L2, Combined, LInf
from nearkin.attacks.cells import MARGIN, VoronoiCells, merge_duplicates
from nearkin.errors import DataError

NORMS = [L2(), LInf(), Combined(0.3)]
norms = pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.name)


def naive_distances(norm, x, y):
    if isinstance(norm, Combined):
        return norm.beta * cdist(x, y, "cityblock") + (1 - norm.beta) * cdist(x, y, "chebyshev")
    return cdist(x, y, "euclidean" if isinstance(norm, L2) else "chebyshev")


def distinct(rng, count, dimension, whole):
    """Different points; whole ones tie often and exactly."""
    points = rng.integers(0, 4, (count, dimension)) / 4 if whole else rng.random((count, dimension))
    return np.unique(points, axis=0)


def test_equal_inputs_are_merged():
    x = torch.tensor([[3.0, 1], [0, 0], [3, 1], [2, 2], [-0.0, 0], [3, 1]]).view(6, 1, 2)
    found = merge_duplicates(x, ["a", "b", "a", "c", "b", "a"])
    assert found.rows.tolist() == [0, 1, 3]
    assert found.labels.tolist() == ["a", "b", "c"]
    assert found.points.tolist() == [[3, 1], [0, 0], [2, 2]]
    assert found.merged == 3
    assert found.places.tolist() == [0, 1, 0, 2, 1, 0]


@given(seed=st.integers(0, 10**6), count=st.integers(1, 20), dimension=st.integers(1, 3))
@settings(max_examples=40)
def test_what_is_kept_matches_a_naive_loop(seed, count, dimension):
    x = np.random.default_rng(seed).integers(0, 3, (count, dimension)).astype(np.float32)
    labels = x.sum(axis=1).astype(int)
    kept = [row for row in range(count) if not any((x[row] == x[other]).all() for other in range(row))]
    found = merge_duplicates(torch.from_numpy(x), labels)
    assert found.rows.tolist() == kept
    assert found.merged == count - len(kept)
    assert np.array_equal(found.points.numpy(), x[kept])
    assert np.array_equal(found.labels, labels[kept])
    assert np.array_equal(found.points.numpy()[found.places], x)


def test_equal_inputs_of_different_classes_are_refused_by_their_rows():
    x = torch.tensor([[0.0, 1], [1, 1], [2, 2], [1, 1]])
    with pytest.raises(DataError, match=r"1\D+3"):
        merge_duplicates(x, ["a", "b", "c", "d"])


@pytest.mark.parametrize(
    ("points", "labels", "word"),
    [
        (torch.zeros(2, 3), ["a"], "labels"),
        (torch.zeros(0, 3), [], "inputs"),
        (torch.tensor([[0.0, torch.nan]]), ["a"], "NaN"),
        (torch.tensor([[0.0, torch.inf]]), ["a"], "NaN"),
    ],
)
def test_what_has_no_cells_is_refused(points, labels, word):
    with pytest.raises(DataError, match=word):
        merge_duplicates(points, labels)


@norms
@given(
    seed=st.integers(0, 10**6),
    dimension=st.integers(1, 4),
    radius=st.sampled_from([0.0, 0.125, 0.2, 0.5, float("inf")]),
    whole=st.booleans(),
)
@settings(max_examples=30)
def test_neighbours_are_those_within_twice_the_radius(norm, seed, dimension, radius, whole):
    rng = np.random.default_rng(seed)
    points = distinct(rng, 15, dimension, whole)
    rows = rng.permutation(len(points))[:7]
    found = VoronoiCells(torch.from_numpy(points), norm).neighbours(torch.from_numpy(rows), radius)
    distances = naive_distances(norm, points[rows], points)
    for place, row in enumerate(rows):
        expected = [
            other for other in range(len(points)) if other != row and distances[place, other] <= 2 * radius + 1e-12
        ]
        mine = slice(*found.starts[place : place + 2].tolist())
        assert found.places[mine].tolist() == expected
        np.testing.assert_allclose(found.lengths[mine], distances[place, expected], rtol=1e-12)
        assert found.owners[mine].tolist() == [place] * len(expected)
        assert int(found.counts[place]) == len(expected)


def test_choosing_among_neighbours():
    points = torch.from_numpy(np.random.default_rng(0).random((12, 2)))
    cells = VoronoiCells(points, L2())
    near = cells.neighbours(torch.arange(12), 0.2)
    rows = torch.tensor([7, 2, 2, 11])
    some = near.select(rows)
    again = cells.neighbours(rows, 0.2)
    for name in ("places", "lengths", "starts"):
        assert torch.equal(getattr(some, name), getattr(again, name))
    chosen = near.places % 2 == 0
    even = near.where(chosen)
    table, there = even.table()
    for row in range(12):
        expected = [int(place) for place in near.places[near.owners == row] if place % 2 == 0]
        assert table[row][there[row]].tolist() == expected
        assert int(near.counts_of(chosen)[row]) == len(expected)


@norms
def test_the_nearest_point_of_another_class(norm):
    rng = np.random.default_rng(1)
    points, labels = rng.random((20, 3)), rng.integers(0, 3, 20)
    rows = np.array([4, 0, 19])
    cells = VoronoiCells(torch.from_numpy(points), norm)
    lengths, places = cells.nearest_other(torch.from_numpy(rows), torch.from_numpy(labels))
    for place, row in enumerate(rows):
        distances = naive_distances(norm, points[row : row + 1], points)[0]
        distances[labels == labels[row]] = np.inf
        assert int(places[place]) == distances.argmin()
        assert float(lengths[place]) == pytest.approx(distances.min())
    alone = cells.nearest_other(torch.arange(20), torch.zeros(20, dtype=torch.int64))
    assert alone[0].isinf().all()


@norms
def test_the_smallest_distance(norm):
    points = np.random.default_rng(2).random((30, 4))
    metric = {"l2": "euclidean", "linf": "chebyshev"}
    expected = (
        pdist(points, metric[norm.name]).min()
        if norm.name in metric
        else (norm.beta * pdist(points, "cityblock") + (1 - norm.beta) * pdist(points, "chebyshev")).min()
    )
    assert VoronoiCells(torch.from_numpy(points), norm).smallest_distance(torch.arange(len(points))) == pytest.approx(
        expected
    )
    assert VoronoiCells(torch.from_numpy(points[:1]), norm).smallest_distance(torch.arange(1)) == float("inf")


@norms
@given(seed=st.integers(0, 10**6), dimension=st.integers(1, 4), whole=st.booleans())
@settings(max_examples=30)
def test_who_is_inside(norm, seed, dimension, whole):
    """Points on a border, which whole numbers hit, are not: cells are open."""
    rng = np.random.default_rng(seed)
    points = distinct(rng, 10, dimension, whole)
    rows = rng.integers(0, len(points), 40)
    asked = distinct(rng, 40, dimension, False) if not whole else rng.integers(0, 9, (40, dimension)) / 8
    rows = rows[: len(asked)]
    distances = naive_distances(norm, asked, points)
    own = distances[np.arange(len(asked)), rows]
    distances[np.arange(len(asked)), rows] = np.inf
    expected = (own * (1 + 2 * MARGIN) < distances.min(axis=1)) if len(points) > 1 else np.ones(len(asked), bool)
    cells = VoronoiCells(torch.from_numpy(points), norm)
    chosen = torch.from_numpy(rows)
    assert np.array_equal(cells.inside(torch.from_numpy(asked), chosen).numpy(), expected)
    # Whom nobody's border is crossed for is inside, and the other way round.
    near = cells.neighbours(chosen, float("inf"))
    crossed = near.counts_of(cells.crossed(torch.from_numpy(asked), chosen, near)) > 0
    assert np.array_equal(crossed.numpy(), ~expected)


@given(seed=st.integers(0, 10**6), apart=st.sampled_from([1e-1, 1e-3, 1e-5]), single=st.booleans())
@settings(max_examples=60)
def test_no_border_crossed_means_inside_however_near_the_neighbours(seed, apart, single):
    """The border to a near neighbour, looked at from far away, needs more care than the distance of the two says."""
    rng = np.random.default_rng(seed)
    dtype = torch.float32 if single else torch.float64
    points = torch.from_numpy(0.5 + apart * (rng.random((4, 3)) - 0.5)).to(dtype)
    points = torch.unique(points, dim=0)
    cells, rows = VoronoiCells(points, L2()), torch.zeros(200, dtype=torch.int64)
    way = points[1:2].double() - points[:1].double()
    side = torch.from_numpy(rng.normal(size=(200, 3)))
    side = side - (side @ way.T) / way.square().sum() * way  # along the border
    shares = 0.5 * (1 - torch.from_numpy(10.0 ** rng.uniform(-14, 0, (200, 1))))
    asked = (points[:1].double() + shares * way + side).to(dtype)
    near = cells.neighbours(rows, float("inf"))
    clear = near.counts_of(cells.crossed(asked, rows, near)) == 0
    assert cells.inside(asked[clear], rows[clear]).all()


@norms
def test_blocks_do_not_matter(norm, monkeypatch):
    rng = np.random.default_rng(3)
    points, asked = torch.from_numpy(rng.random((30, 3))), torch.from_numpy(rng.random((25, 3)))
    cells, rows = VoronoiCells(points, norm), torch.from_numpy(rng.integers(0, 30, 25))

    def everything():
        near = cells.neighbours(rows, 0.4)
        crossed = cells.crossed(asked, rows, near)
        return near.places, near.starts, crossed, cells.inside(asked, rows), torch.tensor(cells.smallest_distance(rows))

    whole = everything()
    for dense in (0.0, 2.0):  # by the product of all points, or pair by pair
        monkeypatch.setattr("nearkin.attacks.cells._DENSE", dense)
        for entries in (1, 70):
            monkeypatch.setattr("nearkin.attacks.cells._CACHED", entries)
            monkeypatch.setattr("nearkin.attacks.cells._ENTRIES", entries)
            monkeypatch.setattr("nearkin.attacks.cells._blocks.__defaults__", (entries,))
            for part, expected in zip(everything(), whole, strict=True):
                assert torch.equal(part, expected)
