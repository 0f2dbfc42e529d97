"""Class trees: small ones by hand, naive loops over pairs, properties of random ones, and what is refused."""

import time
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError

BALANCED = Hierarchy.from_nested({"pets": ["cat", "dog"], "plants": ["oak", "rose"]})
UNBALANCED = Hierarchy.from_nested({"animals": {"fish": ["shark", "trout"], "mammals": ["dog"]}, "things": ["cup"]})
CHAIN = Hierarchy.from_newick("(a:1,(b:2,(c:4,(d:8)x:16)y:32)z:64);")


@st.composite
def trees(draw):
    """A random tree, its nodes shuffled, with chains and, at times, branch lengths."""
    count = draw(st.integers(3, 25))
    parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, count)]
    order = draw(st.permutations(range(count)))
    shuffled = [0] * count
    for node, parent in enumerate(parents):
        shuffled[order[node]] = order[parent] if parent >= 0 else -1
    if sum(node not in shuffled for node in range(count)) < 2:
        shuffled += [order[0], order[0]]
        count += 2
    lengths = draw(st.none() | st.lists(st.floats(0, 100), min_size=count, max_size=count))
    return Hierarchy(
        tuple(shuffled), tuple(f"n{node}" for node in range(count)), None if lengths is None else tuple(lengths)
    )


def up(tree, name):
    """The nodes from a leaf to the root."""
    node = next(n for n in range(len(tree.names)) if tree.names[n] == name and n not in tree.parents)
    way = [node]
    while tree.parents[way[-1]] >= 0:
        way.append(tree.parents[way[-1]])
    return way


def naive_height(tree, node):
    below = [child for child, parent in enumerate(tree.parents) if parent == node]
    return 1 + max(naive_height(tree, child) for child in below) if below else 0


def naive_distance(tree, one, other, how):
    first, second = up(tree, one), up(tree, other)
    lowest = next(node for node in first if node in second)
    ways = first[: first.index(lowest)] + second[: second.index(lowest)]
    if how == "path":
        return len(ways)
    if how == "length":
        return sum(tree.lengths[node] for node in ways)
    return naive_height(tree, lowest) / naive_height(tree, tree.parents.index(-1))


def kinds(tree):
    return ("path", "lcs") if tree.lengths is None else ("path", "lcs", "length")


def test_distances_of_a_balanced_tree():
    assert BALANCED.classes == ("cat", "dog", "oak", "rose")
    np.testing.assert_array_equal(BALANCED.distances(), [[0, 2, 4, 4], [2, 0, 4, 4], [4, 4, 0, 2], [4, 4, 2, 0]])
    half = [[0, 0.5, 1, 1], [0.5, 0, 1, 1], [1, 1, 0, 0.5], [1, 1, 0.5, 0]]
    np.testing.assert_array_equal(BALANCED.distances(how="lcs"), half)
    assert BALANCED.distances().dtype == BALANCED.distances(how="lcs").dtype == np.float64


def test_distances_of_an_unbalanced_tree():
    assert UNBALANCED.classes == ("shark", "trout", "dog", "cup")
    np.testing.assert_array_equal(UNBALANCED.distances(), [[0, 2, 4, 5], [2, 0, 4, 5], [4, 4, 0, 5], [5, 5, 5, 0]])
    thirds = np.array([[0, 1, 2, 3], [1, 0, 2, 3], [2, 2, 0, 3], [3, 3, 3, 0]]) / 3
    np.testing.assert_allclose(UNBALANCED.distances(how="lcs"), thirds)


def test_heights_are_longest_ways_down_and_depths_ways_up():
    """The root has a leaf right below it, so the shortest way down would be 1."""
    names = CHAIN.names
    heights, depths = CHAIN.heights(), CHAIN.depths()
    assert {name: int(heights[names.index(name)]) for name in "abcdxyz"} == {
        "a": 0,
        "b": 0,
        "c": 0,
        "d": 0,
        "x": 1,
        "y": 2,
        "z": 3,
    }
    assert heights[0] == 4
    assert {name: int(depths[names.index(name)]) for name in "abcdxyz"} == {
        "a": 1,
        "b": 2,
        "c": 3,
        "d": 4,
        "x": 3,
        "y": 2,
        "z": 1,
    }
    assert depths[0] == 0


def test_distances_of_a_chain_with_lengths():
    np.testing.assert_array_equal(CHAIN.distances(), [[0, 3, 4, 5], [3, 0, 3, 4], [4, 3, 0, 3], [5, 4, 3, 0]])
    lengths = [[0, 67, 101, 121], [67, 0, 38, 58], [101, 38, 0, 28], [121, 58, 28, 0]]
    np.testing.assert_array_equal(CHAIN.distances(how="length"), lengths)
    np.testing.assert_array_equal(CHAIN.distances(["d", "a"], how="lcs"), [[0, 1], [1, 0]])


def test_ancestors_go_from_the_leaf_to_the_root():
    assert [UNBALANCED.names[node] for node in UNBALANCED.ancestors("shark")] == ["shark", "fish", "animals", ""]
    assert UNBALANCED.parents[UNBALANCED.ancestors("cup")[-1]] == -1


def test_clades_leave_out_the_root_the_leaves_and_groups_of_one():
    assert UNBALANCED.clades() == {frozenset({"shark", "trout"}), frozenset({"shark", "trout", "dog"})}
    assert CHAIN.clades() == {frozenset("bcd"), frozenset("cd")}
    assert Hierarchy.from_nested([[["a", "b"]]]).clades() == set()


def test_forms_of_one_tree_agree():
    nested = {"animals": {"fish": ["shark", "trout"], "mammals": ["dog"]}, "things": ["cup"]}
    paths = {"shark": ["animals", "fish"], "trout": ["animals", "fish"], "dog": ["animals", "mammals"]}
    parents = {"shark": "fish", "trout": "fish", "fish": "animals", "mammals": "animals", "dog": "mammals"}
    text = "(((shark,trout)fish,(dog)mammals)animals,(cup)things);"
    tree = Hierarchy.from_nested(nested)
    assert Hierarchy.from_paths({**paths, "cup": ["things"]}) == tree
    assert Hierarchy.from_parents({**parents, "cup": "things", "animals": None, "things": ""}) == tree
    assert Hierarchy.from_newick(text) == tree
    assert hash(Hierarchy.from_newick(text)) == hash(tree)
    assert tree.to_nested() == {"animals": {"fish": ["shark", "trout"], "mammals": ["dog"]}, "things": ["cup"]}


def test_a_class_without_groups_hangs_at_the_root():
    tree = Hierarchy.from_paths({"cat": ["pets"], "dog": ["pets"], "cup": []})
    np.testing.assert_array_equal(tree.distances(["cat", "dog", "cup"]), [[0, 2, 3], [2, 0, 3], [3, 3, 0]])


def test_a_group_around_everything_is_the_root():
    paths = Hierarchy.from_paths({"cat": ["life", "pets"], "dog": ["life", "pets"], "oak": ["life"]})
    nested = Hierarchy.from_nested({"life": [{"pets": ["cat", "dog"]}, "oak"]})
    parents = Hierarchy.from_parents({"pets": "life", "cat": "pets", "dog": "pets", "oak": "life"})
    assert paths == nested == parents
    assert nested.names[0] == "life"
    assert nested.distances(["cat", "oak"], how="lcs")[0, 1] == 1


def test_groups_are_told_apart_by_their_whole_path():
    tree = Hierarchy.from_paths({"a": ["north", "others"], "b": ["south", "others"], "c": ["south", "others"]})
    np.testing.assert_array_equal(tree.distances(), [[0, 6, 6], [6, 0, 2], [6, 2, 0]])


def test_a_mapping_without_values_and_numbers_name_classes():
    tree = Hierarchy.from_nested({"digits": {1: None, 2.5: None}, "letters": "a"})
    assert tree.classes == ("1", "2.5", "a")


@settings(max_examples=80, deadline=None)
@given(trees())
def test_distances_equal_naive_loops_over_pairs(tree):
    for how in kinds(tree):
        naive = [[naive_distance(tree, one, other, how) for other in tree.classes] for one in tree.classes]
        np.testing.assert_allclose(tree.distances(how=how), naive, rtol=1e-12, atol=1e-10)
    assert [int(height) for height in tree.heights()] == [naive_height(tree, node) for node in range(len(tree.names))]


@settings(max_examples=30, deadline=None)
@given(trees())
def test_path_distances_equal_those_of_networkx(tree):
    networkx = pytest.importorskip("networkx")
    graph = networkx.Graph((node, parent) for node, parent in enumerate(tree.parents) if parent >= 0)
    leaves = [tree.ancestors(name)[0] for name in tree.classes]
    found = [[networkx.shortest_path_length(graph, one, other) for other in leaves] for one in leaves]
    np.testing.assert_array_equal(tree.distances(), found)


@settings(max_examples=60, deadline=None)
@given(trees(), st.randoms(use_true_random=False))
def test_another_order_of_classes_permutes_the_matrix(tree, random):
    order = list(range(len(tree.classes)))
    random.shuffle(order)
    for how in kinds(tree):
        found = tree.distances([tree.classes[place] for place in order], how=how)
        np.testing.assert_array_equal(found, tree.distances(how=how)[np.ix_(order, order)])


@settings(max_examples=60, deadline=None)
@given(trees())
def test_path_is_a_metric_and_lcs_an_ultrametric(tree):
    path, lcs = tree.distances(), tree.distances(how="lcs")
    for distances in (path, lcs):
        np.testing.assert_array_equal(distances, distances.T)
        np.testing.assert_array_equal(distances.diagonal(), 0)
        assert (distances[~np.eye(len(distances), dtype=bool)] > 0).all()
    assert (path[:, None, :] <= path[:, :, None] + path[None, :, :]).all()
    assert (lcs[:, None, :] <= np.maximum(lcs[:, :, None], lcs[None, :, :])).all()
    assert lcs.max() <= 1


@settings(max_examples=60, deadline=None)
@given(trees(), st.data())
def test_a_restricted_tree_keeps_path_and_length_distances(tree, data):
    kept = data.draw(st.lists(st.sampled_from(tree.classes), min_size=2, unique=True))
    restricted = tree.restricted(kept)
    assert restricted.classes == tuple(name for name in tree.classes if name in kept)
    np.testing.assert_array_equal(restricted.distances(kept), tree.distances(kept))
    if tree.lengths is not None:
        np.testing.assert_array_equal(restricted.distances(kept, "length"), tree.distances(kept, "length"))


@settings(max_examples=60, deadline=None)
@given(trees())
def test_clades_are_the_leaves_below_each_inner_node(tree):
    below = [{name for name in tree.classes if node in tree.ancestors(name)} for node in range(len(tree.names))]
    assert tree.clades() == {frozenset(names) for names in below if 1 < len(names) < len(tree.classes)}


@settings(max_examples=80, deadline=None)
@given(trees(), st.sets(st.integers(0, 24)))
def test_nested_form_reads_back_to_the_same_tree(tree, nameless):
    inner = set(tree.parents) - {-1}
    names = tuple("" if node in inner and node in nameless else name for node, name in enumerate(tree.names))
    bare = Hierarchy(tree.parents, names)
    assert Hierarchy.from_nested(bare.to_nested()) == bare


def test_nodes_come_in_preorder_whatever_the_order_given():
    tree = Hierarchy((2, 2, 3, -1, 3), ("a", "b", "x", "", "c"), (1, 2, 3, 0, 4))
    assert tree.names == ("", "x", "a", "b", "c")
    assert tree.parents == (-1, 0, 1, 1, 0)
    assert tree.lengths == (0, 3, 1, 2, 4)


def test_groups_of_equal_names_read_back():
    tree = Hierarchy.from_newick("((a,b)100,(c,(d,e)100)100)90;")
    assert Hierarchy.from_nested(tree.to_nested()) == tree
    assert tree.to_nested() == {"90": [{"100": ["a", "b"]}, {"100": ["c", {"100": ["d", "e"]}]}]}


def test_a_thousand_classes_take_well_under_a_second():
    paths = {f"class {i}": [f"kingdom {i % 3}", f"order {i % 21}", f"genus {i % 210}"] for i in range(1000)}
    tree = Hierarchy.from_paths(paths)
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        distances = Hierarchy(tree.parents, tree.names).distances(list(paths))
        seconds.append(time.process_time() - begin)
    assert min(seconds) < 0.5
    assert set(np.unique(distances)) == {0, 2, 4, 6, 8}


def test_a_very_deep_tree_needs_no_recursion():
    depth = 5000
    parents = {f"n{level + 1}": f"n{level}" for level in range(depth)} | {"top": "n0"}
    tree = Hierarchy.from_parents(parents)
    assert tree.distances([f"n{depth}", "top"])[0, 1] == depth + 1
    assert Hierarchy.from_newick(tree.to_newick()) == tree
    nested = tree.to_nested()
    assert Hierarchy.from_nested(nested) == tree
    assert Hierarchy.from_paths({"a": [f"g{level}" for level in range(500)], "b": []}).heights()[0] == 501


def test_distances_may_repeat_classes():
    np.testing.assert_array_equal(BALANCED.distances(["cat", "cat", "oak"]), [[0, 0, 4], [0, 0, 4], [4, 4, 0]])


def test_check_accepts_a_part_of_the_tree():
    BALANCED.check(["rose", "cat"])
    BALANCED.check(np.array(["rose", "dog"]))


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["cat", "dogs", "oak"], "'dog'"),
        (["zzz", "cat"], "zzz"),
        ([f"z{n}" for n in range(9)], "z4"),
        (["cat", "pets"], "pets"),
        ("cat", "list"),
    ],
)
def test_classes_that_are_no_leaves_are_refused(classes, message):
    for asks in (BALANCED.check, BALANCED.distances, BALANCED.restricted):
        with pytest.raises(DataError, match=message):
            asks(classes)


def circle():
    nested = {"a": ["x"], "b": {}}
    nested["b"]["c"] = {"d": nested["b"]}
    return nested


SHARED = ["x", "y"]


@pytest.mark.parametrize(
    ("nested", "message"),
    [
        ({}, "tree"),
        ([], "tree"),
        ({"a": ["x", "y"], "b": []}, "'b'"),
        ({"a": ["x"]}, "'x'"),
        (["x"], "'x'"),
        ({"x": None}, "'x'"),
        ({"a": ["x", "y"], "b": ["x"]}, "twice"),
        ({"a": SHARED, "b": SHARED}, "twice"),
        ({"a": ["x", "y"], "b": ["a", "z"]}, "'a'"),
        ({"fish": ["fish", "shark"], "b": ["c"]}, "fish"),
        (circle(), "cycle"),
        ({"a": ["x", True]}, "True"),
        ({False: ["x", "y"]}, "False"),
        ({"a": ["x", " "]}, "blank"),
        ({"a": ["x", None]}, "blank"),
        ({"": ["x", "y"]}, "blank"),
        ({"a": ["x", b"y"]}, "b'y'"),
        ("(a,b);", "mapping"),
        (3, "mapping"),
    ],
)
def test_bad_nested_trees_are_refused(nested, message):
    with pytest.raises(DataError, match=message):
        Hierarchy.from_nested(nested)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ({}, "empty"),
        ({"x": ["a"]}, "'x'"),
        ({"x": ["a", "b", "a"], "y": []}, "cycle"),
        ({"x": ["a", "a"], "y": []}, "cycle"),
        ({"x": ["a", "b"], "y": ["b", "a"]}, "cycle"),
        ({"x": ["a", "b"], "y": ["b", "c"], "z": ["c", "a", "d"]}, "cycle"),
        ({"x": ["a"], "a": []}, "'a'"),
        ({"x": ["x"], "y": []}, "'x'"),
        ({"x": "abc", "y": []}, "abc"),
        ({"x": ["a", ""], "y": []}, "blank"),
        ({"x": [], " ": []}, "blank"),
        ({1: [], "1": []}, "twice"),
        ([("x", [])], "mapping"),
    ],
)
def test_bad_paths_are_refused(paths, message):
    with pytest.raises(DataError, match=message):
        Hierarchy.from_paths(paths)


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ({}, "empty"),
        ({"x": "a"}, "'x'"),
        ({"a": "a", "x": "b"}, "cycle"),
        ({"a": "b", "b": "c", "c": "a", "x": "a", "y": "r"}, "cycle"),
        ({"x": True, "y": "a"}, "True"),
        ({1: "a", "1": "b"}, "twice"),
        (["x"], "mapping"),
    ],
)
def test_bad_parents_are_refused(parents, message):
    with pytest.raises(DataError, match=message):
        Hierarchy.from_parents(parents)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (((-1, 0, 0), ("", "a")), "names"),
        (((-1, 0, 0), ("", "a", "b"), (1.0,)), "lengths"),
        (((-1, 0, 0), ("", "a", "b"), (0, 1, np.nan)), "finite"),
        (((-1, -1), ("a", "b")), "root"),
        (((-1, 0, 7), ("", "a", "b")), "7"),
        (((-1, 0, None), ("", "a", "b")), "None"),
        (((-1, 0, 0), ("", "a", "")), "blank"),
        (((), ()), "empty"),
    ],
)
def test_bad_nodes_are_refused(fields, message):
    with pytest.raises(DataError, match=message):
        Hierarchy(*fields)


def test_bad_distances_and_too_small_parts_are_refused():
    with pytest.raises(DataError, match="'path'"):
        BALANCED.distances(how="paths")
    with pytest.raises(DataError, match="lengths"):
        BALANCED.distances(how="length")
    with pytest.raises(DataError, match="cat"):
        BALANCED.restricted(["cat"])
    with pytest.raises(DataError, match="zzz"):
        BALANCED.ancestors("zzz")


def test_every_pair_has_its_lowest_common_ancestor():
    common = UNBALANCED.common_ancestors()
    for one, other in combinations(range(4), 2):
        shared = [
            n for n in UNBALANCED.ancestors(UNBALANCED.classes[one]) if n in up(UNBALANCED, UNBALANCED.classes[other])
        ]
        assert common[one, other] == common[other, one] == shared[0]
