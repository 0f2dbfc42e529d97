"""Mean correlation, prototypes and measures of predictions: scipy and plain loops as oracles, hand-made trees, ties."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError
from nearkin.metrics.hierarchy import (
    HierarchicalResult,
    class_distance_matrix,
    class_prototypes,
    hierarchical_distance,
    hierarchical_metrics,
    hierarchical_precision,
    mean_correlation,
    rank_classes,
    ranking_metrics,
    top_accuracy,
)
from nearkin.metrics.intervals import class_bootstrap
from nearkin.spaces import Euclidean, PoincareBall, Sphere

NAMES = ["shark", "trout", "hawk", "wren", "oak"]
TREE = Hierarchy.from_nested({"animals": {"fish": ["shark", "trout"], "birds": ["hawk", "wren"]}, "plants": ["oak"]})
MEASURES = ["top-1", "top-3", "top-5", "AHD@1", "AHD@3", "AHD@5", "HP@2", "HP@5", "severity"]
PATHS = np.array(
    [  # by hand: root-animals-fish-shark is 3 edges deep, root-plants-oak 2
        [0, 2, 4, 4, 5],
        [2, 0, 4, 4, 5],
        [4, 4, 0, 2, 5],
        [4, 4, 2, 0, 5],
        [5, 5, 5, 5, 0],
    ],
    float,
)


def random_distances(rng, classes, levels=None):
    matrix = rng.random((classes, classes)) if levels is None else rng.integers(1, levels + 1, (classes, classes))
    matrix = np.triu(matrix, 1).astype(float)
    return matrix + matrix.T


def naive_correlation(first, second, diagonal):
    each = []
    for row in range(len(first)):
        kept = [column for column in range(len(first)) if diagonal or column != row]
        a, b = first[row, kept], second[row, kept]
        each.append(math.nan if len(set(a)) < 2 or len(set(b)) < 2 else spearmanr(a, b).statistic)
    kept = [r for r in each if not math.isnan(r)]
    limit = 1 - 1e-12
    z = [math.atanh(min(max(r, -limit), limit)) for r in kept]
    return each, math.tanh(sum(z) / len(z)) if z else math.nan


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("levels", [None, 2, 4])
@pytest.mark.parametrize("classes", [3, 4, 9, 30])
def test_mean_correlation_is_a_loop_over_spearman(classes, levels, diagonal):
    rng = np.random.default_rng(classes)
    tree, learned = random_distances(rng, classes, levels), random_distances(rng, classes)
    found = mean_correlation(tree, learned, diagonal=diagonal)
    each, value = naive_correlation(tree, learned, diagonal)
    np.testing.assert_allclose(found.per_class, each, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.value, value, rtol=1e-9)
    assert found.dropped == sum(math.isnan(r) for r in each)


def test_mean_correlation_by_hand():
    learned = np.array([[0, 1, 5, 6], [1, 0, 7, 8], [5, 7, 0, 9], [6, 8, 9, 0]], float)
    found = mean_correlation(PATHS[:4, :4], learned)
    half = math.sqrt(3) / 2  # of ranks 1, 2.5, 2.5 and 1, 2, 3
    np.testing.assert_allclose(found.per_class, [half, half, -half, -half])
    assert found.value == pytest.approx(0.0)


def test_rows_of_equal_distances_are_dropped():
    found = mean_correlation(PATHS, PATHS)  # the oak is equally far from all animals
    assert found.dropped == 1
    assert np.isnan(found.per_class[4])
    assert found.value == pytest.approx(1 - 1e-12, abs=1e-13)
    assert mean_correlation(PATHS, PATHS, diagonal=True).dropped == 0
    flat = 1 - np.eye(6)
    nothing = mean_correlation(flat, random_distances(np.random.default_rng(0), 6))
    assert math.isnan(nothing.value)
    assert nothing.dropped == 6
    assert math.isnan(mean_correlation([[0.0]], [[0.0]]).value)


def test_rows_that_agree_or_oppose_fully_are_counted():
    assert mean_correlation(PATHS, PATHS).extreme == 4
    assert mean_correlation(PATHS, -PATHS).extreme == 4
    learned = random_distances(np.random.default_rng(0), 5)
    found = mean_correlation(PATHS, learned)
    assert found.extreme == 0 < found.dropped
    one = np.array([[0, 1, 2, 3], [1, 0, 2, 3], [2, 2, 0, 3], [3, 3, 3, 0]], float)
    other = np.array([[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]], float)
    mixed = mean_correlation(one, other)  # the first class agrees fully, the third opposes, the last is dropped
    assert (mixed.extreme, mixed.dropped) == (int((np.abs(mixed.per_class) > 1 - 1e-9).sum()), 1)
    assert mixed.extreme > 0
    assert mean_correlation(1 - np.eye(4), one).extreme == 0


DIRECTIONS = np.stack([np.cos([0, 2, 4] @ np.eye(3) * np.pi / 3), np.sin([0, 2, 4] @ np.eye(3) * np.pi / 3)], axis=1)
ROUNDED = (
    "(((x00:1.9,x01:1.9,x02:1.9):0.2,(x10:1.9,x11:1.9,x12:1.9):0.2):0.8,(y0:2.1,y1:2.1,y2:2.1,y3:2.1):0.8,"
    "(z0:2.9,z1:2.9,z2:2.9,z3:2.9):0.0);"
)


@pytest.mark.parametrize("diagonal", [False, True])
def test_branch_lengths_that_only_rounding_tells_apart_are_ties(diagonal):
    tree = Hierarchy.from_newick(ROUNDED).distances(how="length")
    exact = np.round(tree, 6)
    assert len(np.unique(tree)) > len(np.unique(exact))
    rng = np.random.default_rng(0)
    learned = random_distances(rng, len(tree))
    for first, second in ((tree, learned), (learned, tree), (tree * 1e-12, learned)):
        found = mean_correlation(first, second, diagonal=diagonal)
        each, value = naive_correlation(exact, learned, diagonal)
        np.testing.assert_allclose(found.per_class, each, rtol=1e-9, atol=1e-12)
        assert found.value == pytest.approx(value, rel=1e-9)
    noisy = (1 - np.eye(9)) * (1 + 1e-13 * rng.random((9, 9)))
    assert mean_correlation(noisy, random_distances(rng, 9)).dropped == 9
    near = (1 - np.eye(9)) * (1 + 1e-6 * random_distances(rng, 9))
    assert mean_correlation(near, random_distances(rng, 9)).dropped == 0


def test_opposite_orders_give_minus_one_and_the_diagonal_raises_the_value():
    rng = np.random.default_rng(3)
    tree = random_distances(rng, 12)
    opposite = (2 - tree) * (1 - np.eye(12))
    assert mean_correlation(tree, opposite).value == pytest.approx(-1, abs=1e-9)
    other = random_distances(rng, 12)
    assert mean_correlation(tree, other, diagonal=True).value > mean_correlation(tree, other).value


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 12), st.integers(0, 10_000))
def test_mean_correlation_knows_neither_the_order_nor_the_scale_of_classes(classes, seed):
    rng = np.random.default_rng(seed)
    tree, learned = random_distances(rng, classes, 3), random_distances(rng, classes)
    order = rng.permutation(classes)
    first = mean_correlation(tree, learned)
    moved = mean_correlation(tree[np.ix_(order, order)], np.exp(3 * learned[np.ix_(order, order)]))
    np.testing.assert_allclose(moved.per_class, first.per_class[order], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(moved.value, first.value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("space", [Sphere(), Sphere("angle"), Euclidean(), PoincareBall(0.7)])
def test_prototypes_are_the_means_of_classes(space):
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(NAMES, [1, 4, 7, 3, 2]))
    points = space.project(torch.from_numpy(rng.normal(size=(17, 6))))
    names, vectors = class_prototypes(points, labels, space)
    assert names == tuple(sorted(NAMES))
    for name, vector in zip(names, vectors, strict=True):
        np.testing.assert_allclose(vector, space.mean(points[torch.from_numpy(labels == name)]), rtol=1e-12)
    distances = class_distance_matrix(vectors, space)
    for a in range(5):
        for b in range(5):
            one, other = (torch.from_numpy(vectors[row : row + 1]) for row in (a, b))
            assert distances[a, b] == pytest.approx(float(space.distance(one, other)), abs=1e-12)
    np.testing.assert_array_equal(distances, distances.T)


def test_prototypes_on_the_sphere_weigh_directions_not_lengths():
    names, vectors = class_prototypes([[5.0, 0.0], [0.0, 1.0], [-3.0, 0.0]], [7, 7, 2])
    assert names == ("2", "7")
    np.testing.assert_allclose(vectors, [[-1, 0], [0.5**0.5, 0.5**0.5]], atol=1e-5)


def naive_measures(scores, truth, tree, k):
    """Accuracy, AHD and HP of each item at k, by plain Python."""
    found = []
    for row, own in zip(scores, truth, strict=True):
        order = sorted(range(len(row)), key=lambda c: (-row[c], c))[:k]
        radius = sorted(tree[own])[k - 1]
        right = [c for c in range(len(row)) if tree[own][c] <= radius]
        found.append(
            (
                own in order,
                sum(tree[own][c] for c in order) / k,
                sum(c in right for c in order) / k,
                tree[own][order[0]],
            )
        )
    return np.array(found, float)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("classes", [5, 8, 40])
def test_every_measure_is_a_plain_loop(classes, ties):
    rng = np.random.default_rng(classes)
    tree = random_distances(rng, classes, 4)
    truth = rng.integers(0, classes, 60)
    scores = rng.normal(size=(60, classes)) + 2 * np.eye(classes)[truth]
    if ties:
        scores = scores.round()
    result = hierarchical_metrics(scores, truth, tree, at=(1, 3, 5), precision_at=(2, 5))
    assert list(result.values) == MEASURES
    for k in (1, 2, 3, 5):
        expected = naive_measures(scores, truth, tree, k)
        for name, column in ((f"top-{k}", 0), (f"AHD@{k}", 1), (f"HP@{k}", 2)):
            if name in result.values:
                np.testing.assert_allclose(result.per_query[name], expected[:, column], rtol=1e-12)
                assert result.values[name] == pytest.approx(expected[:, column].mean())
    wrong = expected[:, 3][scores.argmax(axis=1) != truth]
    assert len(wrong) == len(result.mistakes) > 0
    assert result.values["severity"] == pytest.approx(wrong.mean())
    np.testing.assert_array_equal(result.mistakes, np.flatnonzero(scores.argmax(axis=1) != truth))
    assert result.lower_is_better == ("AHD@1", "AHD@3", "AHD@5", "severity")


def test_measures_by_hand():
    ranking = [[0, 1, 4], [2, 1, 0], [4, 3, 0]]
    truth = [0, 1, 2]
    np.testing.assert_array_equal(TREE.distances(NAMES), PATHS)
    result = ranking_metrics(ranking, truth, PATHS, at=(1, 3), precision_at=(2, 3))
    assert result.per_query["top-1"].tolist() == [1, 0, 0]
    assert result.per_query["top-3"].tolist() == [1, 1, 0]
    assert result.per_query["AHD@1"].tolist() == [0, 4, 5]
    np.testing.assert_allclose(result.per_query["AHD@3"], [7 / 3, 6 / 3, 11 / 3])
    # Two nearest: the class and its sibling. Three nearest: the radius is 4, so all animals.
    assert result.per_query["HP@2"].tolist() == [1, 0.5, 0.5]
    np.testing.assert_allclose(result.per_query["HP@3"], [2 / 3, 1, 2 / 3])
    assert result.values["severity"] == 4.5
    assert result.mistakes.tolist() == [1, 2]
    assert result.severities.tolist() == [4, 5]
    assert top_accuracy(ranking, truth, 2).tolist() == [1, 1, 0]
    assert hierarchical_distance(ranking, truth, PATHS, 2).tolist() == [1, 2, 3.5]
    assert hierarchical_precision(ranking, truth, PATHS, 1).tolist() == [1, 0, 0]


def test_distances_that_only_rounding_tells_apart_are_ties():
    rounded = PATHS.copy()
    rounded[0, 2] *= 1 - 4e-16  # as sums of branch lengths come out; the wren is still as near as the hawk
    assert rounded[0, 2] < rounded[0, 3]
    assert hierarchical_precision([[0, 1, 3]], [0], rounded, 3).tolist() == [1]


def test_without_mistakes_there_is_no_severity():
    result = hierarchical_metrics(np.eye(5), np.arange(5), PATHS)
    assert result.values["top-1"] == 1
    assert result.values["AHD@1"] == 0
    assert math.isnan(result.values["severity"])
    assert "severity" not in result.intervals(resamples=20)
    assert result.to_dict()["values"]["severity"] is None


def test_intervals_are_those_of_the_class_bootstrap():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 80)
    scores = rng.normal(size=(80, 5)) + np.eye(5)[truth]
    result = hierarchical_metrics(scores, np.array(NAMES)[truth], PATHS, names=NAMES)
    assert result.labels.tolist() == [NAMES[own] for own in truth]
    intervals = result.intervals(resamples=50, level=0.9, seed=4)
    assert list(intervals) == list(result.values)
    alone = class_bootstrap(result.per_query["HP@5"], result.labels, resamples=50, level=0.9, seed=4)
    assert intervals["HP@5"] == alone
    severe = class_bootstrap(result.severities, result.labels[result.mistakes], resamples=50, level=0.9, seed=4)
    assert intervals["severity"] == severe
    assert severe[0] <= result.values["severity"] <= severe[1]


def test_equal_scores_go_by_the_lower_class_number():
    assert rank_classes([[1, 3, 3, 0], [2, 2, 2, 2]], 3).tolist() == [[1, 2, 0], [0, 1, 2]]
    assert rank_classes(np.array([[0, 255, 3]], np.uint8), 9).tolist() == [[1, 2, 0]]
    assert rank_classes([[-np.inf, 0.0, np.inf]], 2).tolist() == [[2, 1]]
    assert rank_classes(torch.tensor([[0.1, 0.7]], requires_grad=True), 1).tolist() == [[1]]


@settings(max_examples=40, deadline=None)
@given(st.integers(5, 12), st.integers(0, 10_000))
def test_permuted_classes_change_nothing(classes, seed):
    rng = np.random.default_rng(seed)
    tree = random_distances(rng, classes, 4)
    truth = rng.integers(0, classes, 20)
    scores = rng.normal(size=(20, classes))
    order = rng.permutation(classes)
    moved = hierarchical_metrics(scores[:, order], np.argsort(order)[truth], tree[np.ix_(order, order)])
    first = hierarchical_metrics(scores, truth, tree)
    assert moved.values == pytest.approx(first.values, nan_ok=True)


def test_a_k_beyond_the_classes_is_left_out_and_said():
    result = hierarchical_metrics(np.eye(3), [0, 1, 2], PATHS[:3, :3])
    assert list(result.values) == ["top-1", "AHD@1", "severity"]
    assert [[name in note for name in ("top-5", "AHD@5", "HP@5")] for note in result.notes] == [[True] * 3]
    assert hierarchical_metrics(np.eye(5), range(5), PATHS).notes == []


def test_a_result_is_plain_values():
    result = HierarchicalResult({"HS@2": 0.5}, {"HS@2": np.array([0.4, 0.6])}, np.array([0, 1]))
    assert result.to_dict() == {"values": {"HS@2": 0.5}, "items": 2, "mistakes": 0, "notes": []}
    assert result.lower_is_better == ()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_correlation(np.zeros((2, 3)), np.zeros((2, 3))), "square"),
        (lambda: mean_correlation(np.eye(3), np.eye(4)), "classes"),
        (lambda: mean_correlation(np.full((2, 2), np.nan), np.eye(2)), "NaN"),
        (lambda: mean_correlation([["a"]], [[0]]), "numbers"),
        (lambda: hierarchical_metrics(np.eye(4), range(4), PATHS), "classes"),
        (lambda: hierarchical_metrics(np.eye(5), [0, 1], PATHS), "labels"),
        (lambda: hierarchical_metrics(np.eye(5), [0, 1, 2, 3, 5], PATHS), "4"),
        (lambda: hierarchical_metrics(np.eye(5), NAMES, PATHS), "numbers"),
        (lambda: hierarchical_metrics(np.eye(5), ["shrak", *NAMES[1:]], PATHS, names=NAMES), "shark"),
        (lambda: hierarchical_metrics(np.eye(5), NAMES, PATHS, names=NAMES[:4]), "names"),
        (lambda: hierarchical_metrics(np.eye(5), range(5), PATHS, at=(0,)), r"\b0\b"),
        (lambda: hierarchical_metrics(np.eye(5), range(5), PATHS, precision_at=2.5), "HP@k"),
        (lambda: hierarchical_metrics([1.0, 2.0], [0], PATHS), "shape"),
        (lambda: hierarchical_metrics([[1.0, np.nan]], [0], PATHS[:2, :2]), "NaN"),
        (lambda: hierarchical_metrics(np.zeros((0, 5)), [], PATHS), "shape"),
        (lambda: ranking_metrics([[0, 9]], [0], PATHS), "4"),
        (lambda: ranking_metrics([[0, 0]], [0], PATHS), "twice"),
        (lambda: ranking_metrics([[0.5]], [0], PATHS), "numbers"),
        (lambda: top_accuracy([[0, 1]], [0], 3), "3"),
        (lambda: class_prototypes(np.zeros((0, 3)), []), "embeddings"),
        (lambda: class_prototypes(np.zeros((2, 3)), ["a"]), "labels"),
        (lambda: class_prototypes(np.array([[1, 0], [0, 1], [1, 0], [-1, 0]]), list("aabb")), "'b'"),
        (lambda: class_prototypes(DIRECTIONS, [7] * 3), "'7'"),
        (lambda: class_prototypes(np.zeros((2, 3)), ["a", "a"]), "sphere"),
        (lambda: class_distance_matrix([1.0, 2.0]), "shape"),
    ],
)
def test_bad_input_is_told(call, message):
    with pytest.raises(DataError, match=message):
        call()
