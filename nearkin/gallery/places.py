"""Where a gallery is: a directory of its own, or a collection in Milvus."""

from __future__ import annotations

import os
from pathlib import Path

from nearkin.errors import StorageError
from nearkin.gallery.store import Store
from nearkin.gallery.values import Settings

_REMOTE = ("milvus://", "milvus+tls://")
_LITE = ".db"


def is_local(path: str | Path) -> bool:
    """Whether a gallery of this path is a directory, which keeps its model too."""
    text = str(path)
    return not text.startswith(_REMOTE) and not text.partition("#")[0].endswith(_LITE)


def check_free(path: str | Path) -> None:
    """Refuse a place where something is already.

    Raises:
        StorageError: if so.
    """
    place = Path(path)
    if is_local(path) and (place.is_file() or (place.is_dir() and any(place.iterdir()))):
        raise StorageError(f"{path} is there already: open it, remove it, or choose another path.")


def create_store(path: str | Path, settings: Settings, index: str) -> Store:
    """An empty store at a path or address."""
    if is_local(path):
        from nearkin.gallery.sqlite import SqliteStore

        return SqliteStore.create(Path(path), settings, index=index)
    from nearkin.gallery.milvus import MilvusStore

    return MilvusStore.create(str(path), settings, token=_token())


def open_store(path: str | Path, index: str | None) -> Store:
    """The store at a path or address."""
    if is_local(path):
        from nearkin.gallery.sqlite import SqliteStore

        return SqliteStore.open(Path(path), index=index)
    from nearkin.gallery.milvus import MilvusStore

    return MilvusStore.open(str(path), token=_token())


def _token() -> str | None:
    return os.environ.get("NEARKIN_MILVUS_TOKEN")
