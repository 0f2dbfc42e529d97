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
        with pytest.raises(DataError, match="lengths for 3 of its 4 branches: give all of them one, or none"):
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
        ("", "The Newick text is empty"),
        (" \n[nothing]", "The Newick text is empty"),
        (";", r"a name is missing before ';' \(line 1, column 1\)"),
        ("a;", "The tree has a single class, 'a'"),
        ("(a,b)", r"the text ends before the tree does; it must end with ';' \(line 1, column 6\)"),
        ("((a,b),c;", r"a '\(' is not closed before the ';' \(line 1, column 9\)"),
        ("(a,b));", r"the '\)' is outside every bracket \(line 1, column 6\)"),
        ("a,b;", r"the ',' is outside every bracket \(line 1, column 2\)"),
        ("(a,,b);", r"a name is missing before ',' \(line 1, column 4\)"),
        ("(a,\n  b,);", r"a name is missing before '\)' \(line 2, column 5\)"),
        ("(a,());", r"a name is missing before '\)'"),
        ("(a,'');", r"a class has a blank name \(line 1, column 4\)"),
        ("(a,:1);", "a name is missing before ':'"),
        ("(a,live oak);", r"the name 'oak' is out of place; put names with blanks in quotes \(line 1, column 9\)"),
        ("(a,b'c');", "the name 'c' is out of place"),
        ("(a:1 b,c:1);", "the name 'b' is out of place; a name comes before its ':'"),
        ("(a:'1',b:1);", "the name '1' is out of place"),
        ("(a:,b:1);", r"a branch length is missing before ',' \(line 1, column 4\)"),
        ("(a:x,b:1);", "'x' is not a branch length"),
        ("(a:nan,b:1);", "'nan' is not a branch length"),
        ("(a:1_0,b:1);", "'1_0' is not a branch length"),
        ("(a:1e999,b:1);", "'1e999' is not a branch length"),
        ("(a:1:2,b:1);", "a branch has two lengths"),
        ("(a:1,b:1,c);", "lengths for 2 of its 3 branches"),
        ("(a,b)(c,d);", r"a '\(' follows a name, a length or a '\)' without a ','"),
        ("(a(b,c),d);", r"a '\(' follows a name"),
        ("(a,b);(c,d);", r"there is more after the ';' that ends the tree \(line 1, column 7\)"),
        ("(a,b); c", "there is more after the ';'"),
        ("(a,'b);", r"a quote ' or a comment \[ is not closed.*\(line 1, column 4\)"),
        ("(a,[b);", r"is not closed.*\(line 1, column 4\)"),
        ("(a,b]);", r"a \] is not opened \(line 1, column 5\)"),
        ("(a,b,a);", "The class 'a' is in the tree twice"),
        ("((a,b)c,c);", "'c' is a class and also a group"),
        (b"(a,b);", "must be text, not bytes"),
    ],
)
def test_bad_texts_are_refused(text, message):
    with pytest.raises(DataError, match=message):
        Hierarchy.from_newick(text)
