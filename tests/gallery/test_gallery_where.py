"""The grammar of conditions: what each form means, and what is said of a text that cannot be read."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.errors import DataError
from nearkin.gallery.values import Item
from nearkin.gallery.where import condition, parse
from nearkin.gallery.where_nodes import All, Any, Compare, IsNull, Like, Name, Not

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
    expected = All(
        (Compare(Name("a"), "=", 1), Not(Any((IsNull(Name("b")), Like(Name("c"), "x%"))))),
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
