"""Where a gallery is: a directory of its own, or a collection in Milvus."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nearkin.errors import DataError, StorageError
from nearkin.gallery.layout import Layout
from nearkin.gallery.store import Store
from nearkin.gallery.values import Settings

_REMOTE = ("milvus://", "milvus+tls://")
_LITE = ".db"
_NO_PATH = re.compile(r"[\x00\ud800-\udfff]")


def is_local(path: str | Path) -> bool:
    """Whether a gallery of this path is a directory, which keeps its model too."""
    text = str(path)
    return not text.startswith(_REMOTE) and not text.partition("#")[0].endswith(_LITE)


def place_of(path: str | Path) -> Path | None:
    """The directory or Milvus Lite database that a gallery is in; None for one on a server."""
    text = str(path)
    if text.startswith(_REMOTE):
        return None
    return Path(text if is_local(text) else text.partition("#")[0])


def is_gallery_place(path: str) -> bool:
    """Whether a path is, or can only be, that of a gallery, and not that of files of vectors."""
    return not is_local(path) or (Path(path) / "gallery.sqlite").exists()


def check_place(path: Any) -> None:
    """Refuse what cannot be the path or address of a gallery, or the path of its export.

    Raises:
        DataError: if so.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or not text:
        shown = "an empty text" if text == "" else f"a {type(text).__name__}"
        raise DataError(f"A path is a text such as 'shop.gallery', or an address of Milvus, not {shown}.")
    if _NO_PATH.search(text):
        raise DataError(f"The path {text[:60]!r} holds a NUL or half a character: choose another.")


def check_free(path: str | Path) -> None:
    """Refuse a place where something is already.

    Raises:
        DataError: if it can be no place of a gallery.
        StorageError: if something is there.
    """
    check_place(path)
    with _usable(path):
        place = place_of(path)
        if place is None or not place.exists() or not is_local(path):
            return
        if not place.is_dir() or any(place.iterdir()):
            raise StorageError(f"{path} is there already: open it, remove it, or choose another path.")


def create_store(path: str | Path, settings: Settings, layout: Layout) -> Store:
    """An empty store at a path or address."""
    with _usable(path):
        if is_local(path):
            from nearkin.gallery.sqlite import SqliteStore
            from nearkin.gallery.sqlite.checks import check_layout

            check_layout(layout)
            return SqliteStore.create(Path(path), settings, index=layout.index)
        from nearkin.gallery.milvus import MilvusStore

        return MilvusStore.create(str(path), settings, layout=layout, token=_token())


def open_store(path: str | Path, index: str | None) -> Store:
    """The store at a path or address."""
    check_place(path)
    with _usable(path):
        if is_local(path):
            from nearkin.gallery.sqlite import SqliteStore

            return SqliteStore.open(Path(path), index=index)
        from nearkin.gallery.milvus import MilvusStore

        return MilvusStore.open(str(path), token=_token())


@contextmanager
def _usable(path: str | Path) -> Iterator[None]:
    """Tell in a sentence what the system says of a path: a name that is too long, no permission."""
    try:
        yield
    except OSError as error:
        shown = str(path) if len(str(path)) <= 200 else f"{str(path)[:200]}…"
        raise StorageError(f"{shown} cannot be used ({error.strerror or error}): choose another path.") from error


def _token() -> str | None:
    return os.environ.get("NEARKIN_MILVUS_TOKEN")
