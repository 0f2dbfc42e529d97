"""Items as rows of SQLite: read, found by a condition, and written.

A condition becomes SQL of fixed words with a `?` for every name and value.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.gallery.checks import check_distinct
from nearkin.gallery.condition import AllOf, AnyOf, Compare, Condition, IsNull, Like, Name, Not, OneOf, kind_of_value
from nearkin.gallery.store import UNLABELLED, Record
from nearkin.gallery.values import Item, Scalar

_OWN = {"label": "items.label_name", "id": "items.id", "source": "items.source", "added": "items.added"}
_KINDS = {"text": "('text')", "number": "('integer', 'real')", "bool": "('true', 'false')"}
# What a path can name without quoting rules; for any other key the entries are walked.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_Compiled = tuple[str, list[Any]]
_FALSE: _Compiled = ("0", [])


def to_sql(condition: Condition) -> _Compiled:
    """An SQL expression and its parameters, in order.

    The expression is 0 or 1, never NULL, and equal to `Condition.matches`. It reads `items.id`, `items.label_name`,
    `items.source`, `items.added` and `items.metadata`, a JSON object as text.
    """
    match condition:
        case Not(part):
            sql, parameters = to_sql(part)
            return f"(NOT {sql})", parameters
        case AllOf(parts):
            return _joined("AND", [to_sql(part) for part in parts])
        case AnyOf(parts):
            return _joined("OR", [to_sql(part) for part in parts])
        case IsNull(name):
            return _null(name)
        case Like(name, pattern):
            return _guarded(name, "text", "LIKE ? ESCAPE ?", [pattern, "\\"])
        case OneOf(name, values):
            return _one_of(name, values)
        case Compare(name, "!=", value):
            return to_sql(AllOf((Not(IsNull(name)), Not(Compare(name, "=", value)))))
        case Compare(name, operator, value):
            return _compare(name, operator, value)
    raise TypeError(f"{type(condition).__name__} is no part of a condition.")


def _compare(name: Name, operator: str, value: Scalar) -> _Compiled:
    if isinstance(value, bool):
        return _truth(name, value)
    if operator == "=" and name.own and isinstance(value, str):
        return f"({_OWN[name.key]} IS ?)", [value]  # plain enough for an index
    return _guarded(name, kind_of_value(value), f"{operator} ?", [value])


def _one_of(name: Name, values: Sequence[Scalar]) -> _Compiled:
    parts: list[_Compiled] = []
    for kind in ("text", "number"):
        some = [value for value in values if kind_of_value(value) == kind]
        if some:
            parts.append(_guarded(name, kind, f"IN ({', '.join('?' * len(some))})", some))
    parts.extend(_truth(name, value) for value in sorted({value for value in values if isinstance(value, bool)}))
    return _joined("OR", parts) if parts else _FALSE


def _guarded(name: Name, kind: str, test: str, values: list[Any]) -> _Compiled:
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


def _null(name: Name) -> _Compiled:
    if name.own:
        return f"({_OWN[name.key]} IS NULL)", []
    if _PLAIN.fullmatch(name.key):
        return "(json_extract(items.metadata, ?) IS NULL)", [f"$.{name.key}"]
    return "((SELECT e.value FROM json_each(items.metadata) AS e WHERE e.key = ?) IS NULL)", [name.key]


def _joined(word: str, parts: list[_Compiled]) -> _Compiled:
    """Parts joined as a balanced tree: SQLite refuses an expression that is a thousand levels deep."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    left, before = _joined(word, parts[:half])
    right, after = _joined(word, parts[half:])
    return f"({left} {word} {right})", [*before, *after]


_CHUNK = 1000  # parameters of a statement
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_SCALARS = frozenset((str, int, float, bool, type(None)))

_NAMED = (
    "(SELECT items.*, labels.name AS label_name,"
    " EXISTS (SELECT 1 FROM thumbnails WHERE thumbnails.slot = items.slot) AS pictured"
    " FROM items LEFT JOIN labels ON labels.code = items.label) AS items"
)
_ITEM = f"SELECT items.id, label_name, metadata, source, added, pictured, items.slot FROM {_NAMED}"


def checked_rows(records: Sequence[Record]) -> list[tuple[str, str, str | None, str]]:
    """(id, metadata as JSON, source, added) of records.

    Raises:
        DataError: if an id comes twice, or a value cannot be stored.
    """
    rows = [(record.id, encoded(record.metadata), record.source, record.added) for record in records]
    for record in records:
        if type(record.id) is not str or not (record.label is None or isinstance(record.label, str)):
            raise DataError(f"Ids and labels must be text, not {record.id!r} and {record.label!r}.")
        if not (record.source is None or isinstance(record.source, str)) or not isinstance(record.added, str):
            raise DataError(f"The source and time of '{record.id}' must be text.")
    check_distinct([record.id for record in records])
    return rows


def encoded(metadata: Mapping[str, Any]) -> str:
    """Metadata as JSON.

    Raises:
        DataError: if it is not flat, or a value cannot be stored.
    """
    if not _SCALARS.issuperset(map(type, metadata.values())) or not all(type(key) is str for key in metadata):
        strange = {key: value for key, value in metadata.items() if type(value) not in _SCALARS or type(key) is not str}
        raise DataError(f"Metadata must be texts, whole or real numbers, truth values or None by name, not {strange}.")
    try:
        return _ENCODER.encode(metadata if type(metadata) is dict else dict(metadata))
    except ValueError as error:
        raise DataError(f"Metadata must be finite numbers, not {dict(metadata)}.") from error


def insert(
    connection: sqlite3.Connection, first: int, records: Sequence[Record], rows: Iterable[tuple[Any, ...]], codes: Any
) -> None:
    """Add items at the slots from `first` on; no item may have one of their ids."""
    labels = (None if code < 0 else code for code in codes.tolist())
    connection.executemany(
        "INSERT INTO items (slot, id, metadata, source, added, label) VALUES (?, ?, ?, ?, ?, ?)",
        ((slot, *row, label) for slot, (row, label) in enumerate(zip(rows, labels, strict=True), first)),
    )
    pictures = ((slot, record.thumbnail) for slot, record in enumerate(records, first) if record.thumbnail is not None)
    connection.executemany("INSERT INTO thumbnails VALUES (?, ?)", pictures)
    originals = ((slot, record.original) for slot, record in enumerate(records, first) if record.original is not None)
    connection.executemany("INSERT INTO originals VALUES (?, ?)", originals)


def delete(connection: sqlite3.Connection, slots: Iterable[int]) -> None:
    """Remove items with all that is kept of them."""
    gone = [(slot,) for slot in slots]
    for table in ("items", "thumbnails", "originals"):
        connection.executemany(f"DELETE FROM {table} WHERE slot = ?", gone)


def update(connection: sqlite3.Connection, column: str, value: Any, slots: Iterable[int]) -> None:
    """Give items another value of a column."""
    connection.executemany(f"UPDATE items SET {column} = ? WHERE slot = ?", ((value, slot) for slot in slots))


def slots_of(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, int]:
    """Slots by id, of those that exist."""
    return dict(_among(connection, "SELECT id, slot FROM items WHERE id IN", list(dict.fromkeys(ids))))


def items_by(connection: sqlite3.Connection, column: str, values: Iterable[Any]) -> dict[Any, Item]:
    """Items by their id or slot, of those that exist."""
    place = {"id": 0, "slot": 6}[column]
    found = _among(connection, f"{_ITEM} WHERE items.{column} IN", sorted(set(values)))
    return {row[place]: _item(row) for row in found}


def page(
    connection: sqlite3.Connection, after: str | None, limit: int, where: Condition | None
) -> tuple[list[Item], list[int]]:
    """Items and their slots in the order of ids, those after an id."""
    sql, parameters = _condition(where)
    begin = [] if after is None else [after]
    text = f"{_ITEM} WHERE {'items.id > ? AND' if begin else ''} {sql} ORDER BY items.id LIMIT ?"
    found = connection.execute(text, (*begin, *parameters, limit)).fetchall()
    return [_item(row) for row in found], [row[6] for row in found]


def ids_where(connection: sqlite3.Connection, where: Condition | None, label: Any) -> list[str]:
    """Ids in their order of items that fulfil a condition and have a label, None: that have none; `...`: any."""
    sql, parameters = _condition(where)
    if label is not ...:
        sql, parameters = f"{sql} AND label_name IS ?", [*parameters, label]
    return [id for (id,) in connection.execute(f"SELECT items.id FROM {_NAMED} WHERE {sql} ORDER BY id", parameters)]


def slots(connection: sqlite3.Connection, where: Condition | None = None) -> np.ndarray:
    """Slots int64 (n,) of all items, or of those that fulfil a condition, ascending."""
    sql, parameters = _condition(where)
    table = "items" if where is None else _NAMED
    found = connection.execute(f"SELECT items.slot FROM {table} WHERE {sql} ORDER BY items.slot", parameters)
    return np.fromiter((slot for (slot,) in found), np.int64)


def label_codes(connection: sqlite3.Connection, labels: Sequence[str | None]) -> np.ndarray:
    """Codes int32 (n,) of labels; those that are new get the next codes."""
    names = [name for name in dict.fromkeys(labels) if name is not None]
    known: dict[str | None, int] = dict(_among(connection, "SELECT name, code FROM labels WHERE name IN", names))
    new = [name for name in names if name not in known]
    if new:
        first = connection.execute("SELECT count(*) FROM labels").fetchone()[0]
        connection.executemany("INSERT INTO labels VALUES (?, ?)", enumerate(new, first))
        known.update({name: code for code, name in enumerate(new, first)})
    known[None] = UNLABELLED
    return np.fromiter((known[label] for label in labels), np.int32, len(labels))


def _condition(where: Condition | None) -> tuple[str, list[Any]]:
    return ("1", []) if where is None else to_sql(where)


def _among(connection: sqlite3.Connection, select: str, values: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
    """Rows of `select … IN` any number of values."""
    for start in range(0, len(values), _CHUNK):
        part = values[start : start + _CHUNK]
        yield from connection.execute(f"{select} ({','.join('?' * len(part))})", part)


def _item(row: tuple[Any, ...]) -> Item:
    try:
        metadata = json.loads(row[2])
    except (TypeError, ValueError):
        metadata = None
    if not isinstance(metadata, dict):
        raise sqlite3.DatabaseError(f"the metadata of '{row[0]}' cannot be read")
    return Item(row[0], row[1], metadata, row[3], row[4], bool(row[5]))
