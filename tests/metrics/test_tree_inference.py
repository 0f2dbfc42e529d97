"""Trees from distances: additive and ultrametric matrices come back exactly; plain loops and scipy as oracles."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import cophenet, linkage
from scipy.spatial.distance import squareform

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError
from nearkin.metrics.class_tree import confusion_counts, confusion_distances, infer_tree, robinson_foulds

METHODS = ["average", "neighbour-joining"]


def random_tree(rng, classes, widest):
    """A tree whose inner nodes have two to `widest` children, every branch between 0.1 and 1.1 long."""
    groups = [f"c{number}" for number in range(classes)]
    while len(groups) > 1:
        size = min(len(groups), int(rng.integers(2, widest + 1)))
        chosen = rng.choice(len(groups), size, replace=False)
        joined = ",".join(f"{groups[one]}:{0.1 + rng.random()}" for one in chosen)
        groups = [group for place, group in enumerate(groups) if place not in chosen] + [f"({joined})"]
    return Hierarchy.from_newick(f"{groups[0]};")


def even_tree(rng, classes, widest):
    """As `random_tree`, all classes equally deep."""
    groups, heights = [f"c{number}" for number in range(classes)], [0.0] * classes
    while len(groups) > 1:
        size = min(len(groups), int(rng.integers(2, widest + 1)))
        chosen = rng.choice(len(groups), size, replace=False)
        top = max(heights) + 0.1 + rng.random()  # above all others, or the distances would speak for another tree
        joined = ",".join(f"{groups[one]}:{top - heights[one]!r}" for one in chosen)
        kept = [place for place in range(len(groups)) if place not in chosen]
        groups, heights = [groups[p] for p in kept] + [f"({joined})"], [heights[p] for p in kept] + [top]
    return Hierarchy.from_newick(f"{groups[0]};")


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 25), st.integers(2, 5), st.integers(0, 10_000))
def test_neighbour_joining_finds_every_additive_tree(classes, widest, seed):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, classes, widest)
    names = list(rng.permutation(tree.classes))
    distances = tree.distances(names, how="length")
    found = infer_tree(distances, names, "neighbour-joining")
    assert robinson_foulds(tree, found).split_count == 0
    np.testing.assert_allclose(found.distances(names, how="length"), distances, rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 25), st.integers(2, 5), st.integers(0, 10_000), st.sampled_from(METHODS))
def test_both_methods_find_every_even_tree_with_its_root(classes, widest, seed, method):
    rng = np.random.default_rng(seed)
    tree = even_tree(rng, classes, widest)
    names = list(rng.permutation(tree.classes))
    distances = tree.distances(names, how="length")
    found = infer_tree(distances, names, method)
    assert found.clades() == tree.clades()
    np.testing.assert_allclose(found.distances(names, how="length"), distances, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 10, 40])
def test_average_linkage_has_the_distances_that_scipy_finds(classes):
    points = np.random.default_rng(classes).normal(size=(classes, 3))
    matrix = np.linalg.norm(points[:, None] - points[None], axis=2)
    names = [f"c{number}" for number in range(classes)]
    found = infer_tree(matrix, names).distances(names, how="length")
    expected = squareform(cophenet(linkage(squareform(matrix, checks=False), "average")))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def naive_splits(matrix, names):
    """Neighbour joining as the article writes it, one pair at a time; the set of classes below each join."""
    groups = [frozenset([name]) for name in names]
    far = {(a, b): matrix[i][j] for (i, a), (j, b) in itertools.product(enumerate(groups), repeat=2)}
    found = set()
    while len(groups) > 3:
        count = len(groups)
        total = {a: sum(far[a, b] for b in groups) for a in groups}
        a, b = min(itertools.combinations(groups, 2), key=lambda p: (count - 2) * far[p] - total[p[0]] - total[p[1]])
        joined = a | b
        groups = [group for group in groups if group not in (a, b)]
        for other in groups:
            far[joined, other] = far[other, joined] = (far[a, other] + far[b, other] - far[a, b]) / 2
        far[joined, joined] = 0.0
        groups.append(joined)
        found.add(joined)
    everything = frozenset(names)
    fixed = min(names)
    sides = {everything - side if fixed in side else side for side in found}
    return {side for side in sides if 1 < len(side) < len(names) - 1}


@pytest.mark.parametrize("seed", range(12))
def test_neighbour_joining_is_the_article_s_loop(seed):
    rng = np.random.default_rng(seed)
    names = [f"c{number}" for number in range(5 + seed)]
    tree = random_tree(rng, len(names), 2)
    noisy = tree.distances(names, how="length") * (1 + 0.02 * np.triu(rng.random((len(names),) * 2), 1))
    matrix = np.maximum(np.triu(noisy), np.triu(noisy).T)
    found = infer_tree(matrix, names, "neighbour-joining")
    everything, fixed = frozenset(names), min(names)
    sides = {everything - clade if fixed in clade else clade for clade in found.clades()}
    assert {side for side in sides if 1 < len(side) < len(names) - 1} == naive_splits(matrix, names)


def test_the_example_of_saitou_and_nei():
    """Five taxa (Wikipedia's worked example): branches 2, 3, 4, 2, 1 and inner branches 3 and 2."""
    matrix = [[0, 5, 9, 9, 8], [5, 0, 10, 10, 9], [9, 10, 0, 8, 7], [9, 10, 8, 0, 3], [8, 9, 7, 3, 0]]
    found = infer_tree(matrix, list("abcde"), "neighbour-joining")
    np.testing.assert_allclose(found.distances(list("abcde"), how="length"), matrix)
    assert robinson_foulds(found, Hierarchy.from_newick("((a:2,b:3):3,c:4,(d:2,e:1):2);")).split_count == 0
    branches = dict(zip(found.names, found.lengths, strict=True))
    assert [branches[name] for name in "acde"] == pytest.approx([2, 4, 2, 1])
    # The longest path is b to c or d (10), so the root is 5 from b: 2 above the node that joins a and b.
    assert frozenset("ab") in found.clades()
    assert frozenset("cde") in found.clades()


@pytest.mark.parametrize("method", METHODS)
def test_groups_that_the_distances_do_not_tell_apart_hang_side_by_side(method):
    tree = Hierarchy.from_paths({f"c{number}": [f"g{number % 3}"] for number in range(12)})
    found = infer_tree(tree.distances(tree.classes), tree.classes, method)
    assert found.clades() == tree.clades()
    flat = infer_tree(1 - np.eye(7), list("abcdefg"), method)
    assert flat.clades() == set()
    assert infer_tree(np.zeros((4, 4)), list("abcd"), method).clades() == set()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("classes", [4, 12, 30])
def test_the_order_of_classes_changes_nothing(method, classes):
    rng = np.random.default_rng(classes)
    points = rng.normal(size=(classes, 4))
    matrix = np.linalg.norm(points[:, None] - points[None], axis=2)
    names = np.array([f"c{number}" for number in range(classes)])
    order = rng.permutation(classes)
    first = infer_tree(matrix, names.tolist(), method)
    moved = infer_tree(matrix[np.ix_(order, order)], names[order].tolist(), method)
    assert moved.clades() == first.clades()
    np.testing.assert_allclose(
        moved.distances(names, how="length"), first.distances(names, how="length"), rtol=1e-8, atol=1e-10
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 15), st.integers(0, 10_000), st.sampled_from(METHODS))
def test_any_distances_give_a_tree_without_negative_branches(classes, seed, method):
    """Distances that are no metric at all, where neighbour joining finds negative lengths."""
    matrix = np.triu(np.random.default_rng(seed).random((classes, classes)) ** 4, 1)
    names = [f"class {number}" for number in range(classes)]
    found = infer_tree(matrix + matrix.T, names, method)
    assert sorted(found.classes) == sorted(names)
    assert min(found.lengths) >= 0
    assert Hierarchy.from_newick(found.to_newick()) == found


def test_confusions_by_hand():
    counts = confusion_counts([0, 0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 0, 2], 3)
    assert counts.tolist() == [[2, 2, 0], [1, 1, 0], [0, 0, 1]]
    distances = confusion_distances(counts)
    away = (0.25 + 0.25 + 1) ** 0.5
    np.testing.assert_allclose(distances, [[0, 0, away], [0, 0, away], [away, away, 0]], atol=1e-12)
    tree = infer_tree(distances, ["cat", "dog", "oak"])
    assert tree.clades() == {frozenset(["cat", "dog"])}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: infer_tree(1 - np.eye(3), "abc", "ward"), "ward"),
        (lambda: infer_tree(1 - np.eye(3), "ab"), "names"),
        (lambda: infer_tree(1 - np.eye(3), None), "None"),
        (lambda: infer_tree(1 - np.eye(3), "aab"), "names"),
        (lambda: infer_tree([[0.0]], "a"), "two"),
        (lambda: infer_tree(np.eye(3), "abc"), "diagonal"),
        (lambda: infer_tree(np.triu(1 - np.eye(3)), "abc"), "symmetric"),
        (lambda: infer_tree(np.zeros((2, 3)), "ab"), "square"),
        (lambda: confusion_distances([[1, 0], [0, 0]]), "row 1"),
        (lambda: confusion_distances([[1, -1], [0, 1]]), "negative"),
        (lambda: confusion_counts([0, 1], [0, 3], 3), "2"),
        (lambda: confusion_counts([0], [0, 1], 3), "labels"),
    ],
)
def test_bad_input_is_told(call, message):
    with pytest.raises(DataError, match=message):
        call()
