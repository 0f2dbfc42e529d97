"""The tables, and the steps that led to them.

An item has a slot: a number that is its own for ever, given in the order of adding. Its vector lies in a row of the
vectors, and rows are cut into blocks. Row and slot are the same until removed rows are squeezed out: then
`numbering` lists the slots of the rows that were kept, and later rows follow at a fixed distance.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

APPLICATION = 0x6E6B696E
"""What tells our files from other SQLite databases."""

PAGE_SIZE = 16384
"""Bytes; larger than usual, since all vectors are read at opening."""

_FIRST = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE labels (code INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE items (slot INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, label INTEGER, metadata TEXT NOT NULL,"
    " source TEXT, added TEXT NOT NULL)",
    "CREATE TABLE thumbnails (slot INTEGER PRIMARY KEY, jpeg BLOB NOT NULL)",
    # What changes often, the codes, lies apart from what never does, the vectors: an update rewrites its whole row.
    "CREATE TABLE blocks (key INTEGER PRIMARY KEY, version INTEGER NOT NULL, number INTEGER NOT NULL,"
    " generation INTEGER NOT NULL, codes BLOB NOT NULL, UNIQUE (version, number))",
    "CREATE TABLE vectors (key INTEGER PRIMARY KEY, points BLOB NOT NULL)",
    "CREATE TABLE numbering (slots BLOB NOT NULL)",
)


def _first(connection: sqlite3.Connection) -> None:
    for statement in _FIRST:
        connection.execute(statement)


def _originals(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE originals (slot INTEGER PRIMARY KEY, bytes BLOB NOT NULL)")


STEPS: tuple[Callable[[sqlite3.Connection], None], ...] = (_first, _originals)
"""Step n takes a database of version n to version n + 1; a step that was released never changes."""

VERSION = len(STEPS)
"""The version this code reads and writes."""


def version_of(connection: sqlite3.Connection) -> int:
    """The schema version of a database; 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a database to the present version, inside the caller's transaction."""
    for step in STEPS[version_of(connection) :]:
        step(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
