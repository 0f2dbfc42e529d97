"""The database of a local gallery: tables and migrations, transactions, state, and what SQLite's errors mean."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nearkin.errors import DataError, StorageError
from nearkin.gallery.dtypes import DTYPES
from nearkin.gallery.model import check_space_settings
from nearkin.gallery.places import closing_on_error
from nearkin.gallery.values import Settings

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


STEPS: tuple[tuple[str, ...], ...] = (
    _FIRST,
    ("CREATE TABLE originals (slot INTEGER PRIMARY KEY, bytes BLOB NOT NULL)",),
)
"""The statements of step n take a database of version n to version n + 1; a step that was released never changes."""

VERSION = len(STEPS)
"""The version this code reads and writes."""


def version_of(connection: sqlite3.Connection) -> int:
    """The schema version of a database; 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a database to the present version, inside the caller's transaction."""
    for step in STEPS[version_of(connection) :]:
        for statement in step:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


FILE = "gallery.sqlite"

_PATIENCE = 30.0  # seconds to wait for a reader that recovers or checkpoints the log
_CACHE_KB = 16_384
_LOG_BYTES = 64 * 2**20
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMOPEN, sqlite3.SQLITE_CANTOPEN)
_MEANINGS = {
    sqlite3.SQLITE_FULL: "could not be written, the disk is full: make room; what was there before is unchanged",
    sqlite3.SQLITE_READONLY: "is read-only: make it writable, make room on its disk, or only read from it",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that the directory is there and may be read and written",
    sqlite3.SQLITE_PERM: "may not be opened: check the permissions of its files",
    sqlite3.SQLITE_BUSY: "is held by another program: try again when that has finished",
    sqlite3.SQLITE_IOERR: "could not be read or written: check the disk",
    sqlite3.SQLITE_CORRUPT: "is damaged: restore it from a copy, or build it again",
    sqlite3.SQLITE_NOTADB: "is not a gallery, or its file gallery.sqlite is damaged: choose another, or restore it",
}


def create(directory: Path) -> sqlite3.Connection:
    """A connection to a new, empty database, with a transaction begun that makes its tables.

    Raises:
        StorageError: if there is one already, or the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"Cannot create {directory} ({error.strerror}): choose another place.") from error
    connection = _connected(directory, "rwc")
    with closing_on_error(connection):
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise StorageError(f"{directory} already holds a gallery: open it, remove it, or choose another path.")
        migrate(connection)
    return connection


def connect(directory: Path) -> sqlite3.Connection:
    """A connection to the database of a gallery; for reading only where the directory cannot be written or is full.

    Raises:
        StorageError: if there is no gallery, or it is damaged, or of a newer version.
    """
    if not (directory / FILE).is_file():
        raise StorageError(f"There is no gallery at {directory}: check the path, or create one.")
    if os.access(directory, os.W_OK) and os.access(directory / FILE, os.W_OK):
        try:
            return _checked(directory, _connected(directory, "rw"), writable=True)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode not in _NO_ROOM or _has_log(directory):
                raise
            connection = _frozen(directory)
            connection.execute("PRAGMA query_only = ON")
            return connection
    try:
        return _checked(directory, _connected(directory, "ro"), writable=False)
    except sqlite3.OperationalError:
        if _has_log(directory):
            raise
        return _frozen(directory)


def is_for_now(connection: sqlite3.Connection) -> bool:
    """Whether a connection reads only because the disk is full: connect again before the next use."""
    return bool(connection.execute("PRAGMA query_only").fetchone()[0])


def _has_log(directory: Path) -> bool:
    log = directory / f"{FILE}-wal"
    return log.exists() and log.stat().st_size > 0


def _frozen(directory: Path) -> sqlite3.Connection:
    """A connection that reads; without the files that readers share, SQLite must be told that nobody writes."""
    return _checked(directory, _connected(directory, "ro&immutable=1"), writable=False)


@contextmanager
def meaningful(directory: Path) -> Iterator[None]:
    """Turn an error of SQLite inside the block into a `StorageError` of one sentence."""
    try:
        yield
    except sqlite3.Error as error:
        # Our own complaint about what a table holds has no code; nor has a complaint about what was asked for.
        ours = sqlite3.SQLITE_CORRUPT if type(error) is sqlite3.DatabaseError else sqlite3.SQLITE_ERROR
        code = getattr(error, "sqlite_errorcode", ours)
        meaning = _MEANINGS.get(code & 0xFF, "could not be used: check its files")
        raise StorageError(f"The gallery {directory} {meaning} ({error}).") from error
    except UnicodeEncodeError as error:
        raise DataError(f"Some text cannot be stored, it is no valid Unicode: {error.object!r}.") from error


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Commit what the block does, or undo it: all or nothing. "DEFERRED" is for reading one state."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has undone it already
            connection.execute("ROLLBACK")
        raise


def _connected(directory: Path, mode: str) -> sqlite3.Connection:
    address = f"file:{quote(str((directory / FILE).absolute()))}?mode={mode}"
    connection = sqlite3.connect(
        address, uri=True, isolation_level=None, check_same_thread=False, timeout=_PATIENCE, cached_statements=256
    )
    with closing_on_error(connection):
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        # Zeroes what is freed only where that costs no writing: freed vectors are by far the most of it.
        connection.execute("PRAGMA secure_delete = FAST")
    return connection


def _checked(directory: Path, connection: sqlite3.Connection, *, writable: bool) -> sqlite3.Connection:
    """The connection to a gallery of the present version; an older one is brought there first."""
    with closing_on_error(connection):
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
            raise StorageError(f"{directory} is not a gallery: its file {FILE} was made by another program.")
        found = version_of(connection)
        if found > VERSION:
            raise StorageError(f"{directory} was made by a newer nearkin (version {found} of its tables): upgrade.")
        if found < VERSION and not writable:
            raise StorageError(
                f"{directory} was made by an older nearkin and must be migrated: open it once where it can be written."
            )
        if found < VERSION:
            with transaction(connection):
                migrate(connection)
    return connection


@dataclass(frozen=True)
class GalleryState:
    """Where a gallery stands.

    Attributes:
        generation: grows by one with every write.
        changes: how many items were ever added, replaced, removed or relabelled.
        version: which vectors count; blocks of another version are being built, or left over.
        slots: how many slots were ever given.
        rows: how many rows of vectors there are, those of removed items included.
        items: how many items there are.
    """

    generation: int = 0
    changes: int = 0
    version: int = 1
    slots: int = 0
    rows: int = 0
    items: int = 0


def read_meta(connection: sqlite3.Connection, key: str) -> Any:
    """A value of the table `meta`."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    try:
        return json.loads(row[0])
    except (TypeError, ValueError) as error:
        raise _unreadable(key) from error


def save_meta(connection: sqlite3.Connection, key: str, value: Any) -> None:
    """Keep a value in the table `meta`."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))


def read_state(connection: sqlite3.Connection) -> GalleryState:
    """The state as the open transaction sees it."""
    try:
        state = GalleryState(**read_meta(connection, "state"))
    except TypeError as error:
        raise _unreadable("state") from error
    if any(type(number) is not int or number < 0 for number in vars(state).values()):
        raise _unreadable("state")
    return state


def read_settings(connection: sqlite3.Connection) -> Settings:
    """The settings as the open transaction sees them."""
    try:
        settings = Settings.from_dict(read_meta(connection, "settings"))
        check_space_settings(settings.space)
    except (TypeError, AttributeError) as error:
        raise _unreadable("settings") from error
    if settings.dtype not in DTYPES or type(settings.dimension) is not int or settings.dimension < 1:
        raise _unreadable("settings")
    return settings


def read_index(connection: sqlite3.Connection, kinds: Collection[str]) -> str:
    """How the gallery is searched, one of the kinds."""
    index = read_meta(connection, "index")
    if not isinstance(index, str) or index not in kinds:
        raise _unreadable("index")
    return index


def _unreadable(key: str) -> sqlite3.DatabaseError:
    return sqlite3.DatabaseError(f"'{key}' is missing or cannot be read")
