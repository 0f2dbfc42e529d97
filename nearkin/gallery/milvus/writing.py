"""Writing items, in an order that leaves no item half done.

First the parts of its original, then its class, then the item itself in one row, then the counters; last of all what it
replaced is forgotten. Cut off anywhere, the same call again completes it; at worst some parts stay that nobody needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.gallery.milvus import items
from nearkin.gallery.milvus.documents import Documents
from nearkin.gallery.milvus.rebuild import owner
from nearkin.gallery.milvus.table import Row, Table
from nearkin.gallery.store import Record


def write(
    table: Table, documents: Documents, records: Sequence[Record], vectors: np.ndarray, partition: str | None
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


def rows_of(records: Sequence[Record], vectors: np.ndarray, partition: str | None) -> list[Row]:
    """Records with their encoded vectors (n, d) as rows, without originals.

    Raises:
        DataError: an id comes twice, or something does not fit.
    """
    [(commonest, times)] = Counter(record.id for record in records).most_common(1)
    if times > 1:
        raise DataError(f"Item '{commonest}' comes {times} times: give every item an id of its own.")
    made = (items.to_row(record, vector) for record, vector in zip(records, vectors, strict=True))
    return [items.shelved(row, partition) for row in made]


def remove(table: Table, documents: Documents, ids: Sequence[str]) -> int:
    """Remove items; how many there were."""
    before = table.get(ids, ["original"])
    if before:
        table.delete(list(before))
        documents.count(len(before))
        _forget(documents, before, {})
    return len(before)


def update(
    table: Table, documents: Documents, ids: Sequence[str], label: Any, metadata: Any, partition: str | None
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


def _changed(row: Row, label: Any, metadata: Any) -> Row:
    """A whole row with another label or other metadata."""
    record = Record(
        row["id"],
        row["label"] if label is ... else label,
        row["metadata"] if metadata is ... else metadata,
        row["source"],
        row["added"],
    )
    return {**row, **items.described(record), "vector": items.plain(row["vector"])}


def _forget(documents: Documents, before: dict[str, Row], now: dict[str, str | None]) -> None:
    """Drop the originals of rows that have another one now, or none."""
    old = [(owner(id), row["original"]) for id, row in before.items() if row["original"] not in (None, now.get(id))]
    documents.drop_parts(old)
