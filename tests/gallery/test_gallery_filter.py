"""The grammar of conditions: what each form means, and what is said of a text that cannot be read."""

from __future__ import annotations

import importlib.util
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nearkin.errors import DataError
from nearkin.gallery.condition import AllOf, AnyOf, Compare, Condition, IsNull, Like, Name, Not, OneOf, condition, parse
from nearkin.gallery.milvus.filter import facts
from nearkin.gallery.milvus.filter import to_milvus as compile_milvus
from nearkin.gallery.sqlite.rows import to_sql as compile_sql
from nearkin.gallery.values import Item

BIRD = Item(
    "b1",
    "owl",
    {"colour": "Brown", "size": 30, "weight": 0.5, "night": True, "note": None, "a b": "x", "label": "inner"},
    source="/data/owl.jpg",
    added="2026-01-02T03:04:05Z",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("size = 30", True),
        ("size = 30.0", True),
        ("size != 30", False),
        ("size != 31", True),
        ("size < 30", False),
        ("size <= 30", True),
        ("size > 29.5", True),
        ("size >= 31", False),
        ("size > -3e1", True),
        ("size > .5", True),
        ("colour = 'Brown'", True),
        ("colour = 'brown'", False),
        ("colour < 'C'", True),
        ("colour > 'C'", False),
        ("label = 'owl' AND id = 'b1'", True),
        ("metadata.label = 'inner'", True),
        ("label = 'inner'", False),
        ("\"label\" = 'owl'", True),
        ("source like '%.JPG'", True),
        ("added >= '2026-01-01' and added < '2027'", True),
        ("\"a b\" = 'x'", True),
        ('metadata."a b" is not null', True),
        ("size in (1, 30, 'x')", True),
        ("size in (1, 2)", False),
        ("size not in (1, 2)", True),
        ("size not in (30)", False),
        ("colour like 'b_OWn'", True),
        ("colour like 'b%n'", True),
        ("colour like 'b'", False),
        ("colour not like 'x%'", True),
        ("night = true", True),
        ("night != false", True),
        ("note is null", True),
        ("missing is null", True),
        ("size is null", False),
        ("size is not null", True),
        # Kinds do not mix: not equal, and in no order.
        ("size = '30'", False),
        ("size < 'z'", False),
        ("size != '30'", True),
        ("night = 1", False),
        ("night > 0", False),
        ("size in ('30', true)", False),
        ("label = 3", False),
        ("label != 3", True),
        ("size like '3%'", False),
        # A missing value: every comparison is false, and `not` simply negates.
        ("missing = 1", False),
        ("missing != 1", False),
        ("missing not in (1)", False),
        ("missing not like 'a'", False),
        ("note != 1", False),
        ("not missing = 1", True),
        ("not (missing != 1)", True),
        # `and` binds closer than `or`, `not` closest of all.
        ("size = 30 or size = 1 and size = 2", True),
        ("(size = 30 or size = 1) and size = 2", False),
        ("not size = 1 and size = 30", True),
        ("not not size = 30", True),
    ],
)
def test_what_a_condition_means(text, expected):
    assert parse(text).matches(BIRD) is expected


def test_a_condition_is_a_value():
    found = parse("a = 1 and not (b is null or c like 'x%')")
    expected = AllOf(
        (Compare(Name("a"), "=", 1), Not(AnyOf((IsNull(Name("b")), Like(Name("c"), "x%"))))),
    )
    assert found == expected
    assert hash(found) == hash(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"\b1\b"),
        ("colour", "!="),
        ("colour = ", r"\b10\b"),
        ("colour == 'x'", r"\b8\b"),
        ("colour <> 'x'", "!="),
        ('colour = "red"', r"\b10\b"),
        ("colour = red", r"\b10\b"),
        ("colour = 'red", r"\b10\b"),
        ('"colour = 1', "name"),
        ("colour = null", "is null"),
        ("colour is 3", "null"),
        ("colour in 3", r"'\('"),
        ("colour in ()", r"\b12\b"),
        ("colour in (1, 2", r"\b16\b"),
        ("colour not 3", "like"),
        ("colour and size", "like"),
        ("(size = 1", r"\b10\b"),
        ("size = 1)", r"\b9\b"),
        ("size = 1 size = 2", r"\b10\b"),
        ("'a' = 1", "name"),
        ("exif.size = 1", r"\b5\b"),
        ("metadata. = 1", r"\b11\b"),
        ('"" = 1', "empty"),
        ("size; drop table items", r"\b5\b"),
        ("size = 12abc", r"\b8\b"),
        ("night < true", "!="),
        ("size like 3", "like"),
        (r"colour like 'a\b'", r"\b13\b"),
        ("size = 9223372036854775808", "64"),
        ("size = 1e999", "finite"),
        ("size = " + "9" * 200, "finite"),
        ("colour = 'a\0'", "NUL"),
        ("size = :n", ":n"),
        ("not", r"\b4\b"),
    ],
)
def test_errors_say_where(text, message):
    with pytest.raises(DataError, match=message):
        parse(text)


def test_quotes_are_doubled():
    item = Item("x", None, {'say "hi"': "it's"})
    assert parse('"say ""hi""" = \'it\'\'s\'').matches(item)


def test_parameters():
    assert parse("colour = :c and size in :sizes", {"c": "Brown", "sizes": [1, 30]}).matches(BIRD)
    assert parse("size in (:a, 30)", {"a": 1}).matches(BIRD)
    assert parse("size in :s", {"s": np.array([30])}).matches(BIRD)
    assert not parse("size in :s", {"s": []}).matches(BIRD)
    assert parse("size not in :s", {"s": ()}).matches(BIRD)
    assert parse("size = :n", {"n": np.int64(30)}) == Compare(Name("size"), "=", 30)
    assert parse("colour = :c", {"c": "' or 1=1 --"}) == Compare(Name("colour"), "=", "' or 1=1 --")


@pytest.mark.parametrize(
    ("text", "parameters", "message"),
    [
        ("size = :n", {"m": 1}, ":n"),
        ("size = :n", {"n": 1, "m": 2}, r"\bm\b"),
        ("size = :n", {"n": [1]}, r"\bin\b"),
        ("size in :n", {"n": 1}, "list"),
        ("size in :n", {"n": "abc"}, "list"),
        ("size in :n", {"n": [1, None]}, "is null"),
        ("size in :n", {"n": [[1]]}, r"\bin\b"),
        ("size = :n", {"n": None}, "is null"),
        ("size = :n", {"n": float("nan")}, "finite"),
        ("size = :n", {"n": 2**63}, "64"),
        ("size = :n", {"n": object()}, "object"),
        ("size = :n", {"n": "\ud800"}, "character"),
        ("size in :n", {"n": list(range(10_001))}, "10,000"),
        ("size = :n", {"n": "x" * 65_537}, "65,537"),
        ("size like :n", {"n": "x" * 1001}, "1,000"),
    ],
)
def test_parameters_that_cannot_be_used(text, parameters, message):
    with pytest.raises(DataError, match=message):
        parse(text, parameters)


def test_limits():
    assert parse("(" * 50 + "size = 30" + ")" * 50).matches(BIRD)
    with pytest.raises(DataError, match="50"):
        parse("(" * 51 + "size = 30" + ")" * 51)
    with pytest.raises(DataError, match="50"):
        parse("not " * 51 + "size = 30")
    assert parse(" or ".join(["a=1"] * 999) + " or size=30").matches(BIRD)
    with pytest.raises(DataError, match="1,000"):
        parse(" or ".join(["a=1"] * 1001))
    with pytest.raises(DataError, match="10,001"):
        parse("a" * 10_001)
    with pytest.raises(DataError, match="int"):
        parse(3)


def test_condition_takes_text_mappings_conditions_and_none():
    assert condition(None) is None
    ready = parse("size = 30")
    assert condition(ready) is ready
    assert condition("size = :n", {"n": 30}) == ready
    assert condition({"size": 30}) == ready
    assert condition({"size": 30, "label": "owl", "metadata.label": "inner", "note": None}).matches(BIRD)
    assert not condition({"size": 30, "label": "cat"}).matches(BIRD)
    assert condition({"a b": np.str_("x")}).matches(BIRD)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({}, r"\b0\b"),
        ({"": 1}, "empty"),
        ({3: 1}, "text"),
        ({"a": [1]}, "list"),
        ({"a": float("inf")}, "finite"),
        (["a"], "list"),
    ],
)
def test_conditions_that_are_none(where, message):
    with pytest.raises(DataError, match=message):
        condition(where)


def test_parameters_need_a_text():
    with pytest.raises(DataError, match="text"):
        condition({"a": 1}, {"x": 1})


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_in_one_sentence(text):
    try:
        parse(text).matches(BIRD)
    except DataError as error:
        assert str(error).endswith(".")  # noqa: PT017


@given(
    st.lists(st.sampled_from(["a", "A", "b", "%", "_", "\n", "é"]), max_size=8).map("".join),
    st.lists(st.sampled_from(["a", "b", "%", "_", r"\%", r"\_", "é", "É"]), max_size=5).map("".join),
)
def test_like_is_a_plain_search_for_all_ways_to_fill_the_wildcards(text, pattern):
    assert parse("x like :p", {"p": pattern}).matches(Item("i", None, {"x": text})) is _like(text, pattern)


def _like(text: str, pattern: str) -> bool:
    """By definition, without any cleverness."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(_like(text[n:], pattern[1:]) for n in range(len(text) + 1))
    plain = pattern[0] == "\\"
    first, rest = (pattern[1], pattern[2:]) if plain else (pattern[0], pattern[1:])
    if not text or not ((first == "_" and not plain) or _folded(first) == _folded(text[0])):
        return False
    return _like(text[1:], rest)


def _folded(character: str) -> str:
    return character.lower() if re.fullmatch("[A-Z]", character) else character


def test_many_wildcards_take_no_time():
    item = Item("i", None, {"x": "a" * 5000})
    start = time.perf_counter()
    assert not parse("x like :p", {"p": "%a" * 40 + "%b"}).matches(item)
    assert time.perf_counter() - start < 2


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
        st.builds(AllOf, st.lists(part, min_size=1, max_size=3).map(tuple)),
        st.builds(AnyOf, st.lists(part, min_size=1, max_size=3).map(tuple)),
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


@settings(max_examples=300, deadline=None)
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
    for one in (parse(wide), parse(deep), listed, wild):
        assert found_by_sqlite(one, item, True) is one.matches(item)


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


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    for one in (deep, nested, wide):
        assert milvus(one) == {item.id for item in POOL if one.matches(item)}


@given(conditions)
def test_a_milvus_filter_keeps_literals_in_quotes(condition):
    """Without its quoted texts, a filter is made of fixed words and numbers."""
    bare = re.sub(r'"(?:[^"\\\n\r]|\\["\\nrt])*"', "", compile_milvus(condition))
    words = {"facts", "id", "label", "source", "added", "exists", "not", "and", "or", "in", "is", "null", "like"}
    assert set(re.findall(r"[^\W\d]\w*", re.sub(r"\b\d[\d.]*(e[+-]?\d+)?", "", bare))) <= words
    assert '"' not in bare
