"""Very many items, written with few questions: classes are asked for once, and originals only if there are any.

A message carries as many rows as it may. Nothing is sealed before the end, when Milvus is told to: it then builds its
index over whole segments.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearkin.gallery.milvus import items
from nearkin.gallery.milvus.connection import Connection
from nearkin.gallery.milvus.documents import Documents
from nearkin.gallery.milvus.head import Head
from nearkin.gallery.milvus.table import Table
from nearkin.gallery.milvus.writing import rows_of, write
from nearkin.gallery.store import Record

_ROWS_AT_ONCE = 10_000
_FLUSH_SECONDS = 300.0


class Loading:
    """A load under way.

    Args:
        connection: to the server.
        documents: what the gallery keeps beside its items.
        head: what the gallery is.
    """

    def __init__(self, connection: Connection, documents: Documents, head: Head) -> None:
        self._connection = connection
        self._documents = documents
        self._head = head
        self._table = Table(connection, head.collection, "id")
        self._classes = set(documents.classes())
        self._plain = not documents.has_parts()

    def write(self, records: Sequence[Record], vectors: np.ndarray) -> None:
        """Add items with vectors float32 (n, d); ids that exist are replaced."""
        if not records:
            return
        settings, partition = self._head.settings, self._head.layout.partition
        points = items.checked_vectors(vectors, len(records), settings.dimension)
        encoded = items.encode(points, settings, lite=self._connection.lite)
        if not self._plain or any(record.original is not None for record in records):
            self._plain = False
            write(self._table, self._documents, records, encoded, partition)
            return
        rows = rows_of(records, encoded, partition)
        labels = {record.label for record in records if record.label is not None}
        if not labels <= self._classes:
            self._documents.add_classes(record.label for record in records if record.label is not None)
            self._classes |= labels
        self._table.upsert(rows, at_once=_ROWS_AT_ONCE)
        self._documents.count(len(rows))

    def finish(self) -> None:
        """Have everything sealed."""
        self._connection.call("flush", self._table.name, timeout=_FLUSH_SECONDS)
