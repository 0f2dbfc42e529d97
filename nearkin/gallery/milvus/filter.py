"""Filters in Milvus's language: a condition over the facts of an item; text only ever enters as an escaped literal."""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Any as Anything

from nearkin.gallery.condition import (
    OWN_NAMES,
    AllOf,
    AnyOf,
    Compare,
    Condition,
    IsNull,
    Like,
    Name,
    Not,
    OneOf,
    kind_of_value,
    like_parts,
)
from nearkin.gallery.store import Record
from nearkin.gallery.values import Item, Scalar

PARTITION_FIELD = "shelf"
"""Where an item of a partitioned gallery has the value that sorts it."""

_KINDS = {"text": "t", "number": "n", "bool": "b"}
_NULLABLE = ("label", "source")
_OPPOSITES = {"=": "!=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
# Every item has an id that is not empty.
_ALWAYS, _NEVER = 'id != ""', 'id == ""'
# Wildcards and line ends as characters that no text has: not every version can escape them in a pattern.
_FOLDED = str.maketrans(
    dict(zip(string.ascii_uppercase, string.ascii_lowercase, strict=True))
    | {"%": "\ufdd0", "_": "\ufdd1", "\\": "\ufdd2", "\n": "\ufdd3", "\r": "\ufdd4"}
)
_ESCAPES = str.maketrans({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def facts(item: Item | Record) -> dict[str, str | int | float]:
    """What a filter can ask of an item; kept in the JSON field `facts`."""
    found: dict[str, str | int | float] = {}
    for key, value in item.metadata.items():
        if value is not None:
            found[f"{_KINDS[kind_of_value(value)]}:{key}"] = int(value) if isinstance(value, bool) else value
        if isinstance(value, str):
            found[f"f:{key}"] = value.translate(_FOLDED)
    for name in OWN_NAMES:
        own = getattr(item, name)
        if own is not None:
            found[f"f.{name}"] = own.translate(_FOLDED)
    return found


def to_milvus(condition: Condition, partition: str | None = None) -> str:
    """A Milvus filter, equal to `Condition.matches`, over `facts` and the fields `OWN_NAMES`.

    The fields are texts, of which label and source may be null. If items are partitioned by a metadata key, whose value
    each has in a field of its own, and the condition leaves only some values of it, the filter names them first: Milvus
    then looks into their partitions alone.
    """
    test = _compiled(condition, True)
    values = None if partition is None else _values_left(condition, partition)
    if values is None:
        return test
    if not values:
        return _NEVER
    return f"{PARTITION_FIELD} in [{', '.join(map(literal, values))}] and {test}"


def _values_left(condition: Condition, key: str) -> list[str] | None:
    """The texts that a metadata key can have where a condition holds; None if it may have any."""
    match condition:
        case Compare(Name(key=name, own=False), "=", value) if name == key:
            return [value] if isinstance(value, str) else []
        case OneOf(Name(key=name, own=False), values) if name == key:
            return [value for value in values if isinstance(value, str)]
        case AllOf(parts):
            found = [left for part in parts if (left := _values_left(part, key)) is not None]
            return [value for value in found[0] if all(value in other for other in found)] if found else None
        case AnyOf(parts):
            each = [_values_left(part, key) for part in parts]
            if any(left is None for left in each):
                return None
            return list(dict.fromkeys(value for left in each for value in left or ()))
    return None


def literal(value: Scalar) -> str:
    """A value as Milvus writes it; a text in double quotes, escaped."""
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPES)}"'
    if isinstance(value, bool):
        return str(int(value))
    # Its digits alone would be beyond 64 bit.
    return "-9223372036854775808.0" if value == -(2**63) else repr(value)


def _compiled(condition: Condition, wanted: bool) -> str:
    """A filter of the items of which a condition has the value `wanted`."""
    match condition:
        case Not(part):
            return _compiled(part, not wanted)
        case AllOf(parts):
            return _joined([_compiled(part, wanted) for part in parts], "and" if wanted else "or")
        case AnyOf(parts):
            return _joined([_compiled(part, wanted) for part in parts], "or" if wanted else "and")
        case IsNull(name):
            return _null(name, wanted)
        case Compare(name, "!=", value):
            return _compiled(AllOf((Not(IsNull(name)), Not(Compare(name, "=", value)))), wanted)
        case Compare(name, operator, value):
            return _tested(name, value, operator if wanted else _OPPOSITES[operator], wanted)
        case OneOf(name, values):
            return _listed(name, values, wanted)
        case Like(name, pattern):
            return _like(name, pattern, wanted)
    raise TypeError(f"{type(condition).__name__} is no part of a condition.")


def _null(name: Name, wanted: bool) -> str:
    if name.own:
        if name.key not in _NULLABLE:
            return _NEVER if wanted else _ALWAYS
        return f"{name.key} is null" if wanted else f"{name.key} is not null"
    kinds = [f"exists {_fact(kind, name)}" for kind in _KINDS.values()]
    return _joined([f"not {kind}" for kind in kinds], "and") if wanted else _joined(kinds, "or")


def _tested(name: Name, value: Scalar, operator: str, wanted: bool) -> str:
    """Values that pass a test; if not `wanted` also missing ones, the test being the opposite one."""
    kind = kind_of_value(value)
    if name.own and kind != "text":
        return _NEVER if wanted else _ALWAYS
    field = name.key if name.own else _fact(_KINDS[kind], name)
    test = f"{field} {'==' if operator == '=' else operator} {literal(value)}"
    return test if wanted else _or_missing(name, field, test)


def _listed(name: Name, values: tuple[Anything, ...], wanted: bool) -> str:
    kinds = [[value for value in values if kind_of_value(value) == kind] for kind in _KINDS]
    parts = [_listed_of_kind(name, part, wanted) for part in kinds if part and (part is kinds[0] or not name.own)]
    if not parts:
        return _NEVER if wanted else _ALWAYS
    return _joined(parts, "or" if wanted else "and")


def _listed_of_kind(name: Name, values: list[Anything], wanted: bool) -> str:
    literals = [literal(value) for value in values]
    if name.own:
        test = f"{name.key} {'in' if wanted else 'not in'} [{', '.join(literals)}]"
        return test if wanted else _or_missing(name, name.key, test)
    # Milvus Lite knows no `in` for a key of JSON.
    field = _fact(_KINDS[kind_of_value(values[0])], name)
    if wanted:
        return _joined([f"{field} == {text}" for text in literals], "or")
    return _or_missing(name, field, _joined([f"{field} != {text}" for text in literals], "and"))


def _like(name: Name, pattern: str, wanted: bool) -> str:
    field = _fact("f", name)
    parts = like_parts(pattern)
    folded = "".join(part if part in ("%", "_") else part[1].translate(_FOLDED) for part in parts)
    test = f"{field} like {literal(folded)}" if {"%", "_"} & set(parts) else f"{field} == {literal(folded)}"
    return test if wanted else f"(not exists {field} or not ({test}))"


def _or_missing(name: Name, field: str, test: str) -> str:
    if not name.own:
        return f"(not exists {field} or {test})"
    return f"({field} is null or {test})" if name.key in _NULLABLE else test


def _fact(kind: str, name: Name) -> str:
    return f"facts[{literal(f'{kind}.{name.key}' if name.own else f'{kind}:{name.key}')}]"


def _joined(parts: list[str], word: str) -> str:
    return parts[0] if len(parts) == 1 else f"({f' {word} '.join(parts)})"


def one_of(name: str, values: Iterable[str]) -> str:
    """`name in [values]`."""
    return f"{name} in [{', '.join(map(literal, values))}]"


def all_of(*parts: str) -> str:
    """What is true where all parts are; empty ones are left out."""
    return " and ".join(f"({part})" for part in parts if part)
