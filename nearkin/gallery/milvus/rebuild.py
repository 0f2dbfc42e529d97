"""New vectors for all items: a second collection is filled beside the first, then the head points to it.

The head is one row, so the moment in which it is written is the moment in which everybody changes over. Notes are about
a collection of items, so those about the old one are gone with it. What a rebuild that was cut off left behind is
dropped by the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from nearkin.errors import DataError, StorageError
from nearkin.gallery.milvus import items
from nearkin.gallery.milvus.connection import Connection
from nearkin.gallery.milvus.documents import Documents
from nearkin.gallery.milvus.head import Head, items_prefix, make_items
from nearkin.gallery.milvus.table import Table
from nearkin.gallery.values import Settings

Batches = Iterator[tuple[list[str], np.ndarray]]


def replace_vectors(
    connection: Connection, documents: Documents, head: Head, settings: Settings, batches: Batches, drop: Sequence[str]
) -> Head:
    """Fill a new collection and point the head to it; the old collection is dropped.

    Returns:
        The new head.

    Raises:
        DataError: an item has no new vector, or two, or a vector is of no item; nothing has changed then.
    """
    drop_others(connection, head)
    documents.forget_notes(head.collection)
    old = Table(connection, head.collection, "id")
    made = make_items(connection, settings, head.layout)
    try:
        moved = _fill(old, Table(connection, made.collection, "id"), made, batches, connection.lite)
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


def drop_others(connection: Connection, head: Head | None) -> None:
    """Drop collections of items that the head does not point to."""
    mine = re.compile(re.escape(items_prefix(connection.address.collection)) + "[0-9a-f]{8}")
    for name in connection.call("list_collections"):
        if mine.fullmatch(name) and (head is None or name != head.collection):
            connection.call("drop_collection", name)


def owner(id: str) -> str:
    """Under which name the parts of an item's original are kept."""
    return f"item:{id}"


def _fill(old: Table, new: Table, made: Head, batches: Batches, lite: bool) -> set[str]:
    """Copy items with their new vectors; their ids."""
    moved: set[str] = set()
    fields = [field for field in items.ALL_FIELDS if field != "vector"]
    for ids, vectors in batches:
        given = items.checked_vectors(vectors, len(ids), made.settings.dimension)
        points = items.encode(given, made.settings, lite=lite)
        for start in range(0, len(ids), items.WHOLE_ROWS):
            part = ids[start : start + items.WHOLE_ROWS]
            known = old.get(part, fields)
            for id in part:
                if id in moved:
                    raise DataError(f"Item '{id}' was given two new vectors: give one.")
                if id not in known:
                    raise _no_item(id)
                moved.add(id)
            whole = [{**known[id], "vector": points[start + at]} for at, id in enumerate(part)]
            new.upsert([items.shelved(row, made.layout.partition) for row in whole])
    return moved


def _check_complete(old: Table, moved: set[str], dropped: set[str]) -> None:
    """Raise unless every item was either moved or dropped."""
    if moved & dropped:
        raise _no_item(min(moved & dropped))
    done = moved | dropped
    if old.count() == len(done):
        return
    for page in old.pages([]):
        for row in page:
            if row["id"] not in done:
                raise DataError(f"Item '{row['id']}' has no new vector: give one, or drop the item.")


def _no_item(id: str) -> DataError:
    return DataError(f"There is a new vector of '{id}', which is no item that stays.")


def _drop_quietly(connection: Connection, name: str) -> None:
    """Drop a collection; if that fails the next rebuild does it."""
    try:
        connection.call("drop_collection", name)
    except StorageError:
        return
