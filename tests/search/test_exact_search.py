"""Exact search against a naive search in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError
from nearkin.search import exact
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, Sphere

ALL = [Euclidean(), Sphere(), Sphere("angle"), LipschitzBall(), PoincareBall(), PoincareBall(0.3)]
every_space = pytest.mark.parametrize("space", ALL, ids=repr)


class Manhattan(Euclidean):
    """A space of a user's own, that only has a distance."""

    as_euclidean = None

    def distance(self, x, y):
        return torch.cdist(x, y, p=1)


def naive(queries, gallery, k, space):
    """Sort every row by (distance, index) in plain Python."""
    points = queries if gallery is None else gallery
    d = space.distance(queries.double(), points.double()).numpy()
    rows = []
    for i, row in enumerate(d):
        order = sorted((value, j) for j, value in enumerate(row) if gallery is not None or j != i)
        rows.append(order[:k])
    return np.array([[v for v, _ in row] for row in rows]), np.array([[j for _, j in row] for row in rows])


def points(space, n, d, seed=0, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    return space.project(size * torch.randn(n, d, generator=generator))


@pytest.mark.parametrize("space", [*ALL, Manhattan()], ids=repr)
@pytest.mark.parametrize("k", [1, 7, 59])
def test_matches_naive_search_leave_one_out_and_with_a_gallery(space, k):
    x, y = points(space, 60, 8), points(space, 75, 8, seed=1)
    for gallery in (None, y):
        distances, indices = exact(x, gallery, k, space=space)
        expected_distances, expected_indices = naive(x, gallery, k, space)
        assert indices.tolist() == expected_indices.tolist()
        np.testing.assert_allclose(distances, expected_distances, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("space", [Euclidean(), LipschitzBall(), Manhattan()], ids=repr)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 40), d=st.integers(1, 4), offset=st.sampled_from([0, 1000]))
def test_ties_of_whole_numbers_go_by_index_also_at_the_last_place(space, seed, n, d, offset):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.integers(-1, 2, (n, d)) + offset).float()
    k = int(rng.integers(1, n))
    _, indices = exact(x, k=k, space=space)
    assert indices.tolist() == naive(x, None, k, space)[1].tolist()


@every_space
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), d=st.sampled_from([3, 17, 130]))
def test_copies_tie_and_are_found_but_never_the_query_itself(space, seed, d):
    rng = np.random.default_rng(seed)
    few = points(space, 5, d, seed=seed, size=0.5)
    which = torch.from_numpy(rng.integers(0, 5, 90))
    distances, indices = exact(few[which], k=3, space=space)
    for query, (row, found) in enumerate(zip(distances, indices, strict=True)):
        copies = [i for i in torch.nonzero(which == which[query])[:, 0].tolist() if i != query][:3]
        assert found.tolist()[: len(copies)] == copies
        assert (row[: len(copies)] == 0).all()


@every_space
def test_a_collapsed_model_is_searched_by_index(space):
    x = points(space, 1, 16).expand(300, 16)
    distances, indices = exact(x, k=4, space=space)
    assert (distances == 0).all()
    assert indices[5].tolist() == [0, 1, 2, 3]
    assert indices[0].tolist() == [1, 2, 3, 4]


def test_close_points_far_from_the_origin_are_told_apart():
    """Products of raw vectors would lose these differences in float32."""
    generator = torch.Generator().manual_seed(0)
    x = 100 + 0.01 * torch.randn(200, 4, generator=generator)
    _, indices = exact(x, k=5, space=Euclidean())
    assert indices.tolist() == naive(x, None, 5, Euclidean())[1].tolist()


def test_tight_clusters_apart_are_searched_exactly():
    """Inside a cluster all scores are equal up to rounding: the doubtful path."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    x = centers.repeat_interleave(60, dim=0) + 1e-6 * torch.randn(180, 8, generator=generator, dtype=torch.float64)
    _, indices = exact(x, k=4, space=Euclidean())
    assert indices.tolist() == naive(x, None, 4, Euclidean())[1].tolist()


@pytest.mark.parametrize("size", [1e-18, 1e18])
def test_extreme_magnitudes(size):
    x = points(Euclidean(), 40, 6)
    assert torch.equal(exact(size * x, k=5, space=Euclidean())[1], exact(x, k=5, space=Euclidean())[1])


@every_space
def test_results_do_not_depend_on_memory_or_run(space):
    x = points(space, 70, 12)
    first = exact(x, k=9, space=space)
    for memory in (16, 64, 1000):
        again = exact(x, k=9, space=space, memory_mb=memory)
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])


def test_distances_ascend_and_are_single_precision():
    distances, indices = exact(points(Sphere(), 200, 32), k=40)
    assert (distances.diff(dim=1) >= 0).all()
    assert distances.dtype == torch.float32
    assert indices.dtype == torch.int64


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "list", "read-only", "tensor", "needs-grad", "bf16"])
def test_kinds_of_input(kind):
    array = np.random.default_rng(0).integers(-8, 9, (20, 5)).astype(np.float32) / 8
    given_as = {
        "list": array.tolist(),
        "tensor": torch.from_numpy(array),
        "needs-grad": torch.from_numpy(array).requires_grad_(),
        "bf16": torch.from_numpy(array).bfloat16(),
    }.get(kind, array)
    if kind in ("float64", "float16"):
        given_as = array.astype(kind)
    if kind == "read-only":
        given_as = array.copy()
        given_as.flags.writeable = False
    distances, indices = exact(given_as, k=3, space=Euclidean())
    expected = exact(array, k=3, space=Euclidean())
    assert torch.equal(indices, expected[1])
    assert torch.equal(distances, expected[0])
    assert not distances.requires_grad


def test_single_precision_also_under_autocast():
    x = points(Sphere(), 100, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = exact(x, k=5)
    assert torch.equal(inside[1], exact(x, k=5)[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": np.zeros((3, 2)), "k": 3}, "only 2 items"),
        ({"queries": np.zeros((3, 2)), "gallery": np.zeros((4, 2)), "k": 5}, "only 4 items"),
        ({"queries": np.zeros((3, 2)), "k": 0}, "k=0"),
        ({"queries": np.zeros((3, 2)), "gallery": np.zeros((4, 3)), "k": 1}, "2 dimensions .* 3"),
        ({"queries": np.zeros((3, 2, 1)), "k": 1}, "shape"),
        ({"queries": np.zeros((3, 0)), "k": 1}, "shape"),
        ({"queries": np.array([[0.0], [np.nan], [1.0]]), "k": 1}, "row 1"),
        ({"queries": np.zeros((3, 2)), "gallery": np.full((4, 2), np.inf), "k": 1}, "gallery hold NaN or infinite"),
        ({"queries": [["a"], ["b"]], "k": 1}, "numbers"),
        ({"queries": np.zeros((3, 2)), "k": 1, "memory_mb": 1}, "16 MB"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(DataError, match=message):
        exact(**arguments)


def test_no_queries_find_nothing():
    distances, indices = exact(np.zeros((0, 2)), np.zeros((4, 2)), k=3)
    assert distances.shape == indices.shape == (0, 3)
