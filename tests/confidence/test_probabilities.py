"""Sums by class and sparse probabilities against dictionaries."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.confidence import ClassProbabilities, KNNVote, NeighbourEstimator, Prediction, probabilities
from nearkin.confidence.probabilities import sum_by_class
from nearkin.errors import DataError


def naive_sums(codes, weights):
    """One dictionary a query: class to (sum, place of its nearest neighbour), and the best class."""
    rows, best = [], []
    for row, shares in zip(codes.tolist(), weights.astype(np.float64).tolist(), strict=True):
        sums, places = {}, {}
        for place, (code, share) in enumerate(zip(row, shares, strict=True)):
            sums[code] = sums.get(code, 0.0) + share
            places.setdefault(code, place)
        rows.append(sums)
        best.append(max(sums, key=lambda code: (sums[code], -places[code])))
    return rows, best


def naive_dense(codes, weights, classes):
    table = np.zeros((len(codes), classes))
    for place, sums in enumerate(naive_sums(codes, weights)[0]):
        total = sum(sums.values())
        for code, value in sums.items():
            table[place, code] = value / total if total else 1 / len(sums)
    return table


def of(codes, weights, classes=None):
    codes = np.asarray(codes, np.int32)
    classes = np.arange(codes.max() + 1 if classes is None else classes)
    return ClassProbabilities.of_neighbours(classes, codes, np.asarray(weights, np.float32))


@st.composite
def neighbours(draw):
    """Codes (q, k) and weights (q, k) in eighths, whose sums are exact and often equal."""
    queries, k = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    classes = draw(st.sampled_from([1, 2, 3, 20]))
    cells = st.lists(st.integers(0, classes - 1), min_size=queries * k, max_size=queries * k)
    shares = st.lists(st.integers(0, draw(st.sampled_from([0, 1, 8]))), min_size=queries * k, max_size=queries * k)
    codes = np.array(draw(cells), np.int32).reshape(queries, k)
    return codes, np.array(draw(shares), np.float32).reshape(queries, k) / 8, classes


@settings(max_examples=200, deadline=None)
@given(neighbours(), st.sampled_from([0, 2**24 - 3, 2**24 + 1, 2**31 - 21]))
def test_sums_and_best_match_dictionaries(drawn, shift):
    codes, weights, _ = drawn
    codes = (codes.astype(np.int64) + shift).astype(np.int32)
    found = sum_by_class(codes, weights)
    rows, best = naive_sums(codes, weights)
    assert found.best.tolist() == best
    assert found.codes.dtype == np.int32 == found.best.dtype
    for place, sums in enumerate(rows):
        part = slice(found.offsets[place], found.offsets[place + 1])
        assert found.codes[part].tolist() == sorted(sums)
        assert found.sums[part].tolist() == [sums[code] for code in sorted(sums)]


@pytest.mark.parametrize("k", [1, 2, 255, 256, 257, 300])
@pytest.mark.parametrize("largest", [0, 3, 2**22 - 1, 2**22, 2**23, 2**24 + 5, 2**31 - 1])
def test_sums_hold_for_any_k_and_any_code(k, largest):
    rng = np.random.default_rng(k)
    codes = rng.choice(np.unique([0, largest // 3, largest // 2, largest - 1 if largest else 0, largest]), (5, k))
    codes[0, 0] = largest
    weights = rng.integers(0, 9, (5, k)).astype(np.float32)
    found = sum_by_class(codes.astype(np.int32), weights)
    rows, best = naive_sums(codes, weights)
    assert found.best.tolist() == best
    assert found.codes.tolist() == [code for sums in rows for code in sorted(sums)]
    assert found.sums.tolist() == [sums[code] for sums in rows for code in sorted(sums)]


def test_ties_go_to_the_class_of_the_nearest_neighbour():
    assert of([[2, 0, 1, 0, 1, 2]], [[1, 1, 1, 1, 1, 1]]).best.tolist() == [2]
    assert of([[2, 0, 1, 0, 1, 2]], [[1, 1, 1, 2, 2, 1]]).best.tolist() == [0]


@settings(max_examples=150, deadline=None)
@given(neighbours())
def test_probabilities_match_the_naive_table(drawn):
    codes, weights, classes = drawn
    found, table = of(codes, weights, classes), naive_dense(codes, weights, classes)
    np.testing.assert_allclose(found.dense(), table, atol=1e-6)
    np.testing.assert_allclose(found.dense().sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(found.squares(), (table**2).sum(axis=1), atol=1e-6)
    np.testing.assert_allclose(found.confidence, table.max(axis=1), atol=1e-6)
    for code in range(classes):
        np.testing.assert_allclose(found.of(np.full(len(codes), code)), table[:, code], atol=1e-6)


def test_a_query_without_weight_has_equal_shares_and_the_nearest_class():
    found = of([[3, 1, 1, 0], [2, 2, 2, 2]], np.zeros((2, 4)), 5)
    np.testing.assert_allclose(found.dense(), [[1 / 3, 1 / 3, 0, 1 / 3, 0], [0, 0, 1, 0, 0]], atol=1e-7)
    assert found.best.tolist() == [3, 2]


def test_tiny_weights_still_sum_to_one():
    found = of([[0, 1, 1]], np.array([[1e-30, 1e-30, 2e-30]], np.float32))
    np.testing.assert_allclose(found.dense(), [[0.25, 0.75]], atol=1e-6)


@pytest.mark.parametrize("k", [1, 7])
def test_no_queries(k):
    found = of(np.empty((0, k)), np.empty((0, k)), 3)
    assert len(found) == 0
    assert found.dense().shape == (0, 3)
    assert found.top(2)[0].shape == (0, 2)
    for part in (
        found.confidence,
        found.squares(),
        found.labels,
        found.of([]),
        found.find([]),
        found.shortened(1).best,
    ):
        assert len(part) == 0


@settings(max_examples=100, deadline=None)
@given(neighbours(), st.integers(1, 15))
def test_top_is_the_sorted_list(drawn, n):
    codes, weights, classes = drawn
    found = of(codes, weights, classes)
    shown, values = found.top(n)
    rows, best = naive_sums(codes, weights)
    table = found.dense()
    for place, sums in enumerate(rows):
        order = sorted(sums, key=lambda code: (code != best[place], -table[place, code], code))[:n]
        padding = [-1] * (n - len(order))
        assert shown[place].tolist() == order + padding
        assert values[place].tolist() == [table[place, code] for code in order] + [0] * len(padding)
        assert values[place, 0] == found.confidence[place]


@pytest.mark.parametrize("n", [0, -1])
def test_top_of_nothing_is_refused(n):
    with pytest.raises(DataError, match="whole"):
        of([[0]], [[1]]).top(n)


@settings(max_examples=100, deadline=None)
@given(neighbours(), st.integers(1, 5))
def test_shortened_spreads_the_rest_evenly(drawn, n):
    codes, weights, classes = drawn
    full = of(codes, weights, classes)
    short = full.shortened(n)
    kept = full.top(n)[0]
    assert np.diff(short.offsets).max() <= n
    expected = np.zeros((len(full), classes))
    for place, (row, table) in enumerate(zip(kept, full.dense().astype(np.float64), strict=True)):
        listed = row[row >= 0]
        if classes > len(listed):
            expected[place] = (1 - table[listed].sum()) / (classes - len(listed))
        expected[place, listed] = table[listed]
    np.testing.assert_allclose(short.dense(), expected, atol=1e-6)
    np.testing.assert_allclose(short.dense().sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(short.squares(), (expected**2).sum(axis=1), atol=1e-5)
    np.testing.assert_array_equal(short.best, full.best)
    np.testing.assert_allclose(short.confidence, full.confidence, atol=1e-6)
    for code in range(classes):
        np.testing.assert_allclose(short.of(np.full(len(full), code)), expected[:, code], atol=1e-6)
    np.testing.assert_array_equal(short.of(["foreign"] * len(full)), 0)


def test_shortened_twice_is_shortened_once():
    rng = np.random.default_rng(0)
    full = of(rng.integers(0, 30, (6, 40)), rng.random((6, 40)), 30)
    np.testing.assert_allclose(full.shortened(9).shortened(4).dense(), full.shortened(4).dense(), atol=1e-6)
    assert full.shortened(30) is full


@settings(max_examples=60, deadline=None)
@given(st.lists(neighbours(), min_size=1, max_size=4))
def test_joined_is_one_after_the_other(parts):
    found = [of(codes, weights, 20).shortened(n) for n, (codes, weights, _) in zip((50, 1, 2, 50), parts, strict=False)]
    joined = ClassProbabilities.joined(found)
    np.testing.assert_allclose(joined.dense(), np.concatenate([part.dense() for part in found]), atol=1e-7)
    np.testing.assert_array_equal(joined.best, np.concatenate([part.best for part in found]))
    np.testing.assert_allclose(joined.squares(), np.concatenate([part.squares() for part in found]), atol=1e-7)


@pytest.mark.parametrize("block", [1, 7, 20, 10**6])
def test_blocks_change_nothing(monkeypatch, block):
    rng = np.random.default_rng(1)
    codes, weights = rng.integers(0, 6, (23, 9)), rng.random((23, 9))
    whole = of(codes, weights, 6)
    monkeypatch.setattr(probabilities, "_BLOCK", block)
    parted = of(codes, weights, 6)
    for name in ("offsets", "codes", "values", "best"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parted, name))


MIXED = np.array(["cat", 3, 2.5, ("a", 1), True, np.int64(7), "3"], dtype=object)


@pytest.mark.parametrize(
    ("classes", "labels", "codes"),
    [
        (MIXED, ["cat", np.str_("cat"), 3, np.int32(3), 3.0, "3"], [0, 0, 1, 1, 1, 6]),
        (MIXED, [2.5, np.float64(2.5), 7, "7", 1, "dog"], [2, 2, 5, -1, 4, -1]),
        (np.array(["a", "bb"]), ["a", "bb", "b", 0, "", "bbb"], [0, 1, -1, -1, -1, -1]),
        (np.array([5, 9]), np.array([9, 5, 4, 0, 1, 7], np.uint8), [1, 0, -1, -1, -1, -1]),
        (np.array([5, 9]), torch.tensor([9, 5, 4, 0, 1, -1]), [1, 0, -1, -1, -1, -1]),
        (np.array([5, 9]), np.array([9.0, 5.0, 5.5, 0, 1, -1]), [1, 0, -1, -1, -1, -1]),
        (np.array([2**53, 2**53 + 1]), [2**53 + 1, 2**53, 1, 1, 1, 1], [1, 0, -1, -1, -1, -1]),
    ],
)
def test_labels_are_found_by_equality(classes, labels, codes):
    found = ClassProbabilities.of_neighbours(classes, np.zeros((6, 1), np.int32), np.ones((6, 1), np.float32))
    assert found.find(labels).tolist() == codes
    assert found.of(labels).tolist() == [float(code == 0) for code in codes]


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ([1], "labels"),
        ([1, None], "missing"),
        ([1, float("nan")], "missing"),
        ("ab", "label"),
        ([[1], [2]], "hashable"),
        (np.ones((2, 1)), "one-dim"),
    ],
)
def test_bad_query_labels(labels, match):
    with pytest.raises(DataError, match=match):
        of([[0], [1]], [[1], [1]]).of(labels)


def test_labels_by_name():
    found = ClassProbabilities.of_neighbours(
        np.array(["owl", "jay"]), np.array([[1, 1, 0], [0, 1, 0]], np.int32), np.ones((2, 3), np.float32)
    )
    assert found.labels.tolist() == ["jay", "owl"]
    prediction = Prediction(found, np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int64))
    assert prediction.labels.tolist() == ["jay", "owl"]
    np.testing.assert_allclose(prediction.confidence, [2 / 3, 2 / 3])
    assert len(Prediction.joined([prediction, prediction])) == 4


def test_a_hundred_thousand_classes_make_no_table():
    rng = np.random.default_rng(0)
    estimator: NeighbourEstimator = KNNVote(k=50, space="euclidean").fit(
        rng.normal(size=(100_000, 2)).astype(np.float32), np.arange(100_000)
    )
    queries = rng.normal(size=(100, 2)).astype(np.float32)
    near = [part.numpy() for part in estimator.support_.search(torch.from_numpy(queries), 50)]
    tracemalloc.start()
    found = estimator.predict_proba(*near)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.diff(found.offsets).max() <= 50
    assert peak < 100 * 100_000  # a table would take four times as many bytes
    np.testing.assert_allclose(np.add.reduceat(found.values, found.offsets[:-1]), 1, atol=1e-5)
