"""The part of a gallery that is searched, in memory, and how it follows the database."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nearkin.gallery.index import VectorIndex
from nearkin.gallery.kept_similarity import space_of
from nearkin.gallery.sqlite import rows as rows_of_items
from nearkin.gallery.sqlite.blocks import Blocks
from nearkin.gallery.sqlite.state import State, read_settings, read_state
from nearkin.gallery.store import ABSENT
from nearkin.gallery.values import Settings


@dataclass(frozen=True, eq=False)
class Mirror:
    """Vectors and codes as of one state of the database.

    Attributes:
        state: that state.
        settings: what the vectors are.
        index: the vectors by row, with the code of each.
        kept: slots int64 (m,) of the first m rows, in order; those of later rows follow at a fixed distance.
        classes: names by code.
    """

    state: State
    settings: Settings
    index: VectorIndex
    kept: np.ndarray
    classes: tuple[str, ...]

    def slots(self, rows: np.ndarray) -> np.ndarray:
        """Slots int64 of rows of any shape; -1 stays -1."""
        slots = rows + (self.state.slots - self.state.rows)
        early = (rows >= 0) & (rows < len(self.kept))
        slots[early] = self.kept[rows[early]]
        return np.where(rows < 0, -1, slots)

    def rows(self, slots: np.ndarray) -> np.ndarray:
        """Rows int64 (n,) of slots; -1 for a slot that has none."""
        shift = self.state.slots - self.state.rows
        rows = slots - shift
        late = (rows >= len(self.kept)) & (rows < self.state.rows)
        near = np.searchsorted(self.kept, slots)
        early = (near < len(self.kept)) & ~late
        early[early] = self.kept[near[early]] == slots[early]
        return np.where(late, rows, np.where(early, near, -1))


def refreshed(connection: sqlite3.Connection, mirror: Mirror | None, directory: Path) -> Mirror:
    """The mirror of the state that the open transaction sees; what did not change since is not read again."""
    state = read_state(connection)
    if mirror is None or mirror.state.version != state.version:
        return _loaded(connection, state, directory)
    if mirror.state.generation == state.generation:
        return mirror
    # Classes first: no code may be seen before its name.
    classes = mirror.classes + tuple(rows_of_items.classes_from(connection, len(mirror.classes)))
    _follow(connection, Blocks.of(mirror.settings, state.version), mirror, state)
    return replace(mirror, state=state, classes=classes)


def codes_of(rows: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Codes int32 of the rows that a search found, given all codes before and after it.

    Others may write while it runs: a row that was removed meanwhile has the code it was found with.
    """
    codes = np.full(rows.shape, ABSENT, np.int32)
    there = rows >= 0
    codes[there] = after[rows[there]]
    there &= rows < len(before)
    earlier = before[rows[there]]
    codes[there] = np.where(earlier == ABSENT, codes[there], earlier)
    return codes


def _loaded(connection: sqlite3.Connection, state: State, directory: Path) -> Mirror:
    """A mirror read from the first row on."""
    settings = read_settings(connection)
    blocks = Blocks.of(settings, state.version)
    index = VectorIndex(space_of(settings, directory), settings.dimension, settings.dtype)
    index.reserve(state.rows)
    codes = dict(blocks.newer(connection, -1))
    for number, points in enumerate(blocks.points(connection, 0, state.rows)):
        if number not in codes:
            raise sqlite3.DatabaseError(f"the codes of block {number} are missing")
        index.append(points, codes[number][: len(points)])
    found = connection.execute("SELECT slots FROM numbering").fetchone()
    kept = np.frombuffer(found[0] if found else b"", "<i8")
    return Mirror(state, settings, index, kept, tuple(rows_of_items.classes_from(connection, 0)))


def _follow(connection: sqlite3.Connection, blocks: Blocks, mirror: Mirror, state: State) -> None:
    """Bring the index of a mirror to a newer state, so that searches see all of the change at once."""
    index = mirror.index
    index.reserve(state.rows - index.count)
    for points in blocks.points(connection, index.count, state.rows):
        index.append(points, np.full(len(points), ABSENT, np.int32))
    changed = list(blocks.newer(connection, mirror.state.generation))
    if not changed:
        return
    rows = np.concatenate([number * blocks.rows + np.arange(blocks.rows) for number, _ in changed])
    codes = np.concatenate([codes for _, codes in changed])
    there = rows < state.rows
    index.set_codes(rows[there], codes[there])
