"""Comparing trees: by hand, against plain loops over inner nodes, and with scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import cophenet, linkage
from scipy.spatial.distance import pdist, squareform

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError
from nearkin.metrics.class_tree import cophenetic_correlation, infer_tree, recovered_clades, robinson_foulds


def newick(text):
    return Hierarchy.from_newick(text)


def random_tree(rng, classes):
    groups = [f"c{number}" for number in range(classes)]
    while len(groups) > 1:
        chosen = rng.choice(len(groups), min(len(groups), int(rng.integers(2, 4))), replace=False)
        joined = f"({','.join(groups[one] for one in chosen)})"
        groups = [group for place, group in enumerate(groups) if place not in chosen] + [joined]
    return newick(f"{groups[0]};")


def leaf_sets(tree):
    """The classes below each node, collected leaf by leaf."""
    below = [set() for _ in tree.parents]
    for name in tree.classes:
        for node in tree.ancestors(name):
            below[node].add(name)
    return below


def naive(first, second):
    total = len(first.classes)
    clades = [{tuple(sorted(s)) for s in leaf_sets(tree) if 1 < len(s) < total} for tree in (first, second)]
    splits = []
    for tree in (first, second):
        sides = [(s, set(tree.classes) - s) for s in leaf_sets(tree)]
        splits.append({frozenset(map(frozenset, pair)) for pair in sides if min(map(len, pair)) > 1})
    out = []
    for a, b in (clades, splits):
        count = sum(one not in b for one in a) + sum(one not in a for one in b)
        out += [count, len(a) + len(b), count / (len(a) + len(b)) if a or b else 0.0]
    return out


def test_trees_by_hand():
    known = newick("(((a,b),(c,d)),(e,f,g));")  # clades ab, cd, abcd, efg
    other = newick("(((a,c),(b,d)),((e,f),g));")  # clades ac, bd, abcd, ef, efg
    found = robinson_foulds(known, other)
    assert (found.count, found.most, found.share) == (5, 9, pytest.approx(5 / 9))
    # abcd and efg are one split.
    assert (found.split_count, found.split_most, found.split_share) == (5, 7, pytest.approx(5 / 7))
    recovered = recovered_clades(known, other)
    assert recovered.share == 0.5
    assert recovered.found == {frozenset("abcd"), frozenset("efg")}
    assert recovered.missed == {frozenset("ab"), frozenset("cd")}


def test_the_root_matters_for_clades_and_not_for_splits():
    first, second = newick("((a,b),(c,(d,e)));"), newick("(((a,b),c),(d,e));")
    found = robinson_foulds(first, second)
    assert found.count == 2  # cde and abc
    assert found.split_count == 0


def test_groups_with_a_single_child_do_not_count():
    tree = newick("(((a,b)),((c)),(d,e));")
    assert robinson_foulds(tree, newick("((a,b),c,(d,e));")).count == 0
    whole = newick("(((a,b),x),(c,d),y);")
    left = whole.restricted(["a", "b", "c", "d"])
    assert robinson_foulds(left, newick("((a,b),(c,d));")).count == 0


def test_a_star_has_no_groups():
    star = newick("(a,b,c,d);")
    assert robinson_foulds(star, star).share == 0
    assert math.isnan(recovered_clades(star, star).share)
    found = robinson_foulds(star, newick("((a,b),(c,d));"))
    assert (found.share, found.split_share) == (1, 1)
    assert found.split_most == 1
    assert recovered_clades(newick("((a,b),(c,d));"), star).share == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 14), st.integers(0, 10_000))
def test_counts_are_those_of_a_plain_loop(classes, seed):
    rng = np.random.default_rng(seed)
    first, second = random_tree(rng, classes), random_tree(rng, classes)
    found = robinson_foulds(first, second)
    expected = naive(first, second)
    actual = [found.count, found.most, found.share, found.split_count, found.split_most, found.split_share]
    assert actual == pytest.approx(expected)
    assert robinson_foulds(second, first) == found
    assert robinson_foulds(first, first).count == 0
    assert 0 <= found.share <= 1


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 10), st.integers(0, 10_000))
def test_other_names_and_orders_change_nothing(classes, seed):
    rng = np.random.default_rng(seed)
    first, second = random_tree(rng, classes), random_tree(rng, classes)
    fresh = dict(zip(first.classes, rng.permutation([f"z{number}" for number in range(classes)]), strict=True))

    def renamed(tree):
        return Hierarchy(tree.parents, tuple(str(fresh.get(name, name)) for name in tree.names), tree.lengths)

    assert robinson_foulds(renamed(first), renamed(second)) == robinson_foulds(first, second)


@pytest.mark.parametrize("classes", [3, 8, 30])
def test_cophenetic_correlation_is_scipy_s(classes):
    points = np.random.default_rng(classes).normal(size=(classes, 4))
    pairs = pdist(points)
    expected, _ = cophenet(linkage(pairs, "average"), pairs)
    names = [f"c{number}" for number in range(classes)]
    tree = infer_tree(squareform(pairs), names)
    assert cophenetic_correlation(tree.distances(names, how="length"), squareform(pairs)) == pytest.approx(expected)


def test_cophenetic_correlation_by_hand_and_at_its_limits():
    first = squareform([1.0, 2.0, 3.0])
    assert cophenetic_correlation(first, squareform([3.0, 5.0, 7.0])) == pytest.approx(1)
    assert cophenetic_correlation(first, squareform([3.0, 2.0, 1.0])) == pytest.approx(-1)
    assert cophenetic_correlation(first, squareform([1.0, 3.0, 2.0])) == pytest.approx(0.5)
    assert math.isnan(cophenetic_correlation(first, 1 - np.eye(3)))
    assert math.isnan(cophenetic_correlation([[0.0]], [[0.0]]))


def test_bad_input_is_told():
    tree = newick("((a,b),c);")
    with pytest.raises(DataError, match="'c'"):
        robinson_foulds(tree, newick("((a,b),d);"))
    with pytest.raises(DataError, match="'c'"):
        recovered_clades(newick("(a,b);"), tree)
    for compare in (robinson_foulds, recovered_clades):
        with pytest.raises(DataError, match="None"):
            compare(tree, None)
        with pytest.raises(DataError, match="'x'"):
            compare("x", tree)
    with pytest.raises(DataError, match="classes"):
        cophenetic_correlation(1 - np.eye(3), 1 - np.eye(4))
