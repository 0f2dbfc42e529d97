"""The few numbers that say what a gallery is at one moment, kept in the table `meta`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from nearkin.gallery.kept_similarity import check_space_settings
from nearkin.gallery.rounding import DTYPES
from nearkin.gallery.values import Settings


@dataclass(frozen=True)
class State:
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


def read(connection: sqlite3.Connection, key: str) -> Any:
    """A value of the table `meta`."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    try:
        return json.loads(row[0])
    except (TypeError, ValueError) as error:
        raise _unreadable(key) from error


def save(connection: sqlite3.Connection, key: str, value: Any) -> None:
    """Keep a value in the table `meta`."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))


def read_state(connection: sqlite3.Connection) -> State:
    """The state as the open transaction sees it."""
    try:
        state = State(**read(connection, "state"))
    except TypeError as error:
        raise _unreadable("state") from error
    if any(type(number) is not int or number < 0 for number in vars(state).values()):
        raise _unreadable("state")
    return state


def save_state(connection: sqlite3.Connection, state: State) -> None:
    """Keep the state."""
    save(connection, "state", asdict(state))


def read_settings(connection: sqlite3.Connection) -> Settings:
    """The settings as the open transaction sees them."""
    try:
        settings = Settings.from_dict(read(connection, "settings"))
        check_space_settings(settings.space)
    except (TypeError, AttributeError) as error:
        raise _unreadable("settings") from error
    if settings.dtype not in DTYPES or type(settings.dimension) is not int or settings.dimension < 1:
        raise _unreadable("settings")
    return settings


def read_index(connection: sqlite3.Connection, kinds: Collection[str]) -> str:
    """How the gallery is searched, one of the kinds."""
    index = read(connection, "index")
    if not isinstance(index, str) or index not in kinds:
        raise _unreadable("index")
    return index


def save_settings(connection: sqlite3.Connection, settings: Settings) -> None:
    """Keep the settings."""
    save(connection, "settings", settings.to_dict())


def _unreadable(key: str) -> sqlite3.DatabaseError:
    return sqlite3.DatabaseError(f"'{key}' is missing or cannot be read")
