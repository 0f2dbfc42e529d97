"""Conditions for databases: SQLite and Milvus Lite must find the items that `matches` finds, no more and no less."""

from __future__ import annotations

import importlib.util
import json
import re
import sqlite3
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nearkin.gallery.values import Item
from nearkin.gallery.where import parse
from nearkin.gallery.where_milvus import compile as compile_milvus
from nearkin.gallery.where_milvus import facts
from nearkin.gallery.where_nodes import All, Any, Compare, Condition, IsNull, Like, Name, Not, OneOf
from nearkin.gallery.where_sql import compile as compile_sql

KEYS = [
    "a",
    "label",
    "id",
    'q"uote',
    "back\\slash",
    "sp ace",
    "ü",
    "a.b",
    "$",
    "[0]",
    "'",
    "1",
    "é\n",
    "😀",
    "A",
    "a[0]",
]
TEXTS = [
    "",
    "a",
    "A",
    "aB",
    "1",
    "1.0",
    "true",
    "null",
    "it's",
    'q"',
    "\\",
    "%",
    "_",
    "a%b",
    "é",
    "É",
    "😀",
    "\t",
    "a\n",
]
NUMBERS = [0, 1, -1, 2, 1.0, 0.1, 0.30000000000000004, -0.0, 2**53, 2**53 + 1, float(2**53), 2**63 - 1, -(2**63), 1e300]

texts = st.one_of(st.sampled_from(TEXTS), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
numbers = st.one_of(
    st.sampled_from(NUMBERS),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
)
values = st.one_of(texts, numbers, st.booleans())
keys = st.sampled_from(KEYS)
names = st.one_of(
    st.builds(Name, keys), st.builds(Name, st.sampled_from(["label", "id", "source", "added"]), st.just(True))
)
patterns = st.lists(
    st.sampled_from(["%", "_", r"\%", r"\_", r"\\", "a", "B", "é", "É", "'", '"', "\n", "😀"]), max_size=4
)
ordered = st.sampled_from(["<", "<=", ">", ">="])

leaves = st.one_of(
    st.builds(Compare, names, st.sampled_from(["=", "!="]), values),
    st.builds(Compare, names, ordered, st.one_of(texts, numbers)),
    st.builds(OneOf, names, st.lists(values, max_size=4).map(tuple)),
    st.builds(Like, names, patterns.map("".join)),
    st.builds(IsNull, names),
)
conditions = st.recursive(
    leaves,
    lambda part: st.one_of(
        st.builds(Not, part),
        st.builds(All, st.lists(part, min_size=1, max_size=3).map(tuple)),
        st.builds(Any, st.lists(part, min_size=1, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)
items = st.builds(
    Item,
    st.one_of(st.sampled_from(["a", "1", "é"]), texts.filter(bool)),
    st.none() | st.sampled_from(["a", "B", "é"]) | texts.filter(bool),
    st.dictionaries(keys, st.one_of(st.none(), values), max_size=5),
    st.none() | texts,
    texts,
)


WORDS = re.compile(
    r"""items\.(id|label_name|source|added|metadata)|json_(type|extract|each)|ifnull|e|e\.(key|type|value)
    |AND|OR|NOT|IN|IS|NULL|LIKE|ESCAPE|EXISTS|SELECT|FROM|WHERE|AS|'(text|integer|real|true|false|null)'|[(),?=<>01]""",
    re.VERBOSE,
)


def found_by_sqlite(condition: Condition, item: Item, ascii_only: bool) -> bool:
    sql, parameters = compile_sql(condition)
    row = (item.id, item.label, json.dumps(item.metadata, ensure_ascii=ascii_only), item.source, item.added)
    with sqlite3.connect(":memory:") as database:
        database.execute(
            "CREATE TABLE x (id TEXT PRIMARY KEY, label_name TEXT, metadata TEXT, source TEXT, added TEXT)"
        )
        database.execute("INSERT INTO x VALUES (?, ?, ?, ?, ?)", row)
        answers = database.execute(f"SELECT {sql} FROM (SELECT x.* FROM x) AS items", parameters).fetchall()
        chosen = database.execute(f"SELECT count(*) FROM (SELECT x.* FROM x) AS items WHERE {sql}", parameters)
        assert answers[0][0] in (0, 1), "an answer must be 0 or 1, so that `not` is simple"
        assert chosen.fetchone()[0] == answers[0][0]
    return bool(answers[0][0])


@settings(max_examples=600, deadline=None)
@given(conditions, items, st.booleans())
@example(Compare(Name("a"), "=", 1), Item("i", None, {"a": True}), True)
@example(Compare(Name("label", True), "=", 1), Item("i", "1"), True)
@example(Compare(Name("a"), "<", 2**53), Item("i", None, {"a": float(2**53)}), True)
@example(Compare(Name("a"), "=", 2**53 + 1), Item("i", None, {"a": float(2**53)}), True)
@example(Not(Compare(Name("a"), "!=", 1)), Item("i", None, {}), True)
@example(Compare(Name("a.b"), "=", 1), Item("i", None, {"a.b": 1}), True)
@example(OneOf(Name("a"), ()), Item("i", None, {"a": 1}), True)
def test_sqlite_finds_what_matches(condition, item, ascii_only):
    assert found_by_sqlite(condition, item, ascii_only) is condition.matches(item)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_sqlite_finds_values_that_are_there(data):
    """Random values seldom meet; here the condition speaks of a value that the item has."""
    item = data.draw(items.filter(lambda item: any(value is not None for value in item.metadata.values())))
    key, value = data.draw(st.sampled_from([pair for pair in item.metadata.items() if pair[1] is not None]))
    operators = ["=", "!="] if isinstance(value, bool) else ["=", "!=", "<", "<=", ">", ">="]
    condition = Compare(Name(key), data.draw(st.sampled_from(operators)), value)
    assert condition.matches(item) is (condition.operator in ("=", "<=", ">="))
    assert found_by_sqlite(condition, item, data.draw(st.booleans())) is condition.matches(item)


@given(conditions)
def test_sql_is_made_of_fixed_words_only(condition):
    sql, parameters = compile_sql(condition)
    words = re.findall(r"'[^']*'|[A-Za-z_.]+|\S", sql)
    assert [word for word in words if not WORDS.fullmatch(word)] == []
    assert sql.count("?") == len(parameters)


def test_the_largest_condition_is_not_too_deep_for_sqlite():
    wide = " and ".join(["a=1"] * 1000)
    deep = "not (" * 25 + "a=1" + ")" * 25
    wild = parse("a like :p", {"p": "%_a" * 333})
    listed = parse("a in :v", {"v": [*range(5000), *map(str, range(5000))]})
    item = Item("i", None, {"a": 1})
    for condition in (parse(wide), parse(deep), listed, wild):
        assert found_by_sqlite(condition, item, True) is condition.matches(item)


POOL = [
    Item("i0", None, {}),
    *(Item(f"t{n}", text or None, {"a": text, "ü": n}, text, text) for n, text in enumerate(TEXTS)),
    *(Item(f"n{n}", "a", {"a": number, 'q"uote': "a"}) for n, number in enumerate(NUMBERS)),
    *(Item(f"k{n}", "B", {key: "a%b"}, "é") for n, key in enumerate(KEYS)),
    Item("true", "true", {"a": True, "A": 1}),
    Item("false", "é", {"a": False, "A": None}, None, "2026"),
]


@pytest.fixture(scope="module")
def milvus(tmp_path_factory) -> Iterator[Callable[[Condition], set[str]]]:
    if importlib.util.find_spec("pymilvus") is None or importlib.util.find_spec("milvus_lite") is None:
        pytest.skip("needs Milvus Lite")
    from pymilvus import DataType, MilvusClient

    client = MilvusClient(str(tmp_path_factory.mktemp("milvus") / "where.db"))
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=800)
    for name in ("label", "source", "added"):
        schema.add_field(name, DataType.VARCHAR, max_length=4000, nullable=name != "added")
    schema.add_field("facts", DataType.JSON)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=2)
    index = client.prepare_index_params()
    index.add_index("vector", index_type="FLAT", metric_type="L2")
    client.create_collection("items", schema=schema, index_params=index)
    client.insert(
        "items",
        [
            {"id": item.id, "label": item.label, "source": item.source, "added": item.added}
            | {"facts": facts(item), "vector": [0.0, 1.0]}
            for item in POOL
        ],
    )
    yield lambda condition: {
        row["id"] for row in client.query("items", filter=compile_milvus(condition), output_fields=["id"])
    }
    client.close()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(condition=conditions)
def test_milvus_finds_what_matches(milvus, condition):
    assert milvus(condition) == {item.id for item in POOL if condition.matches(item)}


@pytest.mark.parametrize("key", ["a", "label", "source", "id"])
@pytest.mark.parametrize("operator", ["=", "!=", "<", "<=", ">", ">="])
def test_milvus_compares_every_pair_of_kinds(milvus, key, operator):
    name = Name(key, own=key != "a")
    for value in ["a", "É", "", 1, -(2**63), 0.1, 2**53 + 1, *([True, False] if operator in ("=", "!=") else [])]:
        condition = Compare(name, operator, value)
        assert milvus(condition) == {item.id for item in POOL if condition.matches(item)}
        assert milvus(Not(condition)) == {item.id for item in POOL if not condition.matches(item)}


def test_the_largest_condition_is_not_too_deep_for_milvus(milvus):
    deep = parse("not (a=1 or " * 25 + "a=2" + ")" * 25)
    wide = parse(" or ".join(["not a=1"] * 800))
    nested = parse("(a=1 or (a=2 and " * 25 + "a=1" + ")" * 50)
    for condition in (deep, nested, wide):
        assert milvus(condition) == {item.id for item in POOL if condition.matches(item)}


@given(conditions)
def test_a_milvus_filter_keeps_literals_in_quotes(condition):
    """Without its quoted texts, a filter is made of fixed words and numbers."""
    bare = re.sub(r'"(?:[^"\\\n\r]|\\["\\nrt])*"', "", compile_milvus(condition))
    words = {"facts", "id", "label", "source", "added", "exists", "not", "and", "or", "in", "is", "null", "like"}
    assert set(re.findall(r"[^\W\d]\w*", re.sub(r"\b\d[\d.]*(e[+-]?\d+)?", "", bare))) <= words
    assert '"' not in bare
