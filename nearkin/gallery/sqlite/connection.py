"""Opening the database, transactions, and what SQLite's errors mean to a user."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from nearkin.errors import DataError, StorageError
from nearkin.gallery.sqlite.schema import APPLICATION, PAGE_SIZE, VERSION, migrate, version_of

FILE = "gallery.sqlite"

_PATIENCE = 30.0  # seconds to wait for a reader that recovers or checkpoints the log
_CACHE_KB = 16_384
_LOG_BYTES = 64 * 2**20
_MEANINGS = {
    sqlite3.SQLITE_FULL: "could not be written, the disk is full: make room; what was there before is unchanged",
    sqlite3.SQLITE_READONLY: "is read-only: make it writable, or only read from it",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that the directory is there and may be read and written",
    sqlite3.SQLITE_PERM: "may not be opened: check the permissions of its files",
    sqlite3.SQLITE_BUSY: "is held by another program: try again when that has finished",
    sqlite3.SQLITE_IOERR: "could not be read or written: check the disk",
    sqlite3.SQLITE_CORRUPT: "is damaged: restore it from a copy, or build it again",
    sqlite3.SQLITE_NOTADB: "is no gallery, or its file gallery.sqlite is damaged: choose another, or restore it",
}


def create(directory: Path) -> sqlite3.Connection:
    """A connection to a new, empty database, with a transaction begun that makes its tables.

    Raises:
        StorageError: if there is one already, or the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{directory} cannot be made ({error.strerror}): choose another place.") from error
    connection = _connected(directory, "rwc")
    with closing_on_error(connection):
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise StorageError(f"{directory} holds a gallery already: open it, remove it, or choose another path.")
        migrate(connection)
    return connection


def connect(directory: Path) -> sqlite3.Connection:
    """A connection to the database of a gallery; for reading only where the directory cannot be written.

    Raises:
        StorageError: if there is no gallery, or it is damaged, or of a newer version.
    """
    if not (directory / FILE).is_file():
        raise StorageError(f"There is no gallery at {directory}: check the path, or create one.")
    if os.access(directory, os.W_OK) and os.access(directory / FILE, os.W_OK):
        return _checked(directory, _connected(directory, "rw"), writable=True)
    try:
        return _checked(directory, _connected(directory, "ro"), writable=False)
    except sqlite3.OperationalError:
        if (log := directory / f"{FILE}-wal").exists() and log.stat().st_size:
            raise
        # Without the files that readers share, SQLite reads only what it is told nobody changes.
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
    with rolled_back_on_error(connection):
        yield
        connection.execute("COMMIT")


@contextmanager
def rolled_back_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    """Undo the open transaction if the block fails."""
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk has undone it already
            connection.execute("ROLLBACK")
        raise


@contextmanager
def closing_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    """Close a connection if the block fails."""
    try:
        yield
    except BaseException:
        connection.close()
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
            raise StorageError(f"{directory} is no gallery: its file {FILE} was made by another program.")
        found = version_of(connection)
        if found > VERSION:
            raise StorageError(f"{directory} was made by a newer nearkin (version {found} of its tables): upgrade.")
        if found < VERSION and not writable:
            raise StorageError(
                f"{directory} was made by an older nearkin and is to be brought up to date: open it once where it can "
                "be written."
            )
        if found < VERSION:
            with transaction(connection):
                migrate(connection)
    return connection
