"""What one writing call does to the tables, inside its transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nearkin.gallery.sqlite import blocks as stored
from nearkin.gallery.sqlite import rows as items
from nearkin.gallery.sqlite.blocks import Blocks
from nearkin.gallery.sqlite.mirror import Mirror
from nearkin.gallery.sqlite.state import State, save_state
from nearkin.gallery.store import ABSENT, Record


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
        self.state: State = before.state
        self._blocks = Blocks.of(before.settings, before.state.version)

    @property
    def generation(self) -> int:
        """The generation that this change makes."""
        return self.before.state.generation + 1

    def clear(self) -> None:
        """Delete what an earlier process that was ended in the middle left behind."""
        stored.delete(self.connection, but=self.state.version)

    def add(self, records: Sequence[Record], rows: Sequence[tuple[Any, ...]], vectors: np.ndarray) -> None:
        """Add items with vectors (n, d), in place of those that have their ids."""
        points = self._blocks.stored(vectors)
        codes = items.label_codes(self.connection, [record.label for record in records])
        # A replaced item counts as one change, not as one removed and one added.
        changes = self.state.changes + len(records)
        self.remove([row[0] for row in rows])
        items.insert(self.connection, self.state.slots, records, rows, codes)
        self._blocks.append(self.connection, self.generation, self.state.rows, points, codes)
        self.state = replace(
            self.state,
            slots=self.state.slots + len(records),
            rows=self.state.rows + len(records),
            items=self.state.items + len(records),
            changes=changes,
            generation=self.generation,
        )

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items; how many there were."""
        slots = self._slots(ids)
        if len(slots):
            items.delete(self.connection, slots.tolist())
            self._set_codes(slots, ABSENT)
            self.state = replace(self.state, items=self.state.items - len(slots))
            self._changed(len(slots))
        return len(slots)

    def relabel(self, ids: Sequence[str], label: str | None) -> int:
        """Give items another label; how many there were."""
        slots = self._slots(ids)
        if len(slots):
            code = int(items.label_codes(self.connection, [label])[0])
            items.update(self.connection, "label", None if label is None else code, slots.tolist())
            self._set_codes(slots, code)
            self._changed(len(slots))
        return len(slots)

    def describe(self, ids: Sequence[str], metadata: str) -> int:
        """Give items other metadata, as JSON; how many there were."""
        slots = self._slots(ids)
        if len(slots):
            items.update(self.connection, "metadata", metadata, slots.tolist())
            self._changed(0)
        return len(slots)

    def save(self) -> None:
        """Write down the state, if it is another one."""
        if self.state != self.before.state:
            save_state(self.connection, self.state)

    def _changed(self, count: int) -> None:
        self.state = replace(self.state, changes=self.state.changes + count, generation=self.generation)

    def _slots(self, ids: Sequence[str]) -> np.ndarray:
        return np.fromiter(items.slots_of(self.connection, ids).values(), np.int64)

    def _set_codes(self, slots: np.ndarray, code: int) -> None:
        rows = self.before.rows(slots)
        self._blocks.set_codes(self.connection, self.generation, rows, np.full(len(rows), code, np.int32))
