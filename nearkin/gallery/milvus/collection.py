"""Milvus collections of rows with a text key, and the one that holds what a gallery keeps beside its items.

Beside the items are settings, counters, classes and their codes, notes, and the bytes of originals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nearkin.errors import DataError, StorageError, require
from nearkin.gallery.milvus.connection import Connection
from nearkin.gallery.milvus.filter import all_of, literal, one_of
from nearkin.gallery.store import ABSENT, UNLABELLED

LARGEST_ANSWER = 16_384
"""Rows that Milvus gives in one answer."""

TEXT_BYTES = 65_535
"""What a text field of Milvus holds."""

_KEYS_AT_ONCE = 1_000
_ROWS_AT_ONCE = 1_000
_BYTES_AT_ONCE = 8 * 2**20
_LOAD_SECONDS = 300.0

MilvusRow = dict[str, Any]


def make_collection(
    connection: Connection, name: str, schema: Any, vector: str, index: MilvusRow, *, partitions: int = 0
) -> None:
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
    build_index(connection, name, vector, index)
    load_collection(connection, name)


def build_index(connection: Connection, name: str, vector: str, index: MilvusRow) -> None:
    """Have an index built; that of an empty collection is there at once, and waiting for it would only sleep."""
    indexes = schema_class().prepare_index_params()
    indexes.add_index(field_name=vector, **index)
    connection.call("create_index", name, indexes, sync=False)


def rebuild_index(connection: Connection, name: str, vector: str, index: MilvusRow) -> None:
    """Put another index in the place of one; meanwhile the collection is not there to be searched."""
    connection.call("release_collection", name, timeout=_LOAD_SECONDS)
    for old in connection.call("list_indexes", name):
        connection.call("drop_index", name, old)
    build_index(connection, name, vector, index)
    load_collection(connection, name)


def load_collection(connection: Connection, name: str) -> None:
    """Have a collection ready to be read, which may take a while for a large one that was put away."""
    connection.call("load_collection", name, timeout=_LOAD_SECONDS)


def schema_class() -> Any:
    """`pymilvus.MilvusClient`, which also makes schemas."""
    return require("pymilvus", "milvus").MilvusClient


class Collection:
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

    def upsert(self, rows: Sequence[MilvusRow], *, at_once: int = _ROWS_AT_ONCE) -> None:
        """Write rows in batches; those that exist are replaced. A batch may fail while those before it stay."""
        for batch in _batches(rows, at_once):
            self._connection.call("upsert", self.name, batch)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete rows; those that do not exist are left alone."""
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            self._connection.call("delete", self.name, filter=one_of(self._key, keys[start : start + _KEYS_AT_ONCE]))

    def get(self, keys: Sequence[str], fields: Sequence[str], *, at_once: int = _KEYS_AT_ONCE) -> dict[str, MilvusRow]:
        """Rows by key; those that do not exist are left out."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, MilvusRow] = {}
        step = min(at_once, _KEYS_AT_ONCE)
        for start in range(0, len(wanted), step):
            part = wanted[start : start + step]
            rows = self._query(one_of(self._key, part), [self._key, *fields], limit=len(part))
            found.update((row[self._key], row) for row in rows)
        return found

    def page(self, fields: Sequence[str], *, where: str = "", after: str | None = None, limit: int) -> list[MilvusRow]:
        """At most `limit` rows (no more than `LARGEST_ANSWER`) that fulfil an expression, in the order of the key."""
        expression = all_of(f"{self._key} > {literal(after)}" if after is not None else "", where)
        # As an iterator's request, the limit cuts in the order of the key, not where a segment happens to end.
        rows = self._query(expression, [self._key, *fields], limit=limit, iterator="True", reduce_stop_for_best="True")
        return sorted(rows, key=lambda row: str(row[self._key]))

    def pages(
        self, fields: Sequence[str], *, where: str = "", after: str | None = None, size: int = LARGEST_ANSWER
    ) -> Iterator[list[MilvusRow]]:
        """All rows that fulfil an expression, those after a key, in the order of the key, `size` at a time."""
        while rows := self.page(fields, where=where, after=after, limit=size):
            yield rows
            if len(rows) < size:
                return
            after = rows[-1][self._key]

    def count(self) -> int:
        """How many rows there are."""
        return int(self._query("", ["count(*)"])[0]["count(*)"])

    def _query(self, expression: str, fields: Sequence[str], **options: Any) -> list[MilvusRow]:
        answer = self._connection.call(
            "query",
            self.name,
            filter=expression,
            output_fields=list(fields),
            consistency_level="Strong",
            **options,
        )
        return list(answer)


def _batches(rows: Sequence[MilvusRow], at_once: int) -> Iterator[list[MilvusRow]]:
    """Rows in parts that a message can carry."""
    batch: list[MilvusRow] = []
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


_KEY_BYTES = 512
# In characters of ASCII, hence of bytes.
_PART = 60_000
_PARTS_AT_ONCE = 64
_HEAD = "head"
_COUNTERS = "counters"


class Documents:
    """The collection beside the items.

    Args:
        connection: to the server.
        name: of the collection.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self.name = name
        self._table = Collection(connection, name, "key")
        self._codes: dict[str, int] = {}

    def make(self) -> None:
        """Make the collection."""
        kinds = require("pymilvus", "milvus").DataType
        schema = schema_class().create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", kinds.VARCHAR, is_primary=True, max_length=_KEY_BYTES)
        schema.add_field("kind", kinds.VARCHAR, max_length=16)
        schema.add_field("number", kinds.INT64)
        schema.add_field("text", kinds.VARCHAR, max_length=TEXT_BYTES)
        schema.add_field("nowhere", kinds.FLOAT_VECTOR, dim=2)  # Milvus has no collection without vectors.
        kind = "FLAT" if self._connection.lite else "AUTOINDEX"
        make_collection(self._connection, self.name, schema, "nowhere", {"index_type": kind, "metric_type": "L2"})

    def exists(self) -> bool:
        """Whether there is such a collection."""
        return bool(self._connection.call("has_collection", self.name))

    def usable(self) -> bool:
        """Whether the collection was made to the end; it is then ready to be read."""
        if not self.exists() or not self._connection.call("list_indexes", self.name):
            return False
        load_collection(self._connection, self.name)
        return True

    def head(self) -> dict[str, Any] | None:
        """What the gallery is and which collection its items are in; None if it was never finished."""
        made: dict[str, Any] | None = self._read(_HEAD)
        return made

    def set_head(self, head: dict[str, Any]) -> None:
        """Say what the gallery is: one row, so it is said in one moment."""
        self._table.upsert([_row(_HEAD, "head", text=json.dumps(head, allow_nan=False))])

    def counters(self) -> tuple[int, int]:
        """Generation and changes."""
        found = self._read(_COUNTERS) or {"generation": 0, "changes": 0}
        return int(found["generation"]), int(found["changes"])

    def count(self, changes: int) -> None:
        """One more generation, with so many items changed."""
        generation, before = self.counters()
        text = json.dumps({"generation": generation + 1, "changes": before + changes})
        self._table.upsert([_row(_COUNTERS, "counters", text=text)])

    def classes(self) -> list[str]:
        """Names of the classes in the order they came."""
        rows = [row for page in self._table.pages(["number", "text"], where='kind == "class"') for row in page]
        # Two writers may have given two new classes one number; the name then decides for everybody alike.
        names = [row["text"] for row in sorted(rows, key=lambda row: (row["number"], row["text"]))]
        self._codes = {name: code for code, name in enumerate(names)}
        return names

    def codes(self, labels: np.ndarray, *, present: np.ndarray) -> np.ndarray:
        """Codes int32 of labels, objects of any shape; `UNLABELLED` for None, `ABSENT` where nothing is present."""
        wanted = set(labels.ravel().tolist()) - {None}
        if not wanted <= self._codes.keys():
            self.classes()
        unknown = next(iter(wanted - self._codes.keys()), None)
        if unknown is not None:
            raise StorageError(f"The class '{unknown}' of an item is not in the gallery's table: write the item again.")
        found = [UNLABELLED if label is None else self._codes[label] for label in labels.ravel()]
        codes = np.array(found, np.int32).reshape(labels.shape)
        return np.where(present, codes, np.int32(ABSENT))

    def add_classes(self, names: Iterable[str]) -> None:
        """Keep classes that are new."""
        wanted = dict.fromkeys(names)
        if not wanted:
            return
        known = self.classes()
        there = set(known)
        new = [name for name in wanted if name not in there]
        self._table.upsert([_row(f"class:{_hash(name)}", "class", at, name) for at, name in enumerate(new, len(known))])

    def note(self, about: str, name: str) -> Any:
        """A JSON document about a collection of items; None if there is none, or it is damaged."""
        try:
            return self._read(_note_key(about, name))
        except ValueError:
            return None

    def set_note(self, about: str, name: str, value: Any) -> None:
        """Keep a JSON document about a collection of items, with which it is forgotten.

        Raises:
            DataError: it is no JSON.
        """
        key = _note_key(about, name)
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"The note '{name}' must be of plain JSON values ({error}).") from error
        before = self._table.get([key], ["number", "text"]).get(key)
        if len(text) <= _PART:
            self._table.upsert([_row(key, "note", text=text)])
            token = ""
        else:
            [token] = self.put_parts([(key, text)])
            self._table.upsert([_row(key, "note", number=1, text=token)])
        if before is not None and before["number"] and before["text"] != token:
            self.drop_parts([(key, before["text"])])

    def forget_notes(self, about: str) -> None:
        """Delete notes, all but those about a collection of items."""
        rows = [row for page in self._table.pages(["number", "text"], where='kind == "note"') for row in page]
        gone = [row for row in rows if not row["key"].startswith(_note_prefix(about))]
        self._table.delete([row["key"] for row in gone])
        self.drop_parts([(row["key"], row["text"]) for row in gone if row["number"]])

    def put_parts(self, texts: Sequence[tuple[str, str]]) -> list[str]:
        """Keep long texts in parts, given as pairs of owner and ASCII text.

        Returns:
            For each a token to ask for it with; the same text again has the same token.
        """
        tokens = [f"{-(-len(text) // _PART)}:{_hash(text)}" for _, text in texts]
        self._table.upsert(
            [
                _row(key, "part", at, text[at * _PART : (at + 1) * _PART])
                for (owner, text), token in zip(texts, tokens, strict=True)
                for at, key in enumerate(_part_keys(owner, token))
            ]
        )
        return tokens

    def has_parts(self) -> bool:
        """Whether any long text is kept."""
        return bool(self._table.page([], where='kind == "part"', limit=1))

    def parts(self, owner: str, token: str) -> str | None:
        """Long text by its token; None if parts of it are gone."""
        keys = _part_keys(owner, token)
        found = self._table.get(keys, ["text"], at_once=_PARTS_AT_ONCE)
        return "".join(found[key]["text"] for key in keys) if len(found) == len(keys) else None

    def drop_parts(self, kept: Sequence[tuple[str, str]]) -> None:
        """Forget long texts, given as pairs of owner and token."""
        self._table.delete([key for owner, token in kept for key in _part_keys(owner, token)])

    def _read(self, key: str) -> Any:
        row = self._table.get([key], ["number", "text"]).get(key)
        if row is None:
            return None
        text = self.parts(key, row["text"]) if row["number"] else row["text"]
        return None if text is None else json.loads(text)


def _row(key: str, kind: str, number: int = 0, text: str = "") -> MilvusRow:
    return {"key": key, "kind": kind, "number": number, "text": text, "nowhere": [0.0, 0.0]}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _note_prefix(about: str) -> str:
    return f"note:{_hash(about)}:"


def _note_key(about: str, name: str) -> str:
    return _note_prefix(about) + _hash(name)


def _part_keys(owner: str, token: str) -> list[str]:
    return [f"part:{_hash(owner)}:{token}:{at}" for at in range(int(token.partition(":")[0]))]
