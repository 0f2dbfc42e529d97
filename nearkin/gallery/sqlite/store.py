"""The local store: SQLite for what is kept, memory for what is searched."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.checks import check_whole
from nearkin.errors import DataError, StorageError
from nearkin.gallery.checks import check_vectors
from nearkin.gallery.condition import Condition
from nearkin.gallery.dtypes import check_dtype
from nearkin.gallery.layout import Layout, layout_of
from nearkin.gallery.model import check_space_settings
from nearkin.gallery.places import closing_on_error, size_of
from nearkin.gallery.sqlite import database
from nearkin.gallery.sqlite import rows as items
from nearkin.gallery.sqlite.change import Change, NewVectors, compact
from nearkin.gallery.sqlite.database import GalleryState, read_index, save_meta
from nearkin.gallery.sqlite.mirror import INDEX_KINDS, Mirror, StoredGraph, codes_of, refreshed
from nearkin.gallery.store import ABSENT, UNLABELLED, Found, Load, Record, Sample
from nearkin.gallery.values import Item, Settings
from nearkin.spaces import Space
from nearkin.storage import WriterLock


def check_settings(settings: Settings) -> None:
    """Refuse settings of vectors that cannot be stored."""
    check_dtype(settings.dtype, settings.space)
    check_whole(settings.dimension, "dimension", 1)
    check_space_settings(settings.space)


def check_layout(layout: Layout) -> None:
    """Refuse a layout that a local gallery does not have."""
    if layout.partition is not None:
        raise DataError("A local gallery has no partitions: leave the partition key out, or use Milvus.")
    if layout.index not in INDEX_KINDS:
        raise DataError(f"The index '{layout.index}' needs Milvus: a local gallery has {', '.join(INDEX_KINDS)}.")
    if layout.parameters:
        raise DataError("The index of a local gallery has no parameters to set: leave them out, or use Milvus.")


_PADDED = 1000
"""Neighbours up to which an answer is as wide as was asked for, however few items there are."""


class SqliteStore:
    """A gallery in a directory; many processes may read it while one writes.

    Every call sees what other processes have written. Pages and batches are in the order of ids.
    Use `create` or `open`.

    Args:
        directory: where it is.
        connection: to its database.
        index: how it is searched, "exact", "hnsw" or "auto".
    """

    def __init__(self, directory: Path, connection: sqlite3.Connection, index: str) -> None:
        self._directory = directory
        self._connection: sqlite3.Connection | None = connection
        self._graph = StoredGraph(directory, index)
        self._reading = threading.RLock()
        self._writer = WriterLock(directory)
        self._mirror: Mirror | None = None

    @classmethod
    def create(cls, directory: Path, settings: Settings, *, index: str = "auto") -> SqliteStore:
        """Make an empty gallery in a directory that holds none.

        Raises:
            StorageError: if it holds one, or cannot be written.
            DataError: if the settings cannot be stored.
        """
        directory = Path(directory)
        check_settings(settings)
        check_layout(layout_of(index))
        StoredGraph(directory, index).check(settings)
        with database.meaningful(directory):
            connection = database.create(directory)
            with closing_on_error(connection):
                for key, value in {
                    "state": asdict(GalleryState()),
                    "settings": settings.to_dict(),
                    "index": index,
                }.items():
                    save_meta(connection, key, value)
                connection.execute("COMMIT")
            connection.close()
        return cls.open(directory)

    @classmethod
    def open(cls, directory: Path, *, index: str | None = None) -> SqliteStore:
        """Open a gallery and read its vectors.

        Args:
            directory: where it is.
            index: how it is to be searched this time; None: as it was created.

        Raises:
            StorageError: if there is none, or it is damaged, or of a newer version.
        """
        directory = Path(directory)
        if index is not None:
            check_layout(layout_of(index))
        with database.meaningful(directory):
            connection = database.connect(directory)
            with closing_on_error(connection):
                wanted = read_index(connection, INDEX_KINDS) if index is None else index
        store = cls(directory, connection, wanted)
        with closing_on_error(connection):
            now = store._current()
            if wanted == "hnsw":
                store._graph.check(now.settings)
                store._graph.extend(now)
        return store

    @property
    def kind(self) -> str:
        """How it is searched: "exact" or "hnsw"."""
        return "exact" if self._graph.of(self._current()) is None else "hnsw"

    @property
    def settings(self) -> Settings:
        """What the vectors are."""
        return self._current().settings

    @property
    def space(self) -> Space:
        """How the vectors are compared."""
        return self._current().index.space

    @property
    def layout(self) -> Layout:
        """By which index they are searched."""
        return Layout(self._graph.wanted)

    @property
    def generation(self) -> int:
        """Grows with every write, by anyone."""
        return self._current().state.generation

    @property
    def changes(self) -> int:
        """How many items were ever added, replaced, removed or relabelled."""
        return self._current().state.changes

    def __len__(self) -> int:
        return self._current().state.items

    def classes(self) -> list[str]:
        """Names of the classes by code; a class whose items are all gone keeps its code."""
        return list(self._current().classes)

    def class_sizes(self) -> dict[str | None, int]:
        """The number of items of each label, labels without items left out; None counts the unlabelled."""
        now = self._current()
        counts = np.bincount(now.index.codes - ABSENT, minlength=2)[UNLABELLED - ABSENT :]
        return {name: int(n) for name, n in zip((None, *now.classes), counts, strict=False) if n}

    def write(self, records: Sequence[Record], vectors: np.ndarray) -> None:
        """Add items with vectors float32 (n, d), points of the space; ids that exist are replaced."""
        if not len(records) and not len(vectors):
            return
        rows = items.checked_rows(records)
        with self._writing() as change:
            change.add(records, rows, check_vectors(vectors, len(records), change.before.settings.dimension))
            compact(change)

    @contextmanager
    def loading(self) -> Iterator[Load]:
        """A way to write very many items, batch after batch, each in a transaction of its own."""
        yield self.write

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items; how many there were. Ids that do not exist are left alone."""
        with self._writing() as change:
            removed = change.remove(ids)
            compact(change)
        return removed

    def update(self, ids: Sequence[str], *, label: Any = ..., metadata: Any = ...) -> int:
        """Give items another label (or None), or other metadata, or both; how many there were. `...`: unchanged."""
        text = None if metadata is ... else items.encoded(metadata)
        there = 0
        with self._writing() as change:
            if label is not ...:
                there = change.relabel(ids, label)
            if text is not None:
                there = change.describe(ids, text)
        return there

    def get(self, ids: Sequence[str]) -> list[Item | None]:
        """Items by id, None where there is none."""
        with self._connected() as connection:
            found = items.items_by(connection, "id", ids)
        return [found.get(id) for id in ids]

    def items(self, keys: np.ndarray) -> list[Item | None]:
        """Items by the keys (n,) of a search or sample; None if it was removed since, or the key is that of no item."""
        slots = np.asarray(keys, np.int64).tolist()
        with self._connected() as connection:
            found = items.items_by(connection, "slot", [slot for slot in slots if slot >= 0])
        return [found.get(slot) for slot in slots]

    def page(self, *, after: str | None = None, limit: int = 100, where: Condition | None = None) -> list[Item]:
        """Items in the order of ids, those after the item `after`; that item need not exist any more."""
        check_whole(limit, "limit", 1)
        with self._connected() as connection:
            return items.page(connection, after, limit, where)[0]

    def ids_where(self, where: Condition | None = None, *, label: Any = ...) -> list[str]:
        """Ids of all items that fulfil a condition, and have a label if one is given (None: the unlabelled)."""
        with self._connected() as connection:
            return items.ids_where(connection, where, label)

    def thumbnail(self, id: str) -> bytes | None:
        """A JPEG, or None."""
        return self._picture("SELECT jpeg FROM thumbnails JOIN items USING (slot) WHERE id = ?", id)

    def original(self, id: str) -> bytes | None:
        """The bytes an item was given as, or None."""
        return self._picture("SELECT bytes FROM originals JOIN items USING (slot) WHERE id = ?", id)

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        """Vectors float32 (n, d) of items, as `GalleryStore.vectors` gives them."""
        with self._one_state() as (connection, now):
            slots = items.slots_of(connection, ids)
            missing = next((id for id in ids if id not in slots), None)
            if missing is not None:
                raise DataError(f"There is no item '{missing}'.")
            rows = now.rows(np.fromiter((slots[id] for id in ids), np.int64, len(ids)))
            return now.index.vectors(rows)

    def search(
        self,
        queries: np.ndarray,
        k: int,
        *,
        where: Condition | None = None,
        labelled: bool = False,
        exclude: np.ndarray | None = None,
    ) -> Found:
        """The k nearest items, as `GalleryStore.search` gives them; equal distances in the order of adding."""
        with self._one_state() as (connection, now):
            allowed = None
            if where is not None:
                allowed = np.zeros(now.index.count, bool)
                allowed[now.rows(items.slots(connection, where))] = True
        hidden = None if exclude is None else now.rows(np.asarray(exclude, np.int64))
        index = self._graph.of(now) or now.index
        codes = now.index.codes
        k = k if k <= _PADDED else min(k, max(_PADDED, now.index.count))
        distances, rows = index.search(queries, k, allowed=allowed, labelled=labelled, exclude=hidden)
        return Found(distances, now.slots(rows), codes_of(rows, codes, now.index.codes))

    def sample(self, n: int, seed: int, *, labelled: bool = False) -> Sample:
        """At most n items, drawn at random without replacement; all of them, in order, if there are no more."""
        now = self._current()
        codes = now.index.codes
        rows = np.flatnonzero(codes > (UNLABELLED if labelled else ABSENT))
        if n < len(rows):
            rows = np.sort(np.random.default_rng(seed).choice(rows, n, replace=False))
        return Sample(now.slots(rows), now.index.vectors(rows), codes[rows])

    def batches(self, size: int = 1024) -> Iterator[tuple[list[Item], np.ndarray]]:
        """All items in the order of ids with their vectors, `size` at a time."""
        last = None
        while True:
            with self._one_state() as (connection, now):
                part, slots = items.page(connection, last, size, None)
                points = now.index.vectors(now.rows(np.asarray(slots, np.int64)))
            if not part:
                return
            yield part, points
            last = part[-1].id

    def note(self, name: str) -> Any:
        """A small JSON document kept under a name; None if there is none, or it is damaged."""
        with self._connected() as connection:
            found = connection.execute("SELECT value FROM notes WHERE name = ?", (name,)).fetchone()
        # What is noted was learned from the items, and can be learned from them again.
        with suppress(TypeError, ValueError):
            return None if found is None else json.loads(found[0])
        return None

    def set_note(self, name: str, value: Any) -> None:
        """Keep a small JSON document; it is no change of the items."""
        text = json.dumps(value)
        with self._writer.held(), self._connected() as connection, database.transaction(connection):
            connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, text))

    def replace_vectors(
        self, settings: Settings, batches: Iterator[tuple[list[str], np.ndarray]], drop: Sequence[str] = ()
    ) -> None:
        """Give all items new vectors, as `GalleryStore.replace_vectors` says."""
        check_settings(settings)
        self._graph.check(settings)
        with self._writer.held():
            with self._change() as change:
                change.clear()
                new = NewVectors(change, settings)
            try:
                for ids, vectors in batches:
                    points = check_vectors(vectors, len(ids), settings.dimension)
                    with self._connected() as connection, database.transaction(connection):
                        new.add(connection, ids, points)
                with self._change() as change:
                    new.finish(change, drop)
            except BaseException:
                with self._change() as change:
                    change.clear()
                raise
            self._graph.extend(self._current())

    def set_layout(self, layout: Layout) -> None:
        """Have the items searched by another index, now and by whoever opens the gallery later.

        Raises:
            DataError: a local gallery has no such index.
        """
        check_layout(layout)
        with self._writer.held():
            now = self._current()
            graph = StoredGraph(self._directory, layout.index)
            graph.check(now.settings)
            with self._connected() as connection, database.transaction(connection):
                save_meta(connection, "index", layout.index)
            self._graph = graph
            self._graph.extend(now)

    def size(self) -> int | None:
        """Bytes on disk."""
        return size_of(self._directory)

    def close(self) -> None:
        """Let go of files and connections; a second time does nothing."""
        if self._graph.unsaved and self._mirror is not None:
            with suppress(StorageError), self._writer.held():
                self._graph.save(self._mirror)
        with self._reading:
            connection, self._connection, self._mirror = self._connection, None, None
            if connection is not None:
                connection.close()

    def _current(self) -> Mirror:
        with self._one_state() as (_, now):
            return now

    def _picture(self, select: str, id: str) -> bytes | None:
        with self._connected() as connection:
            found = connection.execute(select, (id,)).fetchone()
        return None if found is None else bytes(found[0])

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone."""
        with self._reading, database.meaningful(self._directory):
            if self._connection is None:
                raise StorageError(f"The gallery {self._directory} is closed: open it again.")
            if not self._connection.in_transaction and database.is_for_now(self._connection):
                before, self._connection = self._connection, database.connect(self._directory)
                before.close()
            yield self._connection

    @contextmanager
    def _one_state(self) -> Iterator[tuple[sqlite3.Connection, Mirror]]:
        """The connection and the mirror, both of the newest state and staying there."""
        with self._connected() as connection, database.transaction(connection, "DEFERRED"):
            self._mirror = now = refreshed(connection, self._mirror, self._directory)
            self._graph.follow(now)
            yield connection, now

    @contextmanager
    def _writing(self) -> Iterator[Change]:
        """A change that is committed at the end of the block, all of it."""
        with self._writer.held():
            with self._change() as change:
                change.clear()
                yield change
            self._graph.extend(self._current())

    @contextmanager
    def _change(self) -> Iterator[Change]:
        """The same where the writer's lock is held already."""
        with self._connected() as connection:
            with database.transaction(connection):
                self._mirror = refreshed(connection, self._mirror, self._directory)
                change = Change(connection, self._mirror)
                yield change
                change.save()
            self._current()
