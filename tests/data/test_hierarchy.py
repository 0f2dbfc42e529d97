"""Class trees: small ones by hand, naive loops over pairs, properties of random ones, and what is refused."""

import csv
import json
import re
import time
from importlib import resources
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.data.catalogue import open_named
from nearkin.data.hierarchy import Hierarchy, list_hierarchies, load_hierarchy
from nearkin.errors import DataError, UnknownNameError

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


TREE = Hierarchy.from_nested({"animals": {"fish": ["shark", "trout"], "mammals": ["dog"]}, "things": ["live oak"]})

FILES = {
    "tree.yaml": "animals:\n  fish: [shark, trout]\n  mammals:\n    dog:\nthings:\n  - live oak\n",
    "flow.YML": "{animals: {fish: [shark, trout], mammals: dog}, things: [live oak]}",
    "tree.json": json.dumps(TREE.to_nested()),
    "paths.csv": "label,level0,level1\nshark,animals,fish\ntrout,animals,fish\ndog,animals,mammals\nlive oak,things,\n",
    "class.csv": "top,Class,next\nanimals,shark,fish\nanimals , trout, fish\n\nanimals,dog,mammals\nthings,live oak,\n",
    "parents.csv": (
        "parent,child\nfish,shark\nfish,trout\nanimals,fish\nanimals,mammals\nmammals,dog\n"
        ",animals\n,things\nthings,live oak\n"
    ),
    "tree.nwk": "(((shark,trout)fish,(dog)mammals)animals,('live oak')things);\n",
    "tree.newick": "(((shark,trout)fish,(dog)mammals)animals,('live oak')things);",
    "tree.tree": "[a comment](((shark,trout)fish,(dog)mammals)animals,('live oak')things);",
}

# Table S1 of Kim 2023, article IV, with the class names of the data set.
TABLE = """
Animals|Invertebrates|insects|bee, beetle, butterfly, caterpillar, cockroach
Animals|Invertebrates|non-insect invertebrates|crab, lobster, snail, spider, worm
Animals|Mammals|aquatic mammals|beaver, dolphin, otter, seal, whale
Animals|Mammals|large carnivores|bear, leopard, lion, tiger, wolf
Animals|Mammals|large omnivores and herbivores|camel, cattle, chimpanzee, elephant, kangaroo
Animals|Mammals|medium-sized mammals|fox, porcupine, possum, raccoon, skunk
Animals|Mammals|people|baby, boy, girl, man, woman
Animals|Mammals|small mammals|hamster, mouse, rabbit, shrew, squirrel
Animals|Non-mammal vertebrates|fish|aquarium_fish, flatfish, ray, shark, trout
Animals|Non-mammal vertebrates|reptiles|crocodile, dinosaur, lizard, snake, turtle
Artificial|Artificial (indoor)|food containers|bottle, bowl, can, cup, plate
Artificial|Artificial (indoor)|household electrical devices|clock, keyboard, lamp, telephone, television
Artificial|Artificial (indoor)|household furniture|bed, chair, couch, table, wardrobe
Artificial|Artificial (outdoor)|large man-made outdoor things|bridge, castle, house, road, skyscraper
Artificial|Artificial (outdoor)|vehicles 1|bicycle, bus, motorcycle, pickup_truck, train
Artificial|Artificial (outdoor)|vehicles 2|lawn_mower, rocket, streetcar, tank, tractor
Nature (non-animal)|Nature (non-specific organism)|large natural outdoor scenes|cloud, forest, mountain, plain, sea
Nature (non-animal)|Plants|flowers|orchid, poppy, rose, sunflower, tulip
Nature (non-animal)|Plants|fruit and vegetables|apple, mushroom, orange, pear, sweet_pepper
Nature (non-animal)|Plants|trees|maple_tree, oak_tree, palm_tree, pine_tree, willow_tree
"""


@pytest.fixture
def written(tmp_path):
    """Write a file and give its path."""

    def write(name, text):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_tree(written, name):
    assert load_hierarchy(written(name, FILES[name])) == TREE


def test_files_of_windows_are_read(written):
    path = written("tree.csv", b"\xef\xbb\xbf" + FILES["paths.csv"].replace("\n", "\r\n").encode())
    assert load_hierarchy(str(path)) == TREE


def test_the_shipped_tree_is_the_table_of_the_article():
    paths = {}
    for line in TABLE.strip().splitlines():
        *levels, classes = line.split("|")
        paths |= dict.fromkeys(classes.split(", "), levels)
    tree = load_hierarchy("cifar100")
    names = sorted(paths)
    assert sorted(tree.classes) == names
    np.testing.assert_array_equal(tree.distances(names), Hierarchy.from_paths(paths).distances(names))
    for name in names:
        assert [tree.names[node] for node in tree.ancestors(name)] == [name, *reversed(paths[name]), ""]


def test_the_shipped_tree_has_four_even_levels():
    tree = load_hierarchy("cifar100")
    distances, counts = np.unique(tree.distances()[0], return_counts=True)
    assert distances.tolist() == [0, 2, 4, 6, 8]
    assert counts.sum() == 100
    assert tree.heights()[0] == 4
    np.testing.assert_array_equal(tree.distances(how="lcs") * 8, tree.distances())
    with (resources.files("nearkin.data") / "hierarchies" / "cifar100.csv").open(encoding="utf-8") as handle:
        assert next(csv.reader(handle)) == ["label", "level0", "level1", "level2"]


@pytest.mark.data
def test_the_shipped_tree_has_the_classes_of_the_data_set(data_root):
    if not (data_root / "cifar100.zip").exists():
        pytest.skip("cifar100.zip is not in the data directory")
    classes = open_named("cifar100").manifest.classes
    tree = load_hierarchy("cifar100")
    tree.check(classes)
    assert set(tree.classes) == set(classes)


def test_numbers_are_names_as_they_are_written(written):
    tree = load_hierarchy(written("a.yaml", "1.10: [007, 1e3]\n2020-01-01: ['yes', 0x1f]"))
    assert tree.names == ("", "1.10", "007", "1e3", "2020-01-01", "yes", "0x1f")
    tree = load_hierarchy(written("a.json", '{"a": [1.10, 1e3], "b": [12345678901234567890, "c"]}'))
    assert tree.classes == ("1.10", "1e3", "12345678901234567890", "c")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "", "tree"),
        ("a.yaml", "just text", "tree"),
        ("a.yaml", "a: [x, y\nb: 3", "line 2"),
        ("a.yaml", "a: [x, y]\n---\nb: [z]", "line 2"),
        ("a.yaml", "a: \x07", "YAML"),
        ("a.yaml", "a: [x, y]\nb: *nowhere", "alias"),
        ("a.yaml", "a: [x, no]", "'no'"),
        ("a.yaml", "a: [x, y]\nYes: [z]", "'Yes'"),
        ("a.yaml", "a: [x, y]\nb:\n- x", "twice"),
        ("a.yaml", "a: [x, y]\nb: [z]\na: [w]", "line 3"),
        ("a.yaml", "a: &a\n  b: *a\nc: [x, y]", "cycle"),
        ("a.yaml", "&a [x, *a]", "cycle"),
        ("a.yaml", "a: &a [x, y]\nb: *a", "twice"),
        ("a.yaml", "a: &a {x: , y: }\nb:\n  <<: *a", "<<"),
        ("a.yaml", "a: [!thing x, y]", "'x'"),
        ("a.yaml", "a: [x, y]\n? [b]\n: z", "text"),
        ("a.yaml", "a: [x, y]\n'': [z]", "blank"),
        ("a.yaml", "a: [x, y]\n~: [z]", "blank"),
        ("a.yaml", "a: [x, ]\nb: []", "'b'"),
        ("a.yaml", "a: [x]", "'x'"),
        ("a.yaml", "[" * 5000 + "x" + "]" * 5000, "nested"),
        ("a.json", "", "JSON"),
        ("a.json", '{"a": ["x",\n "y"}', "line 2"),
        ("a.json", '{"a": ["x", true]}', "True"),
        ("a.json", '{"a": ["x", "y"], "a": ["z"]}', "twice"),
        ("a.json", "3", "mapping"),
        ("a.json", "[" * 100_000 + "]" * 100_000, "nested"),
        ("a.csv", "", "empty"),
        ("a.csv", "label,level0\n", "empty"),
        ("a.csv", "child,parent\n", "empty"),
        ("a.csv", "name,level0\nx,a\n", "'label'"),
        ("a.csv", "label\nx\ny\n", "columns"),
        ("a.csv", "label,a,a\nx,b,c\n", "columns"),
        ("a.csv", ",label,a\n0,x,b\n", "columns"),
        ("a.csv", "label,level0\nx,a\ny,a,b\n", "line 3"),
        ("a.csv", "label,level0\nx,a\ny\n", "line 3"),
        ("a.csv", "label,level0\nx,a\n ,a\n", "blank"),
        ("a.csv", "label,level0\nx,a\ny,a\n\nx,b\n", "line 5"),
        ("a.csv", "label,level0,level1\nx,a,b\ny,,b\n", "line 3"),
        ("a.csv", "label,level0,level1\nx,a,b\ny,b,a\n", "cycle"),
        ("a.csv", 'label,level0\n"x,a\ny,b\n', "CSV"),
        ("a.csv", "child,parent\nx,a\ny,a\nx,b\n", "line 4"),
        ("a.csv", "child,parent\nx,a\ny,a\na,b\nb,a\n", "cycle"),
        ("a.csv", "child,parent\nx,a\n,a\n", "blank"),
        ("a.nwk", "(a,b", "column 5"),
        ("a.nwk", "", "empty"),
        ("a.yaml", b"a: [\xff\xfe]", r"a\.yaml"),
        ("a.txt", "(a,b);", r"\.newick"),
        ("cifar100.txt", "(a,b);", r"\.newick"),
    ],
)
def test_bad_files_are_refused_by_name(written, name, text, message):
    path = written(name, text)
    with pytest.raises(DataError, match=message) as refusal:
        load_hierarchy(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar-100", "cifar100"),
        ("cifar10.csv", "cifar100"),
        ("nowhere/plankton.yaml", "cifar100"),
        ("x" * 5000, "cifar100"),
    ],
)
def test_what_is_not_there_names_what_is_shipped(name, message):
    with pytest.raises(UnknownNameError, match=message):
        load_hierarchy(name)


def test_a_folder_and_what_is_no_path_are_refused(tmp_path):
    folder = tmp_path / "tree.csv"
    folder.mkdir()
    with pytest.raises(DataError, match=r"tree\.csv"):
        load_hierarchy(folder)
    with pytest.raises(DataError, match="None"):
        load_hierarchy(None)


def test_shipped_names_are_listed():
    assert list_hierarchies() == ["cifar100", "cub200"]


def test_the_birds_are_those_of_the_catalogue_and_lie_as_their_names_say():
    tree = load_hierarchy("cub200")
    assert len(tree.classes) == 200
    assert [int(name[:3]) for name in sorted(tree.classes)] == list(range(1, 201))
    assert set(tree.depths()[[tree.ancestors(name)[0] for name in tree.classes]]) == {4}
    between = tree.distances(["067.Anna_Hummingbird", "068.Ruby_throated_Hummingbird", "001.Black_footed_Albatross"])
    assert between[0, 1] == 4  # one family
    assert between[0, 2] == 8  # no order in common
    family = {name: tree.names[tree.ancestors(name)[2]] for name in tree.classes}
    kin = {
        "Gull": "Laridae",
        "Tern": "Laridae",
        "Vireo": "Vireonidae",
        "Wren": "Troglodytidae",
        "Swallow": "Hirundinidae",
        "Woodpecker": "Picidae",
        "Cuckoo": "Cuculidae",
        "Grebe": "Podicipedidae",
        "Kingfisher": "Alcedinidae",
        "Oriole": "Icteridae",
        "Warbler": "Parulidae",
        "Albatross": "Diomedeidae",
        "Cormorant": "Phalacrocoracidae",
    }
    for end, wanted in kin.items():
        assert {family[name] for name in tree.classes if name.endswith(f"_{end}")} == {wanted}
    assert len(set(family.values())) == 37


def test_the_forms_of_the_guide_are_one_tree(written, capsys):
    guide = Path(__file__).parents[2] / "docs" / "guide" / "hierarchies.md"
    section = guide.read_text(encoding="utf-8").partition("## Bring a tree")[2].partition("\n## ")[0]
    nested, paths, parents, newick = re.findall(r"```(?:yaml|csv|text)\n(.*?)```", section, re.DOTALL)
    tree = load_hierarchy(written("animals.yaml", nested))
    assert load_hierarchy(written("paths.csv", paths)) == load_hierarchy(written("tree.nwk", newick)) == tree
    names = list(tree.classes)
    assert load_hierarchy(written("parents.csv", parents)).clades() == tree.clades()
    np.testing.assert_array_equal(load_hierarchy(written("p.csv", parents)).distances(names), tree.distances(names))
    for snippet in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(snippet, {})
    assert capsys.readouterr().out.startswith("('shark', 'trout', 'dog', 'cup')")
