"""What a gallery keeps beside its items: settings, counters, classes, notes, and the bytes of originals.

All of it is rows of text under a key in one small collection. Text that is longer than a field is kept in parts, which
are written before the row that tells of them, so that a reader never finds it half there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from nearkin.errors import DataError, require
from nearkin.gallery.milvus import table
from nearkin.gallery.milvus.connection import Connection
from nearkin.gallery.milvus.table import Row, Table

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
        self._table = Table(connection, name, "key")

    def make(self) -> None:
        """Make the collection."""
        kinds = require("pymilvus", "milvus").DataType
        schema = table.schema_class().create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", kinds.VARCHAR, is_primary=True, max_length=_KEY_BYTES)
        schema.add_field("kind", kinds.VARCHAR, max_length=16)
        schema.add_field("number", kinds.INT64)
        schema.add_field("text", kinds.VARCHAR, max_length=table.TEXT_BYTES)
        schema.add_field("nowhere", kinds.FLOAT_VECTOR, dim=2)  # Milvus has no collection without vectors.
        kind = "FLAT" if self._connection.lite else "AUTOINDEX"
        table.make(self._connection, self.name, schema, "nowhere", {"index_type": kind, "metric_type": "L2"})

    def exists(self) -> bool:
        """Whether there is such a collection."""
        return bool(self._connection.call("has_collection", self.name))

    def usable(self) -> bool:
        """Whether the collection was made to the end; it is then ready to be read."""
        if not self.exists() or not self._connection.call("list_indexes", self.name):
            return False
        table.load(self._connection, self.name)
        return True

    def head(self) -> dict[str, Any] | None:
        """What the gallery is and which collection its items are in; None if it was never finished."""
        made: dict[str, Any] | None = self._read(_HEAD)
        return made

    def set_head(self, head: dict[str, Any]) -> None:
        """Say what the gallery is: one row, so it is said in one moment."""
        self._table.upsert([_row(_HEAD, "head", text=_json(head))])

    def counters(self) -> tuple[int, int]:
        """Generation and changes."""
        found = self._read(_COUNTERS) or {"generation": 0, "changes": 0}
        return int(found["generation"]), int(found["changes"])

    def count(self, changes: int) -> None:
        """One more generation, with so many items changed."""
        generation, before = self.counters()
        text = _json({"generation": generation + 1, "changes": before + changes})
        self._table.upsert([_row(_COUNTERS, "counters", text=text)])

    def classes(self) -> list[str]:
        """Names of the classes in the order they came."""
        rows = [row for page in self._table.pages(["number", "text"], where='kind == "class"') for row in page]
        # Two writers may have given two new classes one number; the name then decides for everybody alike.
        return [row["text"] for row in sorted(rows, key=lambda row: (row["number"], row["text"]))]

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
            text = _json(value)
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


def _row(key: str, kind: str, number: int = 0, text: str = "") -> Row:
    return {"key": key, "kind": kind, "number": number, "text": text, "nowhere": [0.0, 0.0]}


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _note_prefix(about: str) -> str:
    return f"note:{_hash(about)}:"


def _note_key(about: str, name: str) -> str:
    return _note_prefix(about) + _hash(name)


def _part_keys(owner: str, token: str) -> list[str]:
    return [f"part:{_hash(owner)}:{token}:{at}" for at in range(int(token.partition(":")[0]))]
