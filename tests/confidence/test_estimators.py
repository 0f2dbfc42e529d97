"""The contract that all estimators share, for every registered one; votes by loops."""

import math
import pickle
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from nearkin.confidence import DudaniVote, GouVote, KNNVote, NearestNeighbour, estimators
from nearkin.errors import DataError
from nearkin.spaces import PoincareBall, Sphere

ALL = estimators.names()
VOTES = ["1nn", "knn", "wknn-dudani", "wknn-gou"]
NEIGHBOURS = [name for name in ALL if not name.startswith("prototype")]


def spread(names, cases):
    """Every estimator and every case at least once: what is shared by all is checked once for each case."""
    pairs = ((names[i % len(names)], cases[i % len(cases)]) for i in range(max(len(names), len(cases))))
    return [(name, *case) if isinstance(case, tuple) else (name, case) for name, case in pairs]


def make(name, **given):
    return estimators.get(name)(**given)


def clouds(seed=0, n=40, classes=4, dimensions=5, queries=7):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    centres = 2 * rng.normal(size=(classes, dimensions))
    support = centres[labels] + rng.normal(size=(n, dimensions))
    asked = centres[rng.integers(classes, size=queries)] + rng.normal(size=(queries, dimensions))
    return support.astype(np.float32), labels, asked.astype(np.float32)


def naive_vote(name, distances, codes, classes):
    table = np.zeros((len(distances), classes))
    for row, (near, own) in enumerate(zip(distances.astype(np.float64), codes, strict=True)):
        first, last = near[0], near[-1]
        for d, c in zip(near, own, strict=True):
            weight = 1.0
            if name in ("wknn-dudani", "wknn-gou") and last > first:
                weight = (last - d) / (last - first)
            if name == "wknn-gou" and last + d > 0:
                weight *= (last + first) / (last + d)
            table[row, c] += weight
        table[row] /= table[row].sum()
    return table


@st.composite
def neighbour_lists(draw):
    """Distances (q, k) in quarters, ascending, often equal or zero, and the support points they belong to."""
    queries, k = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    steps = draw(st.lists(st.integers(0, draw(st.sampled_from([0, 1, 6]))), min_size=queries * k, max_size=queries * k))
    distances = np.cumsum(np.array(steps, np.float32).reshape(queries, k) / 4, axis=1)
    chosen = draw(st.lists(st.integers(0, 39), min_size=queries * k, max_size=queries * k))
    return distances, np.array(chosen).reshape(queries, k)


@pytest.mark.parametrize("name", ["knn", "wknn-dudani", "wknn-gou"])
@settings(max_examples=80, deadline=None)
@given(drawn=neighbour_lists())
def test_votes_match_loops(name, drawn):
    support, labels, _ = clouds()
    distances, indices = drawn
    fitted = make(name, space="euclidean").fit(support, labels)
    found = fitted.predict_proba(distances, indices)
    expected = naive_vote(name, distances, labels[indices], 4)
    np.testing.assert_allclose(found.dense(), expected, atol=1e-6)
    np.testing.assert_allclose(found.dense().sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("name", VOTES)
@pytest.mark.parametrize("space", ["sphere", Sphere(metric="angle"), "euclidean", "poincare-ball", "cosine"], ids=str)
def test_votes_on_embeddings(name, space):
    support, labels, queries = clouds()
    fitted = make(name, space=space, **({} if name == "1nn" else {"k": 9})).fit(0.1 * support, labels)
    found = fitted.predict(0.1 * queries)
    expected = naive_vote(name, found.distances, labels[found.indices], 4)
    np.testing.assert_allclose(found.probabilities.dense(), expected, atol=1e-5)
    assert found.distances.shape == (7, 1 if name == "1nn" else 9)


def test_the_farthest_has_no_vote():
    support, labels, _ = clouds()
    for kind in (DudaniVote, GouVote):
        weights = kind().fit(support, labels).weights(torch.tensor([[0.5, 1.0, 1.5]]), np.zeros((1, 3), np.int32))
        assert weights[0, 0] == 1
        assert weights[0, -1] == 0
    assert weights[0, 1] == pytest.approx(0.5 * 2.0 / 2.5)


@pytest.mark.parametrize("name", ["knn", "wknn-dudani", "wknn-gou"])
@pytest.mark.parametrize("length", [0.0, 3.0])
def test_equally_far_neighbours_vote_alike(name, length):
    support, labels, _ = clouds()
    found = make(name).fit(support, labels).predict_proba(np.full((1, 5), length), [[0, 4, 1, 2, 8]])
    np.testing.assert_allclose(found.dense(), [[0.6, 0.2, 0.2, 0]], atol=1e-6)


@pytest.mark.parametrize("name", VOTES)
def test_one_neighbour_is_certain(name):
    support, labels, queries = clouds()
    fitted = make(name, **({} if name == "1nn" else {"k": 1})).fit(support, labels)
    nearest = NearestNeighbour().fit(support, labels).predict(queries)
    assert (fitted.predict(queries).confidence == 1).all()
    np.testing.assert_array_equal(fitted.predict(queries).labels, nearest.labels)


def test_only_the_first_of_many_neighbours_counts_for_the_nearest():
    support, labels, _ = clouds()
    found = NearestNeighbour().fit(support, labels).predict_proba([[1.0, 1.0, 2.0]], [[3, 0, 4]])
    assert found.dense().tolist() == [[0, 0, 0, 1]]


def test_a_vote_without_distances_has_no_gradient():
    support, labels, queries = clouds()
    for kind in (NearestNeighbour, KNNVote):
        x = torch.tensor(queries, requires_grad=True)
        kind().fit(support, labels).log_proba(x).sum().backward()
        assert (x.grad == 0).all()


@pytest.mark.parametrize("name", ["wknn-dudani", "wknn-gou"])
@pytest.mark.parametrize("space", ["sphere", "euclidean"])
def test_gradient_of_weighted_votes(name, space):
    support, labels, queries = clouds(dimensions=3, queries=3)
    fitted = make(name, k=12, space=space).fit(support.astype(np.float64), labels)
    x = torch.tensor(queries, dtype=torch.float64, requires_grad=True)
    assert gradcheck(fitted.log_proba, (x,), eps=1e-6, atol=1e-4)
    fitted.log_proba(x)[:, 0].sum().backward()
    assert x.grad.abs().sum() > 0


def test_gou_refuses_similarities_or_stays_a_probability():
    support, labels, _ = clouds()
    fitted = GouVote(space="inner-product").fit(support, labels)
    try:
        found = fitted.predict_proba([[-5.0, -1.0, 4.0]], [[0, 1, 2]])
    except DataError:
        return
    assert found.values.min() >= 0


@pytest.mark.parametrize("name", ALL)
def test_fit_returns_the_estimator_and_leaves_parameters_alone(name):
    support, labels, _ = clouds()
    space = PoincareBall()
    made = make(name, space=space)
    given = {f.name: getattr(made, f.name) for f in fields(made) if f.init}
    assert made.space is space
    assert made.fit(0.1 * support, labels) is made
    assert {f.name: getattr(made, f.name) for f in fields(made) if f.init} == given
    assert isinstance(repr(made), str)


@pytest.mark.parametrize(
    "name",
    ALL,
)
def test_an_estimator_can_be_shown_before_it_is_fitted(name):
    assert type(make(name)).__name__ in repr(make(name))


@pytest.mark.parametrize("name", ALL)
def test_nothing_before_fit(name):
    *_, queries = clouds()
    made = make(name)
    calls = [
        lambda: made.predict(queries),
        lambda: made.predict_proba([[1.0]], [[0]]),
        lambda: made.log_proba(queries),
        lambda: made.classes_,
    ]
    for call in calls:
        with pytest.raises(DataError, match="fit"):
            call()


@pytest.mark.parametrize("name", ALL)
def test_a_second_fit_replaces_the_first(name):
    support, labels, queries = clouds()
    other, names, _ = clouds(9, n=60, classes=3)
    twice = make(name).fit(other, names).fit(support, labels)
    once = make(name).fit(support, labels)
    np.testing.assert_array_equal(
        twice.predict(queries).probabilities.dense(), once.predict(queries).probabilities.dense()
    )
    assert twice.classes_.tolist() == once.classes_.tolist()
    assert twice.notes_ == once.notes_


@pytest.mark.parametrize(
    ("name", "book"),
    spread(
        ALL,
        [
            ["a", "b", "c", "d"],
            [10, -3, 2**40, 0],
            [1.5, 2.5, 0.0, -1.0],
            ["1", 1, 2.5, b"x"],
            [np.str_("q"), np.int8(3), frozenset([1]), "z"],
            [("a", 1), ("a", 2), ("b", 1), ("b", 2)],
        ],
    ),
)
def test_labels_of_any_kind(name, book):
    support, labels, queries = clouds()
    plain = make(name).fit(support, labels).predict(queries)
    named = make(name).fit(support, [book[code] for code in labels])
    found = named.predict(queries)
    assert set(named.classes_.tolist()) == set(book)
    assert found.labels.tolist() == [book[code] for code in plain.labels]
    # Classes are in another order, and so are the terms of their sum.
    np.testing.assert_allclose(found.confidence, plain.confidence, rtol=1e-6)
    own = found.probabilities.of([book[code] for code in plain.labels])
    np.testing.assert_allclose(own, plain.confidence, rtol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_classes_are_sorted(name):
    support, labels, _ = clouds()
    assert make(name).fit(support, [["z", "m", "a", "k"][code] for code in labels]).classes_.tolist() == list("akmz")


@pytest.mark.parametrize(
    ("name", "support", "labels", "match"),
    spread(
        ALL,
        [
            (np.full((4, 2), np.nan), [1, 1, 2, 2], "NaN"),
            (np.array([[1.0, 2], [np.inf, 1]]), [1, 1], "row 1"),
            (np.ones(4), [1, 1, 2, 2], "shape"),
            (np.ones((4, 2, 2)), [1, 1, 2, 2], "shape"),
            (np.ones((4, 0)), [1, 1, 2, 2], "shape"),
            (np.ones((0, 2)), [], "empty"),
            (np.ones((4, 2)), [1, 1, 2], "labels"),
            (np.ones((4, 2)), [1, None, 2, 2], "missing"),
            (np.ones((4, 2)), None, "label"),
            (np.ones((4, 2)), "abcd", "label"),
            (np.ones((4, 2)), [[1], [1], [2], [2]], "hashable"),
            (np.ones((4, 2)), np.ones((4, 1)), "one-dim"),
            ([["a", "b"]] * 4, [1, 1, 2, 2], "numbers"),
            ([[1, 2], [3]], [1, 2], "rows"),
            (np.ma.masked_array(np.ones((4, 2)), np.eye(4, 2)), [1, 1, 2, 2], "masked"),
            (torch.ones(4, 2).to_sparse(), [1, 1, 2, 2], "tensor"),
            (np.ones((4, 2), complex), [1, 1, 2, 2], "numbers"),
            (None, [1], "numbers"),
        ],
    ),
)
def test_bad_supports(name, support, labels, match):
    with pytest.raises(DataError, match=match):
        make(name).fit(support, labels)


@pytest.mark.parametrize(
    ("name", "queries", "match"),
    spread(
        ALL,
        [
            (np.full((1, 5), np.nan), "queries"),
            (np.full((1, 5), -np.inf), "queries"),
            (np.ones((3, 4)), "dimensions"),
            (np.ones(5), "shape"),
            ([["a"] * 5], "numbers"),
            ([[1, 2], [3]], "rows"),
            (np.ma.masked_array(np.ones((1, 5)), np.eye(1, 5)), "masked"),
            (None, "numbers"),
        ],
    ),
)
def test_bad_queries(name, queries, match):
    support, labels, _ = clouds()
    with pytest.raises(DataError, match=match):
        make(name).fit(support, labels).predict(queries)


@pytest.mark.parametrize(
    ("name", "queries"),
    spread(ALL, [np.full((1, 5), np.nan), np.ones((3, 4)), np.ones(5)]),
)
def test_bad_queries_of_log_proba(name, queries):
    support, labels, _ = clouds()
    with pytest.raises(DataError, match="queries"):
        make(name).fit(support, labels).log_proba(queries)


@pytest.mark.parametrize(
    ("name", "queries"),
    spread(ALL, [[["a"] * 5], [[1, 2], [3]], np.ma.masked_array(np.ones((1, 5)), np.eye(1, 5)), None]),
)
def test_queries_of_log_proba_that_are_no_numbers(name, queries):
    support, labels, _ = clouds()
    with pytest.raises(DataError):
        make(name).fit(support, labels).log_proba(queries)


@pytest.mark.parametrize("name", ALL)
def test_log_proba_takes_reversed_arrays(name):
    support, labels, queries = clouds()
    fitted = make(name).fit(support, labels)
    np.testing.assert_array_equal(fitted.log_proba(queries[::-1]), fitted.log_proba(queries[::-1].copy()))


@pytest.mark.parametrize("name", ALL)
def test_no_queries(name):
    support, labels, queries = clouds()
    fitted = make(name).fit(support, labels)
    found = fitted.predict(queries[:0])
    assert len(found) == len(found.labels) == len(found.confidence) == len(found.probabilities.squares()) == 0
    assert found.probabilities.dense().shape == (0, 4)
    assert fitted.log_proba(queries[:0]).shape == (0, 4)
    assert len(fitted.predict_proba(found.distances, found.indices)) == 0


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_no_queries_of_all(name):
    if name == "1nn":
        return
    support, labels, queries = clouds()
    assert len(make(name, k="all").fit(support, labels).predict(queries[:0])) == 0


@pytest.mark.parametrize(
    ("name", "k"),
    spread(["knn", "wknn-dudani", "wknn-gou", "ned"], [0, -1, True, 2.5, 3.0, "many", [1], math.nan]),
)
def test_bad_k(name, k):
    support, labels, _ = clouds()
    with pytest.raises(DataError, match="'all'"):
        make(name, k=k).fit(support, labels)


@pytest.mark.parametrize("name", ["knn", "wknn-dudani", "wknn-gou", "ned"])
def test_k_beyond_the_support(name):
    support, labels, queries = clouds()
    with pytest.raises(DataError, match="k=41"):
        make(name, k=41).fit(support, labels)
    assert make(name, k=np.int64(40)).fit(support, labels).predict(queries).distances.shape == (7, 40)
    fitted = make(name, k=40).fit(support, labels)
    with pytest.raises(DataError, match="39"):
        fitted.leave_one_out()


@pytest.mark.parametrize("name", ALL)
def test_embeddings_of_different_models(name):
    support, labels, queries = clouds()
    fitted = make(name).fit(support, labels, source="one" * 20)
    with pytest.raises(DataError, match="'two'"):
        fitted.predict(queries, source="two")
    for source in ("one" * 20, None):
        assert len(fitted.predict(queries, source=source)) == 7
    assert len(make(name).fit(support, labels).predict(queries, source="two")) == 7


@pytest.mark.parametrize(
    ("name", "convert"),
    spread(
        NEIGHBOURS,
        [
            torch.tensor,
            lambda x: x.astype(np.float64),
            lambda x: x.tolist(),
            lambda x: torch.tensor(x, requires_grad=True),
            lambda x: np.asfortranarray(x),
            lambda x: x[::-1].copy()[::-1],
            lambda x: x.astype(">f4"),
        ],
    ),
)
def test_kinds_of_input(name, convert):
    support, labels, queries = clouds()
    plain = make(name).fit(support, labels).predict(queries)
    for left, right in ((support, convert(queries)), (convert(support), queries), (convert(support), convert(queries))):
        found = make(name).fit(left, torch.tensor(labels)).predict(right)
        np.testing.assert_allclose(found.probabilities.dense(), plain.probabilities.dense(), atol=2e-3)


@pytest.mark.parametrize(
    ("name", "kind"),
    spread(ALL, [np.float16, np.int64, np.int8, np.uint8]),
)
def test_other_precisions(name, kind):
    support, labels, queries = clouds()
    support, queries = (np.abs(20 * part).astype(kind) for part in (support, queries))
    plain = make(name).fit(support.astype(np.float32), labels).predict(queries.astype(np.float32))
    found = make(name).fit(support, labels).predict(queries)
    np.testing.assert_allclose(found.probabilities.dense(), plain.probabilities.dense(), atol=2e-3)


@pytest.mark.parametrize(
    "name",
    ALL,
)
def test_log_proba_of_whole_numbers(name):
    support, labels, queries = clouds()
    fitted = make(name, space="euclidean").fit(0.3 * support, labels)
    x = torch.tensor(0.3 * queries).long()
    expected = fitted.predict(x.float()).probabilities.dense()
    np.testing.assert_allclose(fitted.log_proba(x).exp().numpy(), expected, atol=1e-3)


@pytest.mark.parametrize(
    "name",
    [name for name in ALL if not name.startswith("wknn")],
)
def test_log_proba_of_halves(name):
    """Beside support points that a half cannot hold."""
    support, labels, queries = clouds()
    support[labels == 3] += 1e5
    fitted = make(name, space="euclidean").fit(support, labels)
    found = fitted.log_proba(torch.tensor(queries).half())
    assert found.isfinite().all()
    expected = fitted.predict(torch.tensor(queries).half()).probabilities.dense()
    np.testing.assert_allclose(found.float().exp().numpy(), expected, atol=5e-3)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("space", ["sphere", "euclidean"])
def test_log_proba_is_the_logarithm_of_the_prediction(name, space):
    support, labels, queries = clouds()
    fitted = make(name, space=space).fit(support, labels)
    for x in (queries, torch.tensor(queries), torch.tensor(queries, dtype=torch.float64), queries.tolist()):
        found = fitted.log_proba(x).detach().numpy()
        table = fitted.predict(queries).probabilities.dense()
        np.testing.assert_allclose(np.exp(found), table, atol=1e-4)
        listed = table > 1e-6
        np.testing.assert_allclose(found[listed], np.log(table[listed]), atol=1e-2)


def test_a_small_sharpness_does_not_revive_far_classes():
    """A class 100 T away has exp(-100)^0.1, not 1e-24^0.1, against 1 for the near one."""
    fitted = make("ned-sharp", k=2, space="euclidean", temperature=1.0, sharpness=0.1).fit([[0.0], [10.0]], [0, 1])
    expected = math.exp(-10) / (1 + math.exp(-10))
    assert fitted.log_proba([[0.0]]).exp()[0, 1] == pytest.approx(expected, rel=1e-3)
    assert fitted.predict([[0.0]]).probabilities.of([1])[0] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("space", ["sphere", "euclidean"])
def test_the_gradient_on_a_support_point_is_finite(name, space):
    support, labels, _ = clouds()
    support[:10] = support[10:20]  # some twice
    x = torch.tensor(support[:12], requires_grad=True)
    found = make(name, space=space).fit(support, labels).log_proba(x)
    found[:, 1].sum().backward()
    assert found.isfinite().all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", ["wknn-dudani", "wknn-gou", "knn", "1nn"])
def test_the_gradient_among_copies_is_finite(name):
    x = torch.ones(1, 3, requires_grad=True)
    found = make(name, **({} if name == "1nn" else {"k": 4})).fit(np.ones((4, 3)), [0, 0, 1, 1]).log_proba(x)
    found.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    ("name", "distances", "indices", "match"),
    spread(
        NEIGHBOURS,
        [
            ([[2.0, 1.0]], [[0, 1]], "nearest"),
            ([[1.0, 2.0]], [[0, 40]], "40"),
            ([[1.0, 2.0]], [[-1, 3]], "0"),
            ([[1.0, math.nan]], [[0, 1]], "finite"),
            ([[1.0, math.inf]], [[0, 1]], "finite"),
            ([[1.0, 2.0]], [[0.0, 1.0]], "whole"),
            ([[1.0, 2.0]], [[0]], "shape"),
            ([1.0, 2.0], [0, 1], "shape"),
            (np.ones((2, 0)), np.ones((2, 0), int), "shape"),
            ([["a", "b"]], [[0, 1]], "numbers"),
            (None, None, "numbers"),
        ],
    ),
)
def test_bad_neighbours(name, distances, indices, match):
    support, labels, _ = clouds()
    with pytest.raises(DataError, match=match):
        make(name).fit(support, labels).predict_proba(distances, indices)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_ragged_neighbours(name):
    support, labels, _ = clouds()
    with pytest.raises(DataError):
        make(name).fit(support, labels).predict_proba([[1.0, 2.0], [3.0]], [[0, 1], [2]])


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbours_in_bfloat16(name):
    support, labels, _ = clouds()
    fitted = make(name).fit(support, labels)
    found = fitted.predict_proba(torch.tensor([[1.0, 2.0]]).bfloat16(), torch.tensor([[0, 1]]))
    np.testing.assert_array_equal(found.dense(), fitted.predict_proba([[1.0, 2.0]], [[0, 1]]).dense())


@pytest.mark.parametrize(
    ("name", "length"),
    [("ned", 1e25), ("ned", 1e300), ("wknn-gou", 1e300), ("prototype-softmax", 1e25), ("prototype-softmax", 1e300)],
)
def test_huge_distances(name, length):
    """One sentence, or probabilities; not an IndexError from a later array."""
    support, labels, _ = clouds()
    fitted = make(name).fit(support, labels)
    try:
        found = fitted.predict_proba(length * np.array([[1.0, 2.0, 3.0]]), [[0, 1, 2]])
    except DataError:
        return
    np.testing.assert_allclose(found.dense().sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbours_of_any_kind(name):
    support, labels, _ = clouds()
    fitted = make(name).fit(support, labels)
    plain = fitted.predict_proba([[1.0, 2.0, 4.0]], [[0, 1, 5]]).dense()
    for convert in (np.float16, np.float64, np.int32, np.uint8):
        found = fitted.predict_proba(np.array([[1, 2, 4]], convert), np.array([[0, 1, 5]], np.uint16))
        np.testing.assert_allclose(found.dense(), plain, atol=1e-6)
    found = fitted.predict_proba(torch.tensor([[1.0, 2.0, 4.0]], requires_grad=True), torch.tensor([[0, 1, 5]]))
    np.testing.assert_array_equal(found.dense(), plain)


@pytest.mark.parametrize("name", ALL)
def test_an_unknown_space(name):
    support, labels, _ = clouds()
    with pytest.raises(DataError, match="sphera"):
        make(name, space="sphera").fit(support, labels)
    with pytest.raises(DataError, match="distance"):
        make(name, space=3).fit(support, labels)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_with_k_is_a_new_estimator(name):
    support, labels, _ = clouds()
    fitted = make(name, space="euclidean").fit(support, labels)
    other = fitted.with_k(3)
    assert other is not fitted
    assert type(other) is type(fitted)
    assert other.space == "euclidean"
    assert other.k == (1 if name == "1nn" else 3)
    with pytest.raises(DataError, match="fit"):
        other.predict(support)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_points_left_out_are_drawn_by_the_seed(name):
    support, labels, _ = clouds()
    fitted = make(name).fit(support, labels)
    rows, found = fitted.leave_one_out(points=15, seed=4)
    again, same = fitted.leave_one_out(points=15, seed=4)
    assert len(set(rows.tolist())) == 15 == len(found)
    np.testing.assert_array_equal(rows, again)
    np.testing.assert_array_equal(found.confidence, same.confidence)
    assert not (found.indices == rows[:, None]).any()


@pytest.mark.parametrize("points", [-1, 2.5])
def test_bad_numbers_of_points(points):
    support, labels, _ = clouds()
    for name in ("ned", "prototype-softmax"):
        with pytest.raises(DataError):
            make(name, points=points).fit(support, labels)
    with pytest.raises(DataError):
        make("knn").fit(support, labels).leave_one_out(points=points)


@pytest.mark.parametrize("name", ALL)
def test_a_fitted_estimator_survives_pickling(name):
    support, labels, queries = clouds()
    fitted = make(name).fit(support, labels)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(queries).confidence, fitted.predict(queries).confidence)


@pytest.mark.parametrize("name", ALL)
def test_zero_vectors_and_copies(name):
    """Points without a direction, and points that are twice there, of one class and of two."""
    support, labels, queries = clouds()
    support[:3], support[10:14], queries[0] = 0, support[20:24], 0
    found = make(name).fit(support, labels).predict(queries).probabilities.dense()
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert (found >= 0).all()
