"""What a writing call does to the tables, inside its transaction: changes, a rebuild, a compaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.gallery.sqlite import mirror as stored
from nearkin.gallery.sqlite import rows as items
from nearkin.gallery.sqlite.database import GalleryState, save_meta
from nearkin.gallery.sqlite.mirror import Mirror, VectorBlocks
from nearkin.gallery.store import ABSENT, Record
from nearkin.gallery.values import Settings


class Change:
    """A change under way.

    Args:
        connection: with a transaction begun.
        before: the gallery as that transaction found it.

    Attributes:
        state: what the gallery will be at.
    """

    def __init__(self, connection: sqlite3.Connection, before: Mirror) -> None:
        self.connection = connection
        self.before = before
        self.state: GalleryState = before.state
        self.generation = before.state.generation + 1
        self._blocks = VectorBlocks(connection, before.settings, before.state.version)

    def clear(self) -> None:
        """Delete what an earlier process that was ended in the middle left behind."""
        stored.delete_blocks(self.connection, but=self.state.version)

    def add(self, records: Sequence[Record], rows: Sequence[tuple[Any, ...]], vectors: np.ndarray) -> None:
        """Add items with vectors (n, d), in place of those that have their ids."""
        points = self._blocks.stored(vectors)
        codes = items.label_codes(self.connection, [record.label for record in records])
        # A replaced item counts as one change, not as one removed and one added.
        n, changes = len(records), self.state.changes + len(records)
        self.remove([row[0] for row in rows])
        before = self.state
        items.insert(self.connection, before.slots, records, rows, codes)
        self._blocks.append(self.generation, before.rows, points, codes)
        after = {"slots": before.slots + n, "rows": before.rows + n, "items": before.items + n}
        self.state = replace(before, **after, changes=changes, generation=self.generation)

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items; how many there were."""
        slots = self._slots(ids)
        if len(slots):
            items.delete(self.connection, slots.tolist())
            self._set_codes(slots, ABSENT)
            self.state = replace(self.state, items=self.state.items - len(slots))
        return self._changed(slots, len(slots))

    def relabel(self, ids: Sequence[str], label: str | None) -> int:
        """Give items another label; how many there were."""
        slots = self._slots(ids)
        if len(slots):
            code = int(items.label_codes(self.connection, [label])[0])
            items.update(self.connection, "label", None if label is None else code, slots.tolist())
            self._set_codes(slots, code)
        return self._changed(slots, len(slots))

    def describe(self, ids: Sequence[str], metadata: str) -> int:
        """Give items other metadata, as JSON; how many there were."""
        slots = self._slots(ids)
        items.update(self.connection, "metadata", metadata, slots.tolist())
        return self._changed(slots, 0)

    def save(self) -> None:
        """Write down the state, if it is another one."""
        if self.state != self.before.state:
            save_meta(self.connection, "state", asdict(self.state))

    def _slots(self, ids: Sequence[str]) -> np.ndarray:
        return np.fromiter(items.slots_of(self.connection, ids).values(), np.int64)

    def _set_codes(self, slots: np.ndarray, code: int) -> None:
        self._blocks.set_codes(self.generation, self.before.rows(slots), np.full(len(slots), code, np.int32))

    def _changed(self, slots: np.ndarray, changes: int) -> int:
        """Count a change of items at these slots; how many items they are."""
        if len(slots):
            self.state = replace(self.state, changes=self.state.changes + changes, generation=self.generation)
        return len(slots)


_LEAST_ROWS = 10_000


class NewVectors:
    """New vectors of all items, which nobody sees before `finish`.

    Args:
        change: one that begins where nobody else may write to the gallery until the end.
        settings: of the new vectors.
    """

    def __init__(self, change: Change, settings: Settings) -> None:
        self._mirror = change.before
        self._settings = settings
        self._blocks = VectorBlocks(change.connection, settings, change.state.version + 1)
        self._seen = np.zeros(self._mirror.index.count, bool)

    def add(self, connection: sqlite3.Connection, ids: Sequence[str], vectors: np.ndarray) -> None:
        """Take some of the vectors (n, d), inside a transaction."""
        slots = items.slots_of(connection, ids)
        rows = self._mirror.rows(np.fromiter((slots.get(id, -1) for id in ids), np.int64, len(ids)))
        if (rows < 0).any():
            raise DataError(f"There is no item '{ids[int(np.argmax(rows < 0))]}': give vectors of items that exist.")
        again = self._seen[rows]
        again[np.setdiff1d(np.arange(len(rows)), np.unique(rows, return_index=True)[1])] = True
        if again.any():
            raise DataError(f"The item '{ids[int(np.argmax(again))]}' was given two new vectors: give it one.")
        self._blocks.scatter(rows, self._blocks.stored(vectors))
        self._seen[rows] = True

    def finish(self, change: Change, drop: Sequence[str]) -> None:
        """Let the new vectors take the place of the old ones, and drop some items.

        Raises:
            DataError: if an item has none.
        """
        connection = change.connection
        change.remove(drop)
        codes = self._mirror.index.codes.copy()
        codes[np.setdiff1d(np.arange(len(codes)), self._mirror.rows(items.slots(connection)))] = ABSENT
        missing = np.flatnonzero((codes != ABSENT) & ~self._seen)
        if len(missing):
            slot = int(self._mirror.slots(missing[:1])[0])
            first = items.items_by(connection, "slot", [slot])[slot].id
            raise DataError(f"{len(missing)} items got no new vector, the first is '{first}': give it one, or drop it.")
        for number in range(-(-len(codes) // self._blocks.rows)):
            self._blocks.ensure(number)
        self._blocks.set_codes(change.generation, np.arange(len(codes)), codes)
        stored.delete_blocks(connection, but=self._blocks.version)
        connection.execute("DELETE FROM notes")  # they were learned from the old vectors
        save_meta(connection, "settings", self._settings.to_dict())
        changes, version = change.state.changes + change.state.items, self._blocks.version
        change.state = replace(change.state, version=version, changes=changes, generation=change.generation)


def compact(change: Change) -> None:
    """Squeeze out the rows of removed items, if they are most of the rows."""
    state, connection, settings = change.state, change.connection, change.before.settings
    if state.rows <= _LEAST_ROWS or 2 * state.items >= state.rows:
        return
    old, new = (VectorBlocks(connection, settings, version) for version in (state.version, state.version + 1))
    done = 0
    for number, points in enumerate(old.points(0, state.rows)):
        codes = old.codes(number)[: len(points)]
        there = codes != ABSENT
        new.append(change.generation, done, points[there], codes[there])
        done += int(there.sum())
    if done != state.items:
        raise sqlite3.DatabaseError(f"there are {state.items} items and {done} vectors of them")
    slots = items.slots(connection).astype("<i8")
    connection.execute("DELETE FROM numbering")
    connection.execute("INSERT INTO numbering VALUES (?)", (slots.data,))
    stored.delete_blocks(connection, but=new.version)
    change.state = replace(state, version=new.version, rows=done)
