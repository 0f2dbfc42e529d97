"""Dendrograms: where nodes are drawn, in which order and colour, what is marked, sizes, names, bad input."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nearkin.errors import DataError
from nearkin.report.canvas import HUES
from nearkin.report.dendrogram import (
    MOST_GROUPS,
    MOST_NAMED,
    Dendrogram,
    Tree,
    _depths,
    _leaf_colours,
    _rows,
    _shared,
    draw_dendrograms,
    group_colours,
    leaf_groups,
)

#        root -> left -> (a, b), right -> (c, inner -> (d, e))
PARENTS = [-1, 0, 1, 1, 0, 4, 4, 6, 6]
NAMES = ["", "left", "a", "b", "right", "c", "inner", "d", "e"]


@st.composite
def trees(draw):
    """Any tree, its nodes in any order."""
    size = draw(st.integers(1, 30))
    parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, size))]
    order = draw(st.permutations(range(size)))
    place = {node: index for index, node in enumerate(order)}
    moved = [-1 if parents[node] < 0 else place[parents[node]] for node in order]
    return moved, [f"n{node}" for node in order]


def size_of(png):
    return Image.open(io.BytesIO(png)).size


def colours_in(png):
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).reshape(-1, 3)
    return {"#{:02x}{:02x}{:02x}".format(*row) for row in np.unique(pixels, axis=0)}


def flat(leaves, groups):
    """A tree of groups of leaves, as many in each."""
    parents, names = [-1], [""]
    for group in range(groups):
        parents.append(0)
        names.append(f"group{group}")
        home = len(parents) - 1
        for leaf in range(leaves // groups):
            parents.append(home)
            names.append(f"leaf{group}_{leaf}")
    return parents, names


@given(trees())
def test_a_tree_of_any_order_is_walked_whole(tree):
    found = Tree(*tree)
    assert sorted(found.walk) == list(range(len(tree[0])))
    assert all(found.walk.index(parent) < found.walk.index(node) for node, parent in enumerate(tree[0]) if parent >= 0)
    assert {node for node in range(len(tree[0])) if node not in tree[0]} == set(found.leaves)
    for node, parent in enumerate(tree[0]):
        below = frozenset().union(*(found.clades[child] for child in found.children[node]))
        assert found.clades[node] == (below or {tree[1][node]})
        assert parent < 0 or found.heights[parent] > found.heights[node]


@given(trees(), st.randoms())
def test_turning_keeps_the_tree_and_finds_an_order_that_is_possible(tree, random):
    found = Tree(*tree)
    wanted = found.turned({name: -place for place, name in enumerate(found.leaf_names)})
    assert wanted.leaf_names == found.leaf_names[::-1]
    names = found.leaf_names
    random.shuffle(names)
    turned = found.turned({name: place for place, name in enumerate(names)})
    assert turned.parents == found.parents
    assert set(turned.clades) == set(found.clades)
    assert [sorted(children) for children in turned.children] == [sorted(children) for children in found.children]


def test_leaves_without_a_place_go_last():
    turned = Tree(PARENTS, NAMES).turned({"d": 0, "c": 1})
    assert turned.leaf_names == ["d", "e", "c", "a", "b"]


def test_without_lengths_leaves_are_at_one_depth_and_nodes_by_height():
    depths = _depths(Tree(PARENTS, NAMES), None)
    assert depths.round(3).tolist() == [0, 0.667, 1, 1, 0.333, 1, 0.667, 1, 1]


def test_with_lengths_nodes_are_as_far_as_these_say_and_negative_ones_count_as_none():
    lengths = [9.0, 1.0, 1.0, 3.0, 2.0, -5.0, 0.0, 1.0, 1.0]
    assert _depths(Tree(PARENTS, NAMES), lengths).tolist() == [0, 0.25, 0.5, 1, 0.5, 0.5, 0.5, 0.75, 0.75]


def test_a_node_is_drawn_amid_its_children():
    assert _rows(Tree(PARENTS, NAMES)).tolist() == [1.625, 0.5, 0, 1, 2.75, 2, 3.5, 3, 4]


def test_a_branch_has_the_colour_of_its_leaves_and_none_where_these_differ():
    groups = {"a": "x", "b": "x", "c": "y", "d": "y", "e": "x"}
    colours = _leaf_colours(Tree(PARENTS, NAMES), groups, {"x": "red", "y": "blue"})
    assert colours[1:4] == ["red"] * 3
    assert colours[7:] == ["blue", "red"]
    assert colours[0] == colours[4] == colours[6]
    assert colours[0] not in ("red", "blue")


def test_nodes_with_the_same_leaves_are_marked_in_both():
    other = Tree([-1, 0, 0, 1, 1, 2, 2, 2], ["", "", "", "b", "a", "c", "d", "e"])
    third = Tree([-1, 0, 0, 2, 2, 2, 2], ["", "a", "", "b", "c", "d", "e"])
    first = Tree(PARENTS, NAMES)
    assert [sorted(nodes) for nodes in _shared([first, other])] == [[1, 4], [1, 2]]
    assert [sorted(nodes) for nodes in _shared([first, third])] == [[], []]
    assert [sorted(nodes) for nodes in _shared([first, third, other])] == [[1, 4], [], [1, 2]]
    assert _shared([first]) == [[]]


def test_groups_are_the_deepest_that_lose_no_leaf_and_are_few():
    assert leaf_groups(PARENTS, NAMES) == {"a": "left", "b": "left", "c": "right", "d": "right", "e": "right"}
    deep = [-1, 0, 0, 1, 1, 2, *[3] * 2, *[4] * 2, *[5] * 2]
    names = ["", "x", "y", "x1", "x2", "y1", "a", "b", "c", "d", "e", "f"]
    assert set(leaf_groups(deep, names).values()) == {"x1", "x2", "y1"}
    parents, many = flat(30, MOST_GROUPS + 5)
    assert (
        len(set(leaf_groups(parents, many).values())) == MOST_GROUPS + 5
    )  # just below the root: taken, if not coloured
    wide = [-1, 0, 0, *[1] * 6, *[2] * 6, *range(3, 15)]
    named = [f"n{node}" for node in range(len(wide))]
    assert set(leaf_groups(wide, named).values()) == {"n1", "n2"}  # below them there would be twelve


def test_groups_without_a_name_or_with_one_name_are_numbered():
    parents = [-1, 0, 0, 0, 1, 1, 2, 2, 3, 3]
    names = ["", "", "same", "same", "a", "b", "c", "d", "e", "f"]
    assert list(dict.fromkeys(leaf_groups(parents, names).values())) == ["group 1", "same 2", "same 3"]


def test_a_leaf_at_the_root_is_in_no_group():
    assert leaf_groups([-1, 0, 0, 2, 2], ["", "alone", "g", "a", "b"]) == {"a": "g", "b": "g"}
    assert leaf_groups([-1, 0, 0], ["", "a", "b"]) == {}
    assert leaf_groups([-1], ["only"]) == {}


def test_the_largest_groups_have_the_colours():
    groups = {f"{name}{place}": name for place in range(12) for name in "abcdefghijkl"[: place + 1]}
    colours = group_colours(groups)
    assert list(colours) == list("abcdefghij")
    assert tuple(colours.values()) == HUES


def test_the_picture_shows_the_colours_of_its_groups():
    found = colours_in(draw_dendrograms([Dendrogram(PARENTS, NAMES)]))
    assert {HUES[0], HUES[1]} <= found
    assert HUES[2] not in found
    given_ = colours_in(draw_dendrograms([Dendrogram(PARENTS, NAMES)], {name: name for name in "abc"}))
    assert set(HUES[:3]) <= given_


def test_the_second_tree_is_drawn_in_the_order_of_the_first():
    plain = Dendrogram([-1, 0, 0, 2, 2], ["", "a", "", "b", "c"])
    mirrored = Dendrogram([-1, 0, 0, 1, 1], ["", "", "a", "c", "b"])
    assert draw_dendrograms([plain, mirrored]) == draw_dendrograms([plain, plain])
    assert draw_dendrograms([mirrored]) != draw_dendrograms([plain])


@pytest.mark.parametrize("leaves", [2, 40, 100, MOST_NAMED, MOST_NAMED + 4, 1000])
def test_any_number_of_leaves_fits_and_up_to_two_hundred_have_a_row_for_their_name(leaves):
    tree = Dendrogram(*flat(leaves, 2))
    width, height = size_of(draw_dendrograms([tree, tree]))
    assert width == 2 * 720
    if leaves <= MOST_NAMED:
        assert height >= 2 * 11 * leaves
    else:
        assert height < 2 * 1200


def test_a_tree_as_deep_as_it_has_leaves_is_drawn():
    size = 1200
    parents = [-1, *(node // 2 * 2 for node in range(2 * size))]
    assert max(Tree(parents, [f"n{i}" for i in range(len(parents))]).heights) == size
    assert draw_dendrograms([Dendrogram(parents, [f"n{i}" for i in range(len(parents))])])


@pytest.mark.parametrize("name", ["$5", "_hidden", "", "two\nlines", "x" * 300, "Ölbaum\udcff", "日本"])
def test_any_name_can_be_drawn(name):
    tree = Dendrogram([-1, 0, 0, 1, 1], [name, name, "b", name, "c"], title=name, note=name)
    assert draw_dendrograms([tree, tree])


def test_equal_trees_give_equal_bytes_and_no_tree_no_picture():
    tree = Dendrogram(PARENTS, NAMES, title="known")
    assert draw_dendrograms([tree]) == draw_dendrograms([tree])
    assert draw_dendrograms([]) == b""
    assert draw_dendrograms([Dendrogram([-1], ["only"])])


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        (Dendrogram([-1, -1], ["a", "b"]), "root"),
        (Dendrogram([0, 0], ["a", "b"]), "cycle"),
        (Dendrogram([-1, 2, 1], ["a", "b", "c"]), "circle|cycle"),
        (Dendrogram([-1, 7], ["a", "b"]), "7"),
        (Dendrogram([-1, 0], ["a"]), "name"),
        (Dendrogram([-1, 0, 0], ["", "a", "a"]), "'a'"),
        (Dendrogram([-1, 0, 0], ["", "a", "b"], [0.0, 1.0]), "lengths"),
        (Dendrogram([-1, 0, 0], ["", "a", "b"], [0.0, 1.0, np.nan]), "lengths"),
    ],
)
def test_what_is_no_tree_is_refused(tree, told):
    with pytest.raises(DataError, match=told):
        draw_dendrograms([tree])


def test_the_length_above_the_root_may_be_missing():
    assert draw_dendrograms([Dendrogram([-1, 0, 0], ["", "a", "b"], [np.nan, 1.0, 2.0])])


def test_more_trees_than_fit_are_refused():
    with pytest.raises(DataError, match="4"):
        draw_dendrograms([Dendrogram(PARENTS, NAMES)] * 5)
