"""A condition as SQL for SQLite: fixed words with a `?` for every name and value."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any as Anything

from nearkin.gallery.where_nodes import (
    All,
    Any,
    Compare,
    Condition,
    IsNull,
    Like,
    Name,
    Not,
    OneOf,
    kind_of_value,
)

_OWN = {"label": "items.label_name", "id": "items.id", "source": "items.source", "added": "items.added"}
_KINDS = {"text": "('text')", "number": "('integer', 'real')", "bool": "('true', 'false')"}
# What a path can name without quoting rules; for any other key the entries are walked.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_Compiled = tuple[str, list[Anything]]
_FALSE: _Compiled = ("0", [])


def compile(condition: Condition) -> _Compiled:
    """An SQL expression and its parameters, in order.

    The expression is 0 or 1, never NULL, and equal to `Condition.matches`. It reads `items.id`, `items.label_name`,
    `items.source`, `items.added` and `items.metadata`, a JSON object as text.
    """
    for node, compiled in _COMPILERS.items():
        if isinstance(condition, node):
            return compiled(condition)
    raise TypeError(f"{type(condition).__name__} is no part of a condition.")


def _compare(condition: Compare) -> _Compiled:
    name, operator, value = condition.name, condition.operator, condition.value
    if operator == "!=":
        equal, parameters = _compare(Compare(name, "=", value))
        present, more = _null(name, "IS NOT NULL")
        return f"({present} AND NOT {equal})", [*more, *parameters]
    if isinstance(value, bool):
        return _truth(name, value)
    if operator == "=" and name.own and isinstance(value, str):
        return f"({_OWN[name.key]} IS ?)", [value]  # plain enough for an index
    return _guarded(name, kind_of_value(value), f"{operator} ?", [value])


def _one_of(condition: OneOf) -> _Compiled:
    parts: list[_Compiled] = []
    for kind in ("text", "number"):
        values = [value for value in condition.values if kind_of_value(value) == kind]
        if values:
            parts.append(_guarded(condition.name, kind, f"IN ({', '.join('?' * len(values))})", values))
    truths = sorted({value for value in condition.values if isinstance(value, bool)})
    parts.extend(_truth(condition.name, value) for value in truths)
    return _joined("OR", parts) if parts else _FALSE


def _like(condition: Like) -> _Compiled:
    return _guarded(condition.name, "text", "LIKE ? ESCAPE ?", [condition.pattern, "\\"])


def _is_null(condition: IsNull) -> _Compiled:
    return _null(condition.name, "IS NULL")


def _not(condition: Not) -> _Compiled:
    part, parameters = compile(condition.part)
    return f"(NOT {part})", parameters


def _all(condition: All) -> _Compiled:
    return _joined("AND", [compile(part) for part in condition.parts])


def _any(condition: Any) -> _Compiled:
    return _joined("OR", [compile(part) for part in condition.parts])


_COMPILERS: dict[type[Condition], Callable[[Anything], _Compiled]] = {
    Compare: _compare,
    OneOf: _one_of,
    Like: _like,
    IsNull: _is_null,
    Not: _not,
    All: _all,
    Any: _any,
}


def _guarded(name: Name, kind: str, test: str, values: list[Anything]) -> _Compiled:
    """A test that is made only of values of one kind: SQLite would convert others, or put them in an order."""
    if name.own:
        # A number bound beside a text column would be taken for text.
        return (f"({_OWN[name.key]} IS NOT NULL AND {_OWN[name.key]} {test})", values) if kind == "text" else _FALSE
    kinds = _KINDS[kind]
    if _PLAIN.fullmatch(name.key):
        path = f"$.{name.key}"
        sql = f"(ifnull(json_type(items.metadata, ?), 'null') IN {kinds} AND json_extract(items.metadata, ?) {test})"
        return sql, [path, path, *values]
    found = f"e.key = ? AND e.type IN {kinds} AND e.value {test}"
    return f"EXISTS (SELECT 1 FROM json_each(items.metadata) AS e WHERE {found})", [name.key, *values]


def _truth(name: Name, value: bool) -> _Compiled:
    return _guarded(name, "bool", "= ?", [int(value)])


def _null(name: Name, test: str) -> _Compiled:
    if name.own:
        return f"({_OWN[name.key]} {test})", []
    if _PLAIN.fullmatch(name.key):
        return f"(json_extract(items.metadata, ?) {test})", [f"$.{name.key}"]
    return f"((SELECT e.value FROM json_each(items.metadata) AS e WHERE e.key = ?) {test})", [name.key]


def _joined(word: str, parts: list[_Compiled]) -> _Compiled:
    """Parts joined as a balanced tree: SQLite refuses an expression that is a thousand levels deep."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    left, before = _joined(word, parts[:half])
    right, after = _joined(word, parts[half:])
    return f"({left} {word} {right})", [*before, *after]
