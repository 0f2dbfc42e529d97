"""An item as a row of Milvus, and back."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nearkin.errors import DataError, require
from nearkin.gallery.dtypes import halves, quantised, rounded
from nearkin.gallery.milvus.collection import LARGEST_ANSWER, TEXT_BYTES, MilvusRow, schema_class
from nearkin.gallery.milvus.filter import PARTITION_FIELD, facts
from nearkin.gallery.store import Record
from nearkin.gallery.values import Item, Settings

ID_BYTES = 1_024
LABEL_BYTES = 8_192
SOURCE_BYTES = 8_192
THUMBNAIL_BYTES = TEXT_BYTES // 4 * 3
"""The largest thumbnail: it is kept as base64 in a text field."""

PARTITION_BYTES = 1_024
"""The longest value of a partition key."""

_JSON_BYTES = 65_000
_VALUES_AT_ONCE = 2**21
_ITEM_FIELDS = ("label", "metadata", "source", "added", "pictured")

WHOLE_ROWS = 256
"""How many rows with all their fields one message carries, each of them at its largest."""

ITEM_FIELDS = list(_ITEM_FIELDS)
"""Fields that make an `Item`, beside the id."""

ALL_FIELDS = [*_ITEM_FIELDS, "facts", "thumbnail", "original", "vector"]
"""All fields beside the id."""


def schema(settings: Settings, *, lite: bool, partition: str | None = None) -> Any:
    """The schema of a collection of items, with a field to sort them into partitions by if they have a key for that.

    Milvus Lite has neither float16 nor int8: rounded values are float32 there.
    """
    kinds = require("pymilvus", "milvus").DataType
    made = schema_class().create_schema(auto_id=False, enable_dynamic_field=False)
    made.add_field("id", kinds.VARCHAR, is_primary=True, max_length=ID_BYTES)
    made.add_field("label", kinds.VARCHAR, max_length=LABEL_BYTES, nullable=True)
    made.add_field("metadata", kinds.JSON)
    made.add_field("facts", kinds.JSON)
    made.add_field("source", kinds.VARCHAR, max_length=SOURCE_BYTES, nullable=True)
    made.add_field("added", kinds.VARCHAR, max_length=64)
    made.add_field("pictured", kinds.BOOL)
    made.add_field("thumbnail", kinds.VARCHAR, max_length=TEXT_BYTES, nullable=True)
    made.add_field("original", kinds.VARCHAR, max_length=128, nullable=True)
    if partition is not None:
        made.add_field(PARTITION_FIELD, kinds.VARCHAR, max_length=PARTITION_BYTES, is_partition_key=True)
    narrow = {"float16": "FLOAT16_VECTOR", "int8": "INT8_VECTOR"}
    kind = "FLOAT_VECTOR" if lite else narrow.get(settings.dtype, "FLOAT_VECTOR")
    made.add_field("vector", getattr(kinds, kind), dim=settings.dimension)
    return made


def to_row(record: Record, vector: np.ndarray) -> MilvusRow:
    """A record with its encoded vector as a row; its original is kept elsewhere.

    Raises:
        DataError: something does not fit into a field of Milvus.
    """
    _fits("id", record.id, record.id, ID_BYTES)
    if not record.id:
        raise DataError("An item must have an id that is not empty.")
    _fits("source", record.id, record.source, SOURCE_BYTES)
    _fits("time", record.id, record.added, 64)
    if record.thumbnail is not None and len(record.thumbnail) > THUMBNAIL_BYTES:
        raise DataError(
            f"The thumbnail of item '{record.id}' has {len(record.thumbnail):,} bytes; Milvus keeps at most "
            f"{THUMBNAIL_BYTES:,}."
        )
    return {
        "id": record.id,
        **described(record),
        "source": record.source,
        "added": record.added,
        "pictured": record.thumbnail is not None,
        "thumbnail": None if record.thumbnail is None else to_text(record.thumbnail),
        "original": None,
        "vector": vector,
    }


def to_item(row: MilvusRow) -> Item:
    """The item of a row with `ITEM_FIELDS`."""
    return Item(row["id"], row["label"], dict(row["metadata"]), row["source"], row["added"], bool(row["pictured"]))


def to_text(content: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(content).decode()


def from_text(text: str) -> bytes:
    """The inverse of `to_text`."""
    return base64.b64decode(text)


def at_once(dimension: int) -> int:
    """How many vectors one answer carries."""
    return max(1, min(LARGEST_ANSWER, _VALUES_AT_ONCE // dimension))


def encode(vectors: np.ndarray, settings: Settings, *, lite: bool) -> np.ndarray:
    """Vectors (n, d) as they are stored, and as a server wants queries: int8 without scale, since only angles count.

    Raises:
        DataError: a value is too large for half precision.
    """
    if lite:
        return rounded(vectors, settings.dtype)
    if settings.dtype == "int8":
        return quantised(vectors)[1]
    return halves(vectors) if settings.dtype == "float16" else vectors


def decode(stored: Sequence[Any], settings: Settings) -> np.ndarray:
    """Vectors float32 (n, d) of what Milvus gives back: lists of numbers, or the bytes of halves or of int8.

    Of int8 a server keeps the direction alone, which comes back with length one.
    """
    if not len(stored):
        return np.zeros((0, settings.dimension), np.float32)
    if not isinstance(plain(stored[0]), bytes):
        return np.asarray(stored, np.float32)
    kind = np.float16 if settings.dtype == "float16" else np.int8
    vectors = np.stack([np.frombuffer(plain(one), kind) for one in stored]).astype(np.float32)
    if settings.dtype == "int8":
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors /= np.where(lengths == 0, 1, lengths)
    return vectors


def described(record: Record) -> MilvusRow:
    """Label and metadata, and the facts of a record that conditions ask for.

    Raises:
        DataError: a key is no text, a value is not text, a finite number, a truth value or None, or it is too much.
    """
    _fits("label", record.id, record.label, LABEL_BYTES)
    for key, value in record.metadata.items():
        finite = isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
        if not isinstance(key, str) or not (value is None or finite):
            told = f"The metadata '{key}' of item '{record.id}' is {value!r}"[:300]
            raise DataError(f"{told}: use text, finite numbers, true, false or None.")
    made = {"metadata": dict(record.metadata), "facts": facts(record)}
    size = max(len(json.dumps(part, ensure_ascii=False).encode("utf-8", "replace")) for part in made.values())
    if size > _JSON_BYTES:
        raise DataError(
            f"The metadata of item '{record.id}' take {size:,} bytes with what is kept to search them; Milvus keeps at "
            f"most {_JSON_BYTES:,}."
        )
    return {"label": record.label, **made}


def shelved(row: MilvusRow, partition: str | None) -> MilvusRow:
    """A row with what sorts it into a partition: the value of a metadata key, if the gallery goes by one.

    Raises:
        DataError: the item has no such value, or it is no text.
    """
    if partition is None:
        return row
    value = row["metadata"].get(partition)
    if not isinstance(value, str) or not value:
        told = "has none" if value is None else f"has {str(value)[:40]!r}"
        raise DataError(
            f"The gallery is partitioned by '{partition}', and the item '{row['id']}' {told}: give every item a text "
            "there."
        )
    _fits(f"partition '{partition}'", row["id"], value, PARTITION_BYTES)
    return {**row, PARTITION_FIELD: value}


def plain(stored: Any) -> Any:
    """A vector as Milvus gives it and takes it; halves and int8 come as a list of one bytes object."""
    return stored[0] if isinstance(stored, list) and stored and isinstance(stored[0], bytes) else stored


def _fits(what: str, id: str, text: str | None, limit: int) -> None:
    if text is not None and not isinstance(text, str):
        raise DataError(f"The {what} of item {id!r} must be text, not {type(text).__name__}.")
    try:
        size = len((text or "").encode())
    except UnicodeEncodeError as error:
        raise DataError(f"The {what} of item {id!r} holds half a character, which is no valid text.") from error
    if size > limit:
        raise DataError(f"The {what} of item '{id[:50]}' takes {size:,} bytes; Milvus keeps at most {limit:,}.")
