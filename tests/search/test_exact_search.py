"""Exact search against a naive search in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from nearkin.errors import DataError
from nearkin.search import exact
from nearkin.search.scorers import Cosine, InnerProduct
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
    for memory in (64, 100, 1000):
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
        ({"queries": np.zeros((3, 2)), "k": 3}, r"\b2\b"),
        ({"queries": np.zeros((3, 2)), "gallery": np.zeros((4, 2)), "k": 5}, r"\b4\b"),
        ({"queries": np.zeros((3, 2)), "k": 0}, "`k`"),
        ({"queries": np.zeros((3, 2)), "gallery": np.zeros((4, 3)), "k": 1}, "dimensions"),
        ({"queries": np.zeros((3, 2, 1)), "k": 1}, "shape"),
        ({"queries": np.zeros((3, 0)), "k": 1}, "shape"),
        ({"queries": np.array([[0.0], [np.nan], [1.0]]), "k": 1}, "row 1"),
        ({"queries": np.zeros((3, 2)), "gallery": np.full((4, 2), np.inf), "k": 1}, "gallery"),
        ({"queries": [["a"], ["b"]], "k": 1}, "numbers"),
        ({"queries": np.zeros((3, 2)), "k": 1, "memory_mb": 1}, "memory_mb"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(DataError, match=message):
        exact(**arguments)


def test_no_queries_find_nothing():
    distances, indices = exact(np.zeros((0, 2)), np.zeros((4, 2)), k=3)
    assert distances.shape == indices.shape == (0, 3)


def reference(queries, gallery, k, distance, exclude=None):
    """Indices (q, k) by a function of two float64 vectors, one pair at a time; equal distances by index."""
    hidden = [-1] * len(queries) if exclude is None else exclude
    rows = []
    for x, out in zip(queries.astype(np.float64), hidden, strict=True):
        pairs = sorted((distance(x, y), i) for i, y in enumerate(gallery.astype(np.float64)) if i != out)
        rows.append([i for _, i in pairs[:k]])
    return rows


def angle(x, y):
    lengths = np.linalg.norm(x) * np.linalg.norm(y)
    return 1 - x @ y / lengths if lengths else 1.0


def hyperbolic(x, y):
    return np.arccosh(1 + 2 * ((x - y) @ (x - y)) / (1 - x @ x) / (1 - y @ y))


@pytest.mark.parametrize(
    ("name", "distance"),
    [
        ("cosine", angle),
        ("inner-product", lambda x, y: -(x @ y)),
        ("euclidean", lambda x, y: np.linalg.norm(x - y)),
        ("poincare-ball", hyperbolic),
        ("sphere", angle),
    ],
)
@pytest.mark.parametrize("k", [1, 12, 45])
def test_scorers_by_name(name, distance, k):
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(-0.4, 0.4, (n, 5)).astype(np.float32) for n in (30, 45))
    distances, indices = exact(x, y, k, space=name)
    assert indices.tolist() == reference(x, y, k, distance)
    if name != "sphere":
        expected = [
            [distance(q, y[i].astype(float)) for i in row] for q, row in zip(x.astype(float), indices, strict=True)
        ]
        np.testing.assert_allclose(distances, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("space", ["cosine", Sphere(), Sphere("angle")], ids=str)
@pytest.mark.parametrize("k", [3, 40])
def test_zero_vectors_are_ranked_as_the_space_says(space, k):
    """Two thirds of the gallery are zero, so they could push everything else out of the candidates."""
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.normal(size=(150, 3))).float() * torch.from_numpy(rng.random((150, 1)) < 0.33)
    x = torch.cat([torch.zeros(2, 3), y[:20] + 0.1])
    scorer = Cosine() if space == "cosine" else space
    assert exact(x, y, k, space=space)[1].tolist() == settled_reference(x, y, k, scorer)


def settled_reference(x, y, k, scorer):
    true = scorer.distance(x.double(), y.double()).numpy().round(12)
    return [np.lexsort((np.arange(len(row)), row))[:k].tolist() for row in true]


class Asymmetric:
    """A scorer that only has a distance, negative and different each way."""

    def distance(self, x, y):
        return -(2 * x).exp() @ y.T


@pytest.mark.parametrize("k", [1, 10, 100, 149])
def test_a_scorer_of_a_users_own(k):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(-3, 4, (150, 2)) / 2).float()
    distances, indices = exact(x, k=k, space=Asymmetric())
    true = Asymmetric().distance(x, x)
    for query, row in enumerate(true.tolist()):
        expected = sorted((value, i) for i, value in enumerate(row) if i != query)[:k]
        assert indices[query].tolist() == [i for _, i in expected]
        np.testing.assert_allclose(distances[query], [value for value, _ in expected], rtol=1e-6)


class Answering:
    """A scorer that answers something else where vectors are farther apart than 1, and in what shape it likes."""

    def __init__(self, far=None, change=lambda distances: distances):
        self.far, self.change = far, change

    def distance(self, x, y):
        distances = torch.cdist(x, y)
        if self.far is not None:
            distances[distances > 1] = self.far
        return self.change(distances)


@pytest.mark.parametrize("k", [3, 60])
@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        (Answering(far=float("nan")), "finite"),
        (Answering(far=float("inf")), "finite"),
        (Answering(change=lambda d: d[:, :-1]), "shape"),
        (Answering(change=lambda d: d[0]), "shape"),
        (Answering(change=lambda d: d.unsqueeze(0)), "shape"),
    ],
)
def test_a_scorer_that_answers_nonsense_is_told_so(k, scorer, message):
    x = points(Euclidean(), 100, 3)
    for gallery in (None, points(Euclidean(), 77, 3, seed=1)):
        with pytest.raises(DataError, match=message):
            exact(x, gallery, k, space=scorer)


class Bare:
    """Cosine distance that is NaN for zero vectors, as most people write it."""

    def distance(self, x, y):
        return 1 - (x / x.norm(dim=1, keepdim=True)) @ (y / y.norm(dim=1, keepdim=True)).T


@pytest.mark.parametrize("k", [3, 35])
def test_a_scorer_is_never_asked_about_vectors_that_were_not_given(k):
    x, y = points(Euclidean(), 67, 3), points(Euclidean(), 37, 3, seed=1)
    assert torch.equal(exact(x, y, k, space=Bare())[1], exact(x, y, k, space="cosine")[1])


def test_a_scorer_gets_queries_and_gallery_in_the_same_precision():
    x, y = points(Euclidean(), 20, 3), points(Euclidean(), 30, 3, seed=1)
    assert torch.equal(exact(x.double(), y, 4, space=Manhattan())[1], exact(x, y, 4, space=Manhattan())[1])
    assert not exact(x, x.clone(), 1, space=Manhattan())[0].signbit().any()  # zero, not minus zero


@pytest.mark.parametrize("storage", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("k", [4, 70])
def test_storage_searches_the_rounded_gallery(storage, k):
    x, y = points(Euclidean(), 60, 6).double(), points(Euclidean(), 90, 6, seed=1).double()
    rounded = y.to(getattr(torch, storage)).double()
    for space in (Euclidean(), Sphere()):
        stored, expected = exact(x, y, k, space=space, storage=storage), exact(x, rounded, k, space=space)
        assert torch.equal(stored[0], expected[0])
        assert torch.equal(stored[1], expected[1])
    alone = exact(y, k=k, storage=storage)
    assert torch.equal(alone[1], exact(y, rounded, k, exclude=np.arange(90))[1])
    assert not (alone[1] == torch.arange(90)[:, None]).any()


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
@pytest.mark.parametrize("space", [Euclidean(), Manhattan()], ids=repr)
@pytest.mark.parametrize("k", [1, 5, 48])
def test_excluded_items_are_not_found(kind, space, k):
    rng = np.random.default_rng(0)
    x, y = rng.integers(-2, 3, (33, 2)).astype(np.float32), rng.integers(-2, 3, (49, 2)).astype(np.float32)
    exclude = np.where(rng.random(33) < 0.3, -1, rng.integers(0, 49, 33)).tolist()
    order = 1 if isinstance(space, Manhattan) else 2
    indices = exact(x, y, k, space=space, exclude=kind(exclude))[1]
    assert indices.tolist() == reference(x, y, k, lambda a, b: np.linalg.norm(a - b, order), exclude)


def test_nothing_excluded_leaves_all_items():
    x = points(Euclidean(), 9, 2)
    found = exact(x, x.clone(), 9, exclude=[-1] * 9)
    assert torch.equal(found[1], exact(x, x.clone(), 9)[1])
    assert (found[1].sort(dim=1).values == torch.arange(9)).all()


@pytest.mark.parametrize("k", [5, 60])
@pytest.mark.parametrize("space", [Euclidean(), "inner-product"], ids=str)
def test_what_single_precision_cannot_tell_apart_is_in_the_order_of_double(k, space):
    rng = np.random.default_rng(0)
    y = np.array([[1.0, 2.0, 3.0]]) + 1e-11 * rng.normal(size=(200, 3))
    x = np.array([[0.3, -0.2, 0.5], [1.0, 1.0, 1.0]])
    distance = (lambda a, b: -(a @ b)) if space == "inner-product" else (lambda a, b: np.linalg.norm(a - b))
    found = exact(x, y, k, space=space)[1].numpy()
    true = np.array([[distance(a, b) for b in y] for a in x])
    ascending = np.take_along_axis(true, found, axis=1)
    assert (np.diff(ascending, axis=1) >= -1e-11 * np.abs(true).max()).all()
    if space != "inner-product":  # what is far enough apart for float64 is in order for certain
        nearest = np.sort(true, axis=1)[:, :k]
        np.testing.assert_allclose(ascending, nearest, rtol=2e-12)


def test_agrees_with_a_tree_on_the_plane():
    x = np.random.default_rng(0).normal(size=(3000, 2))
    distances, near = cKDTree(x).query(x, 9)
    for k in (1, 8):
        ours = exact(x, k=k, space="euclidean")
        np.testing.assert_array_equal(ours[1], near[:, 1 : k + 1])
        np.testing.assert_allclose(ours[0], distances[:, 1 : k + 1], rtol=1e-6)


@pytest.mark.parametrize("k", [10, 200])
def test_little_memory_gives_the_same_answer(monkeypatch, k):
    monkeypatch.setattr("nearkin.search.scorers._LEAST_MB", 1)
    x, y = points(Euclidean(), 1500, 24), points(Euclidean(), 4000, 24, seed=1)
    for gallery, space in ((None, Sphere()), (y, Euclidean())):
        little, much = (exact(x, gallery, k, space=space, memory_mb=memory) for memory in (2, 512))
        assert torch.equal(little[0], much[0])
        assert torch.equal(little[1], much[1])


@pytest.mark.parametrize("exponent", [18, 22])
@pytest.mark.parametrize("space", ["inner-product", "cosine"])
def test_queries_and_gallery_of_very_different_lengths(exponent, space):
    x, y = points(Euclidean(), 200, 8), points(Euclidean(), 700, 8, seed=1)
    found = exact(x * 10.0**-exponent, y * 10.0**exponent, 5, space=space)[1]
    scorer = InnerProduct() if space == "inner-product" else Cosine()
    true = scorer.distance((x * 10.0**-exponent).double(), (y * 10.0**exponent).double())
    assert torch.equal(found, true.argsort(dim=1)[:, :5])


@pytest.mark.parametrize("change", [lambda x: x[::-1], lambda x: x[:, ::-1], lambda x: x.T, lambda x: x.astype(">f4")])
def test_arrays_of_any_layout(change):
    array = change(np.random.default_rng(0).normal(size=(30, 30)).astype(np.float32))
    plain = np.ascontiguousarray(array).astype(np.float32)
    assert torch.equal(exact(array, k=4)[1], exact(plain, k=4)[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"space": "cosin"}, "cosine"),
        ({"space": Euclidean}, "distance"),
        ({"space": 3}, "distance"),
        ({"storage": "float8"}, "float8"),
        ({"storage": "float16", "queries": np.full((4, 2), 1e6)}, "float16"),
        ({"exclude": [0, 1, 2, 3]}, "gallery"),
        ({"exclude": [0, 1, 2, 3], "storage": "float16"}, "gallery"),
        ({"gallery": np.eye(3, 2), "exclude": [0, 1, 2, 3]}, r"\b3\b"),
        ({"gallery": np.eye(3, 2), "exclude": [0, 1, 2, -2]}, "exclude"),
        ({"gallery": np.eye(3, 2), "exclude": [0, 1, 2]}, r"\b4\b"),
        ({"gallery": np.eye(3, 2), "exclude": [0.0, 1, 2, 0]}, r"\b4\b"),
        ({"gallery": np.eye(3, 2), "exclude": [-1, -1, -1, 0], "k": 3}, r"\b2\b"),
        ({"k": True}, "True"),
        ({"k": 1.0}, "1.0"),
        ({"memory_mb": float("nan")}, "memory_mb"),
    ],
)
def test_bad_options(arguments, message):
    with pytest.raises(DataError, match=message):
        exact(**{"queries": np.eye(4, 2), "k": 1, **arguments})


@pytest.mark.parametrize("space", ["sphere", "cosine", Sphere("angle")], ids=str)
def test_multiples_of_a_vector_are_one_point(space):
    gallery = np.array([[3, 6, 9], [5, 10, 15], [7, 14, 21], [1, 2, 3], [11, 22, 33], [3, 2, 1]], np.float32)
    distances, indices = exact([[1.0, 2.0, 3.0]], gallery, 6, space=space)
    assert indices[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert distances[0, :5].tolist() == [0.0] * 5


@pytest.mark.parametrize("base", [Euclidean, Sphere])
def test_a_subclass_with_a_distance_of_its_own_is_searched_by_it(base):
    class Reversed(base):
        def distance(self, x, y):
            return 3 - base.distance(self, x, y)

    x = points(base(), 30, 4, size=0.1)
    farthest = base().distance(x, x).argmax(dim=1)
    assert torch.equal(exact(x, x, 1, space=Reversed())[1][:, 0], farthest)


def test_a_scorer_must_give_tensors():
    class Numpy:
        def distance(self, x, y):
            return torch.cdist(x, y).numpy()

    with pytest.raises(DataError, match="ndarray"):
        exact(np.eye(4), k=1, space=Numpy())
