"""Newick trees: what is read, that it reads back, and where a bad text goes wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError

NAMES = st.text(
    st.sampled_from("ab_ ()[]',:;\n\t\"é") | st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8
).filter(str.strip)


@st.composite
def named_trees(draw):
    count = draw(st.integers(3, 15))
    parents = [-1, 0, 0] + [draw(st.integers(0, node - 1)) for node in range(3, count)]
    leaves = [node for node in range(count) if node not in parents]
    if len(leaves) < 2:
        parents.append(0)
        count += 1
    names = draw(st.lists(NAMES, min_size=count, max_size=count, unique=True))
    inner = set(parents)
    names = [draw(st.sampled_from([name, ""])) if node in inner else name for node, name in enumerate(names)]
    finite = st.floats(allow_nan=False, allow_infinity=False)
    lengths = draw(st.none() | st.lists(finite, min_size=count, max_size=count))
    return Hierarchy(tuple(parents), tuple(names), None if lengths is None else tuple(lengths))


@settings(max_examples=150, deadline=None)
@given(named_trees())
def test_a_written_tree_reads_back_equal(tree):
    assert Hierarchy.from_newick(tree.to_newick()) == tree


@pytest.mark.parametrize(
    ("text", "names", "lengths"),
    [
        ("(a,b);", ("", "a", "b"), None),
        ("((a,b)x,c)root;", ("root", "x", "a", "b", "c"), None),
        ("(a:1,b:2.5):3;", ("", "a", "b"), (3, 1, 2.5)),
        ("(a:1,b:2);", ("", "a", "b"), (0, 1, 2)),
        ("(a:-0.25,b:+1e-3,c:.5,d:5.);", ("", "a", "b", "c", "d"), (0, -0.25, 0.001, 0.5, 5)),
        ("(aquarium_fish,_x_);", ("", "aquarium_fish", "_x_"), None),
        ("('live oak','it''s (a) [b]; c:d, e');", ("", "live oak", "it's (a) [b]; c:d, e"), None),
        ("[&R] (a[one],[two]b[three]:1[four],c:2,d[x]\n:3)[end] ; [after]\n", None, None),
        ("  (\n a ,\n\tb )\n x ;\n", ("x", "a", "b"), None),
        ("((a)x,(b)'');", ("", "x", "a", "", "b"), None),
        ("('b[1]',c);", ("", "b[1]", "c"), None),
    ],
)
def test_what_is_read(text, names, lengths):
    if names is None:
        with pytest.raises(DataError, match="lengths"):
            Hierarchy.from_newick(text)
        return
    tree = Hierarchy.from_newick(text)
    assert tree.names == names
    assert tree.lengths == lengths


def test_what_is_written():
    assert Hierarchy.from_nested({"x y": ["a", "b"], "z": ["c'"]}).to_newick() == "((a,b)'x y',('c''')z);"
    assert Hierarchy.from_newick("(a:1,b:2e-10);").to_newick() == "(a:1.0,b:2e-10);"
    assert Hierarchy.from_newick("(a:1,b:2)r:3;").to_newick() == "(a:1.0,b:2.0)r:3.0;"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (" \n[nothing]", "empty"),
        (";", "column 1"),
        ("a;", "'a'"),
        ("(a,b)", "column 6"),
        ("((a,b),c;", "column 9"),
        ("(a,b));", "column 6"),
        ("a,b;", "column 2"),
        ("(a,,b);", "column 4"),
        ("(a,\n  b,);", "column 5"),
        ("(a,());", r"'\)'"),
        ("(a,'');", "column 4"),
        ("(a,:1);", "':'"),
        ("(a,live oak);", "'oak'"),
        ("(a,b'c');", "'c'"),
        ("(a:1 b,c:1);", "'b'"),
        ("(a:'1',b:1);", "'1'"),
        ("(a:,b:1);", "length"),
        ("(a:x,b:1);", "'x'"),
        ("(a:nan,b:1);", "'nan'"),
        ("(a:1_0,b:1);", "'1_0'"),
        ("(a:1e999,b:1);", "'1e999'"),
        ("(a:1:2,b:1);", "lengths"),
        ("(a:1,b:1,c);", "lengths"),
        ("(a,b)(c,d);", r"'\('"),
        ("(a(b,c),d);", r"'\('"),
        ("(a,b);(c,d);", "column 7"),
        ("(a,b); c", "';'"),
        ("(a,'b);", "quote"),
        ("(a,[b);", "comment"),
        ("(a,b]);", "column 5"),
        ("(a,b,a);", "twice"),
        ("((a,b)c,c);", "'c'"),
        (b"(a,b);", "bytes"),
    ],
)
def test_bad_texts_are_refused(text, message):
    with pytest.raises(DataError, match=message):
        Hierarchy.from_newick(text)
