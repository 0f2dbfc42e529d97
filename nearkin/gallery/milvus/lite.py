"""Milvus Lite: a database in a directory of its own, served to this process alone while somebody uses it."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

from nearkin.errors import StorageError, require

# A process has one server for a database, whoever asks for it; it is stopped when the last one is done, so that
# another process may open the database.
_users: Counter[str] = Counter()
_lock = threading.Lock()


def acquire(path: Path) -> str:
    """Serve a database, made if there is none; the address it is served at. To be followed by `release`.

    Raises:
        StorageError: it cannot be opened.
    """
    manager = require("milvus_lite.server_manager", "milvus").server_manager_instance
    where = str(path.resolve())
    if not path.resolve().parent.is_dir():
        raise StorageError(f"The directory of '{path}' does not exist: make it first.")
    with _lock:
        uri = manager.start_and_get_uri(where)
        if uri is None:
            raise StorageError(
                f"The Milvus Lite database '{path}' cannot be opened: another process may have it open (one at a time "
                "may), or it is damaged."
            )
        _users[where] += 1
    return str(uri)


def release(path: Path) -> None:
    """Say that a database is not used any more."""
    where = str(path.resolve())
    with _lock:
        _users[where] -= 1
        if _users[where] <= 0:
            del _users[where]
            require("milvus_lite.server_manager", "milvus").server_manager_instance.release_server(where)
