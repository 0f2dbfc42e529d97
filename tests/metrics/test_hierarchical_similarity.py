"""HS@k and AHS@K against plain loops, by hand, with copies and ties, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError
from nearkin.metrics.hierarchy import best_sums, hierarchical_similarity
from nearkin.metrics.intervals import class_bootstrap
from nearkin.search import InnerProduct
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, Sphere

SPACES = [Sphere(), Sphere("angle"), Euclidean(), LipschitzBall(), PoincareBall(0.7), InnerProduct()]
NAMES = ["shark", "trout", "hawk", "wren", "oak"]
TREE = Hierarchy.from_nested({"animals": {"fish": ["shark", "trout"], "birds": ["hawk", "wren"]}, "plants": ["oak"]})
PATHS = TREE.distances(NAMES)


class Taxicab:
    """A distance of a user's own."""

    def distance(self, x, y):
        return torch.cdist(x, y, p=1)


def cloud(items, classes=5, dimension=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, items)
    centres = rng.normal(size=(classes, dimension))
    return (0.4 * (centres[labels] + rng.normal(size=(items, dimension)))).astype(np.float32), labels


def naive(points, labels, tree, space, ks, span):
    """One query and one neighbour at a time."""
    x = torch.as_tensor(points).double()
    n = len(labels)
    columns = {**{f"HS@{k}": [] for k in ks}, **({f"AHS@{span}": []} if span else {})}
    for query in range(n):
        others = [item for item in range(n) if item != query]
        far = space.distance(x[query : query + 1], x)[0].tolist()
        near = sorted(others, key=lambda item: (far[item], item))
        similarity = [1 - (2**0.5 * d / (1 + d)) ** 2 / 2 for d in tree[labels[query]]]
        found = [similarity[labels[item]] for item in near]
        best = sorted(found, reverse=True)
        hs = np.cumsum(found) / np.cumsum(best)
        for k in ks:
            columns[f"HS@{k}"].append(hs[k - 1])
        if span:
            columns[f"AHS@{span}"].append(sum((hs[k] + hs[k + 1]) / 2 for k in range(span - 1)) / (span - 1))
    return columns


@pytest.mark.parametrize("space", [*SPACES, Taxicab()], ids=lambda space: type(space).__name__)
@pytest.mark.parametrize(("ks", "span"), [((1, 5, 20), 30), ((40,), None), ((3,), 12), ((), 2), ((79,), 79)])
def test_values_are_those_of_a_plain_loop(space, ks, span):
    points, labels = cloud(80)
    result = hierarchical_similarity(points, labels, PATHS, at=ks, area=span, space=space)
    expected = naive(points, labels, PATHS, space, ks, span)
    assert list(result.per_query) == list(expected)
    for name, column in expected.items():
        np.testing.assert_allclose(result.per_query[name], column, rtol=1e-12)
        assert result.values[name] == pytest.approx(np.mean(column))
    assert result.notes == []


def test_a_search_in_tiles_is_a_loop_over_queries():
    """Enough items for the sieve and its mirrored tiles, and neighbours that float32 hardly tells apart."""
    items = 2500
    points, labels = cloud(items, classes=12, dimension=3, seed=4)
    tree = np.random.default_rng(0).integers(1, 5, (12, 12))
    tree = np.triu(tree, 1) + np.triu(tree, 1).T
    result = hierarchical_similarity(points, labels, tree, at=(7, 250), area=250)
    unit = points.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    similarities = 1 - (tree / (1 + tree)) ** 2
    for query in range(0, items, 25):
        far = ((unit - unit[query]) ** 2).sum(axis=1)
        far[query] = np.inf
        near = np.argsort(far, kind="stable")[:250]
        similar = similarities[labels[query]][labels]
        reached, best = similar[near].cumsum(), np.sort(np.delete(similar, query))[::-1][:250].cumsum()
        curve = reached / best
        assert result.per_query["HS@7"][query] == pytest.approx(curve[6], rel=1e-9)
        assert result.per_query["HS@250"][query] == pytest.approx(curve[-1], rel=1e-9)
        assert result.per_query["AHS@250"][query] == pytest.approx(np.trapezoid(curve) / 249, rel=1e-9)


def test_a_query_by_hand():
    """A shark beside a hawk, then a trout: 1 - (4/5)^2 = 0.36 and 1 - (2/3)^2 = 5/9, best the other way round."""
    points = [[0.0], [1.0], [3.0]]
    result = hierarchical_similarity(
        points, ["shark", "hawk", "trout"], PATHS, at=(1, 2), area=2, space="euclidean", class_names=NAMES
    )
    assert result.per_query["HS@1"][0] == pytest.approx(0.36 / (5 / 9))
    np.testing.assert_allclose(result.per_query["HS@2"], 1)
    assert result.per_query["AHS@2"][0] == pytest.approx((0.36 / (5 / 9) + 1) / 2)
    assert result.labels.tolist() == ["shark", "hawk", "trout"]


def test_a_perfect_order_has_one_everywhere_and_a_bad_one_less():
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(5), [9, 5, 12, 3, 7]))
    place = np.array([0.0, 1.0, 10.0, 11.0, 100.0])  # as far apart as in the tree
    points = place[labels][:, None] + 0.01 * rng.random((36, 1))
    result = hierarchical_similarity(points, labels, PATHS, at=(1, 10, 35), area=35, space="euclidean")
    for values in result.per_query.values():
        np.testing.assert_allclose(values, 1, rtol=1e-12)
    shuffled = hierarchical_similarity(
        rng.permutation(points), labels, PATHS, at=(1, 10, 35), area=35, space="euclidean"
    )
    assert shuffled.values["AHS@35"] < 0.95
    assert shuffled.values["HS@35"] == pytest.approx(1)  # of all others any order is as good


def test_copies_are_found_and_the_query_itself_is_not():
    """Each item has a copy of another class, so the first neighbour is that copy and not the item."""
    rng = np.random.default_rng(0)
    originals = rng.normal(size=(20, 3))
    points = np.concatenate([originals, originals])
    labels = np.repeat([0, 2], 20)
    result = hierarchical_similarity(points, labels, PATHS, at=(1,), area=None)
    np.testing.assert_allclose(result.per_query["HS@1"], 0.36)


@pytest.mark.parametrize("items", [60, 300])
def test_many_neighbours_that_float32_cannot_tell_apart_are_told_apart(items):
    """The last items are the nearest to the first by 1e-10, and of its class."""
    far = 1 + 1e-10 * np.arange(items, 0, -1)
    points = np.append(0.0, far)[:, None]
    labels = np.where(np.arange(items + 1) > items - 5, 0, 4)
    labels[0] = 0
    result = hierarchical_similarity(points, labels, PATHS, at=(5,), area=6, space="euclidean")
    assert result.per_query["HS@5"][0] == 1
    assert result.per_query["AHS@6"][0] == pytest.approx(1)


def test_a_model_that_maps_everything_to_one_point_goes_by_index():
    """So many ties that none is looked at again."""
    labels = np.tile([0, 1, 2], 500)
    result = hierarchical_similarity(np.ones((1500, 8), np.float32), labels, PATHS, at=(10,), area=10)
    similarities = 1 - (PATHS / (1 + PATHS)) ** 2
    for query in (0, 4, 9, 10, 11, 700, 1499):
        near = np.delete(np.arange(11), min(query, 10))
        reached = similarities[labels[query], labels[near]].sum()
        assert result.per_query["HS@10"][query] == pytest.approx(reached / 10)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(6, 30))
def test_permuted_classes_and_items_change_nothing(seed, items):
    points, labels = cloud(items, seed=seed)
    rng = np.random.default_rng(seed)
    classes, rows = rng.permutation(5), rng.permutation(items)
    first = hierarchical_similarity(points, labels, PATHS, at=(1, 5), area=4)
    moved = hierarchical_similarity(
        points[rows], np.argsort(classes)[labels][rows], PATHS[np.ix_(classes, classes)], at=(1, 5), area=4
    )
    for name, values in first.per_query.items():
        np.testing.assert_allclose(moved.per_query[name], values[rows], rtol=1e-12)
        assert (values <= 1 + 1e-12).all()
        assert (values > 0).all()


@pytest.mark.parametrize("depth", [1, 4, 11])
def test_best_sums_are_those_of_all_others_sorted(depth):
    counts = np.array([4, 0, 1, 6, 1])
    similarities = 1 - (PATHS / (1 + PATHS)) ** 2
    labels = np.repeat(np.arange(5), counts)
    sums = best_sums(similarities, counts, depth)
    for own in np.flatnonzero(counts):
        others = np.delete(labels, np.flatnonzero(labels == own)[0])
        np.testing.assert_allclose(sums[own], np.sort(similarities[own][others])[::-1][:depth].cumsum())
    assert (sums[1] == 0).all()


def test_what_needs_more_items_is_left_out_and_said():
    points, labels = cloud(60)
    result = hierarchical_similarity(points, labels, PATHS)
    assert list(result.values) == ["HS@50"]
    assert [("HS@250" in note, "AHS@250" in note) for note in result.notes] == [(True, True)]


def test_per_query_values_feed_the_bootstrap():
    points, labels = cloud(60)
    result = hierarchical_similarity(points, labels, PATHS, at=(5,), area=9)
    alone = class_bootstrap(result.per_query["AHS@9"], labels, resamples=30, seed=2)
    assert result.intervals(resamples=30, seed=2)["AHS@9"] == alone


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"at": (50,), "area": 60}, "AHS@60"),
        ({"at": (), "area": None}, "metric"),
        ({"at": (0,)}, "HS@k"),
        ({"area": 1}, r"\bK\b"),
        ({"labels": [0, 1]}, "labels"),
        ({"labels": [0, 1, 2, 3, 4, 5]}, "4"),
        ({"class_names": ["a", "b", "c", "d", "e"]}, "'0'"),
        ({"distances": np.ones((5, 5))}, "diagonal"),
        ({"distances": -PATHS}, "negative"),
        ({"distances": np.triu(PATHS)}, "symmetric"),
        ({"embeddings": [[np.nan]] * 6}, "NaN"),
        ({"space": "sphera"}, "sphere"),
        ({"memory_mb": 1}, "64"),
    ],
)
def test_bad_input_is_told(changes, message):
    given = {"embeddings": np.eye(6), "labels": [0, 1, 2, 3, 4, 0], "distances": PATHS, "at": (2,), "area": 3} | changes
    with pytest.raises(DataError, match=message):
        hierarchical_similarity(given.pop("embeddings"), given.pop("labels"), given.pop("distances"), **given)
