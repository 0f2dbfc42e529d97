"""Making, reading and writing one Milvus collection of rows with a text key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nearkin.errors import require
from nearkin.gallery.milvus.connection import Connection
from nearkin.gallery.milvus.expressions import all_of, one_of
from nearkin.gallery.where_milvus import literal

LARGEST_ANSWER = 16_384
"""Rows that Milvus gives in one answer."""

TEXT_BYTES = 65_535
"""What a text field of Milvus holds."""

_KEYS_AT_ONCE = 1_000
_ROWS_AT_ONCE = 1_000
_BYTES_AT_ONCE = 8 * 2**20
_LOAD_SECONDS = 300.0

Row = dict[str, Any]


def make(connection: Connection, name: str, schema: Any, vector: str, index: Row, *, partitions: int = 0) -> None:
    """Make a collection, indexed and loaded.

    Args:
        connection: to the server.
        name: of the collection.
        schema: its fields.
        vector: the field that is searched.
        index: what is built for it, as `add_index` of pymilvus takes it.
        partitions: into how many the values of its partition key are sorted; 0: it has none.
    """
    sorted_into = {"num_partitions": partitions} if partitions else {}
    connection.call("create_collection", name, schema=schema, consistency_level="Strong", **sorted_into)
    build(connection, name, vector, index)
    load(connection, name)


def build(connection: Connection, name: str, vector: str, index: Row) -> None:
    """Have an index built; that of an empty collection is there at once, and waiting for it would only sleep."""
    indexes = schema_class().prepare_index_params()
    indexes.add_index(field_name=vector, **index)
    connection.call("create_index", name, indexes, sync=False)


def rebuild(connection: Connection, name: str, vector: str, index: Row) -> None:
    """Put another index in the place of one; meanwhile the collection is not there to be searched."""
    connection.call("release_collection", name, timeout=_LOAD_SECONDS)
    for old in connection.call("list_indexes", name):
        connection.call("drop_index", name, old)
    build(connection, name, vector, index)
    load(connection, name)


def load(connection: Connection, name: str) -> None:
    """Have a collection ready to be read, which may take a while for a large one that was put away."""
    connection.call("load_collection", name, timeout=_LOAD_SECONDS)


def schema_class() -> Any:
    """`pymilvus.MilvusClient`, which also makes schemas."""
    return require("pymilvus", "milvus").MilvusClient


class Table:
    """A collection whose rows have a text key.

    Args:
        connection: to the server.
        name: of the collection.
        key: name of its primary field, which is text.
    """

    def __init__(self, connection: Connection, name: str, key: str) -> None:
        self._connection = connection
        self.name = name
        self._key = key

    def upsert(self, rows: Sequence[Row], *, at_once: int = _ROWS_AT_ONCE) -> None:
        """Write rows in batches; those that exist are replaced. A batch may fail while those before it stay."""
        for batch in _batches(rows, at_once):
            self._connection.call("upsert", self.name, batch)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete rows; those that do not exist are left alone."""
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            self._connection.call("delete", self.name, filter=one_of(self._key, keys[start : start + _KEYS_AT_ONCE]))

    def get(self, keys: Sequence[str], fields: Sequence[str], *, at_once: int = _KEYS_AT_ONCE) -> dict[str, Row]:
        """Rows by key; those that do not exist are left out."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, Row] = {}
        step = min(at_once, _KEYS_AT_ONCE)
        for start in range(0, len(wanted), step):
            part = wanted[start : start + step]
            rows = self._query(one_of(self._key, part), [self._key, *fields], limit=len(part))
            found.update((row[self._key], row) for row in rows)
        return found

    def page(self, fields: Sequence[str], *, where: str = "", after: str | None = None, limit: int) -> list[Row]:
        """At most `limit` rows (no more than `LARGEST_ANSWER`) that fulfil an expression, in the order of the key."""
        expression = all_of(f"{self._key} > {literal(after)}" if after is not None else "", where)
        # As an iterator's request, the limit cuts in the order of the key, not where a segment happens to end.
        rows = self._query(expression, [self._key, *fields], limit=limit, iterator="True", reduce_stop_for_best="True")
        return sorted(rows, key=lambda row: str(row[self._key]))

    def pages(self, fields: Sequence[str], *, where: str = "", size: int = LARGEST_ANSWER) -> Iterator[list[Row]]:
        """All rows that fulfil an expression, in the order of the key, `size` at a time."""
        after: str | None = None
        while rows := self.page(fields, where=where, after=after, limit=size):
            yield rows
            if len(rows) < size:
                return
            after = rows[-1][self._key]

    def count(self) -> int:
        """How many rows there are."""
        return int(self._query("", ["count(*)"])[0]["count(*)"])

    def _query(self, expression: str, fields: Sequence[str], **options: Any) -> list[Row]:
        answer = self._connection.call(
            "query",
            self.name,
            filter=expression,
            output_fields=list(fields),
            consistency_level="Strong",
            **options,
        )
        return list(answer)


def _batches(rows: Sequence[Row], at_once: int) -> Iterator[list[Row]]:
    """Rows in parts that a message can carry."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        weight = sum(_weight(value) for value in row.values())
        if batch and (len(batch) >= at_once or size + weight > _BYTES_AT_ONCE):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += weight
    if batch:
        yield batch


def _weight(value: Any) -> int:
    """About how many bytes a value takes."""
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(len(key) + _weight(part) for key, part in value.items())
    return 4 * len(value) if isinstance(value, str) else 8
