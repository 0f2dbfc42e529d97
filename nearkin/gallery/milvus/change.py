"""Writes to a gallery in Milvus, in an order that leaves no item half done: its head, items, bulk loads, new vectors.

The head says which collection holds the items, and the version of both. New vectors fill a second collection beside
the first; then the head points to it. A bulk load asks for classes once, sends as many rows in a message as it may,
and seals nothing before the end.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nearkin.errors import DataError, StorageError
from nearkin.gallery.checks import check_distinct, check_vectors
from nearkin.gallery.dtypes import check_dtype
from nearkin.gallery.layout import Layout
from nearkin.gallery.milvus import collection, items
from nearkin.gallery.milvus.collection import Collection, Documents, MilvusRow
from nearkin.gallery.milvus.connection import Connection, MissingCollectionError
from nearkin.gallery.milvus.layout import check_layout, index_parameters, metric_of
from nearkin.gallery.store import Load, Record
from nearkin.gallery.values import Settings

SCHEMA_VERSION = 2
"""A gallery without partitions says 1, so that a nearkin that knows none can read it."""

_LARGEST_DIMENSION = 32_768


@dataclass(frozen=True)
class GalleryHead:
    """What a gallery is.

    Attributes:
        settings: what the vectors are.
        collection: where the items are; it changes when all vectors are replaced.
        layout: by which index they are searched, and how they are partitioned.
    """

    settings: Settings
    collection: str
    layout: Layout = field(default_factory=Layout)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, with the version."""
        return {
            "schema": 1 if self.layout.partition is None else SCHEMA_VERSION,
            "settings": self.settings.to_dict(),
            "collection": self.collection,
            "layout": self.layout.to_dict(),
        }


def check_settings(settings: Settings) -> None:
    """Raise DataError unless Milvus can keep and search such vectors."""
    metric_of(settings)
    check_dtype(settings.dtype, settings.space)
    if not 1 <= settings.dimension <= _LARGEST_DIMENSION:
        raise DataError(f"Milvus keeps vectors of 1 to {_LARGEST_DIMENSION:,} dimensions, not {settings.dimension:,}.")


def documents_name(gallery: str) -> str:
    """The collection of a gallery's documents."""
    return f"{gallery}__notes"


def items_prefix(gallery: str) -> str:
    """How the names of a gallery's collections of items begin."""
    return f"{gallery}__items_"


def make_documents(connection: Connection, documents: Documents) -> None:
    """Make the collection beside the items, or take over one that was never finished."""
    if documents.usable():
        if documents.head() is not None:
            shown = connection.address.shown
            raise StorageError(f"There is a gallery at {shown} already: open it, or use another name.")
        return
    if documents.exists():
        connection.call("drop_collection", documents.name)
    documents.make()


def make_items(connection: Connection, settings: Settings, layout: Layout) -> GalleryHead:
    """Make an empty collection of items; nobody knows of it until the head is written."""
    check_layout(layout, settings, lite=connection.lite)
    name = items_prefix(connection.address.collection) + secrets.token_hex(4)
    schema = items.schema(settings, lite=connection.lite, partition=layout.partition)
    index = index_parameters(layout, settings, lite=connection.lite)
    collection.make_collection(connection, name, schema, "vector", index, partitions=layout.partitions)
    return GalleryHead(settings, name, layout)


def read_head(connection: Connection, documents: Documents) -> GalleryHead:
    """What the gallery at this address is.

    Raises:
        StorageError: there is none, or it is of another version.
    """
    shown = connection.address.shown
    if not documents.exists():
        raise StorageError(f"There is no gallery at {shown}: create it first, or check the name of the collection.")
    plain = documents.head() if documents.usable() else None
    if plain is None:
        raise StorageError(f"The gallery at {shown} was never finished: create it again.")
    if plain.get("schema") not in range(1, SCHEMA_VERSION + 1):
        raise StorageError(
            f"The gallery at {shown} has schema version {plain.get('schema')}, and this version of nearkin reads "
            f"up to {SCHEMA_VERSION}: use the version of nearkin that made it."
        )
    layout = Layout.from_dict(plain.get("layout", {}))
    head = GalleryHead(Settings.from_dict(plain["settings"]), str(plain["collection"]), layout)
    try:
        described = connection.call("describe_collection", head.collection)
    except MissingCollectionError as error:
        raise StorageError(f"The items of the gallery at {shown} are gone: restore '{head.collection}'.") from error
    sizes = [field["params"].get("dim") for field in described["fields"] if field["name"] == "vector"]
    if not sizes or int(sizes[0]) != head.settings.dimension:
        raise StorageError(
            f"The collection '{head.collection}' at {shown} has vectors of {sizes[0] if sizes else 'no'} dimensions "
            f"and not of {head.settings.dimension}: it is not the one that this gallery made."
        )
    collection.load_collection(connection, head.collection)
    return head


VectorBatches = Iterator[tuple[list[str], np.ndarray]]


def replace_vectors(
    connection: Connection,
    documents: Documents,
    head: GalleryHead,
    settings: Settings,
    batches: VectorBatches,
    drop: Sequence[str],
) -> GalleryHead:
    """Fill a new collection and point the head to it; the old collection is dropped.

    Returns:
        The new head.

    Raises:
        DataError: an item has no new vector, or two, or a vector is of no item; nothing has changed then.
    """
    drop_others(connection, head)
    documents.forget_notes(head.collection)
    old = Collection(connection, head.collection, "id")
    made = make_items(connection, settings, head.layout)
    try:
        moved = _fill(old, Collection(connection, made.collection, "id"), made, batches, connection.lite)
        dropped = old.get(drop, ["original"])
        _check_complete(old, moved, set(dropped))
    except BaseException:
        _drop_quietly(connection, made.collection)
        raise
    # Before the change, not after it: a generation without a change is harmless, the reverse is not.
    documents.count(len(moved) + len(dropped))
    # If only the answer to this is lost, the new collection is the one that counts: nothing may be dropped then.
    documents.set_head(made.to_dict())
    documents.forget_notes(made.collection)
    documents.drop_parts([(owner(id), row["original"]) for id, row in dropped.items() if row["original"]])
    _drop_quietly(connection, head.collection)
    return made


def drop_others(connection: Connection, head: GalleryHead | None) -> None:
    """Drop collections of items that the head does not point to."""
    mine = re.compile(re.escape(items_prefix(connection.address.collection)) + "[0-9a-f]{8}")
    for name in connection.call("list_collections"):
        if mine.fullmatch(name) and (head is None or name != head.collection):
            connection.call("drop_collection", name)


def owner(id: str) -> str:
    """Under which name the parts of an item's original are kept."""
    return f"item:{id}"


def _fill(old: Collection, new: Collection, made: GalleryHead, batches: VectorBatches, lite: bool) -> set[str]:
    """Copy items with their new vectors; their ids."""
    moved: set[str] = set()
    fields = [field for field in items.ALL_FIELDS if field != "vector"]
    for ids, vectors in batches:
        given = check_vectors(vectors, len(ids), made.settings.dimension)
        points = items.encode(given, made.settings, lite=lite)
        for start in range(0, len(ids), items.WHOLE_ROWS):
            part = ids[start : start + items.WHOLE_ROWS]
            known, rows = old.get(part, fields), []
            for at, id in enumerate(part, start):
                if id in moved:
                    raise DataError(f"Item '{id}' was given two new vectors: give one.")
                if id not in known:
                    raise _no_item(id)
                moved.add(id)
                rows.append(items.shelved({**known[id], "vector": points[at]}, made.layout.partition))
            new.upsert(rows)
    return moved


def _check_complete(old: Collection, moved: set[str], dropped: set[str]) -> None:
    """Raise unless every item was either moved or dropped."""
    if moved & dropped:
        raise _no_item(min(moved & dropped))
    done = moved | dropped
    if old.count() != len(done):
        for row in (row for page in old.pages([]) for row in page if row["id"] not in done):
            raise DataError(f"Item '{row['id']}' has no new vector: give one, or drop the item.")


def _no_item(id: str) -> DataError:
    return DataError(f"You passed a new vector for '{id}', which is not in the gallery, or is being dropped.")


def _drop_quietly(connection: Connection, name: str) -> None:
    """Drop a collection; if that fails the next rebuild does it."""
    with suppress(StorageError):
        connection.call("drop_collection", name)


def write(
    table: Collection, documents: Documents, records: Sequence[Record], vectors: np.ndarray, partition: str | None
) -> None:
    """Add records with their encoded vectors (n, d), or replace those of the same ids.

    `partition` is the metadata key that partitions go by, if they do.

    Raises:
        DataError: an id comes twice, or something does not fit; nothing is written then.
    """
    rows = rows_of(records, vectors, partition)
    before = table.get([record.id for record in records], ["original"])
    kept = {record.id: items.to_text(record.original) for record in records if record.original is not None}
    tokens = dict(zip(kept, documents.put_parts([(owner(id), text) for id, text in kept.items()]), strict=True))
    rows = [{**row, "original": tokens.get(row["id"])} for row in rows]
    documents.add_classes(record.label for record in records if record.label is not None)
    table.upsert(rows)
    documents.count(len(rows))
    _forget(documents, before, {row["id"]: row["original"] for row in rows})


def rows_of(records: Sequence[Record], vectors: np.ndarray, partition: str | None) -> list[MilvusRow]:
    """Records with their encoded vectors (n, d) as rows, without originals.

    Raises:
        DataError: an id comes twice, or something does not fit.
    """
    check_distinct([record.id for record in records])
    made = (items.to_row(record, vector) for record, vector in zip(records, vectors, strict=True))
    return [items.shelved(row, partition) for row in made]


def remove(table: Collection, documents: Documents, ids: Sequence[str]) -> int:
    """Remove items; how many there were."""
    before = table.get(ids, ["original"])
    if before:
        table.delete(list(before))
        documents.count(len(before))
        _forget(documents, before, {})
    return len(before)


def update(
    table: Collection, documents: Documents, ids: Sequence[str], label: Any, metadata: Any, partition: str | None
) -> int:
    """Give items another label or other metadata, unless these are `...`; how many there were."""
    wanted = list(dict.fromkeys(ids))
    done = 0
    for start in range(0, len(wanted), items.WHOLE_ROWS):
        found = table.get(wanted[start : start + items.WHOLE_ROWS], items.ALL_FIELDS)
        changed = [items.shelved(_changed(row, label, metadata), partition) for row in found.values()]
        if changed and not done and label is not ... and label is not None:
            documents.add_classes([label])
        table.upsert(changed)
        done += len(changed)
    if done:
        documents.count(done if label is not ... else 0)
    return done


def _changed(row: MilvusRow, label: Any, metadata: Any) -> MilvusRow:
    """A whole row with another label or other metadata."""
    label, metadata = row["label"] if label is ... else label, row["metadata"] if metadata is ... else metadata
    record = Record(row["id"], label, metadata, row["source"], row["added"])
    return {**row, **items.described(record), "vector": items.plain(row["vector"])}


def _forget(documents: Documents, before: dict[str, MilvusRow], now: dict[str, str | None]) -> None:
    """Drop the originals of rows that have another one now, or none."""
    old = [(owner(id), row["original"]) for id, row in before.items() if row["original"] not in (None, now.get(id))]
    documents.drop_parts(old)


_ROWS_AT_ONCE = 10_000
_FLUSH_SECONDS = 300.0


@contextmanager
def bulk_load(connection: Connection, documents: Documents, head: GalleryHead) -> Iterator[Load]:
    """A way to write very many items, batch after batch, that asks less than `write`; all is sealed at the end."""
    table, settings, partition = Collection(connection, head.collection, "id"), head.settings, head.layout.partition
    classes, plain = set(documents.classes()), not documents.has_parts()

    def load(records: Sequence[Record], vectors: np.ndarray) -> None:
        nonlocal classes, plain
        if not records:
            return
        points = check_vectors(vectors, len(records), settings.dimension)
        encoded = items.encode(points, settings, lite=connection.lite)
        plain = plain and all(record.original is None for record in records)
        if not plain:
            write(table, documents, records, encoded, partition)
            return
        rows = rows_of(records, encoded, partition)
        labels = [record.label for record in records if record.label is not None]
        if not classes.issuperset(labels):
            documents.add_classes(labels)
            classes |= set(labels)
        table.upsert(rows, at_once=_ROWS_AT_ONCE)
        documents.count(len(rows))

    yield load
    connection.call("flush", table.name, timeout=_FLUSH_SECONDS)
