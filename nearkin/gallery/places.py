"""Where a gallery is: a directory or a Milvus collection; made whole or removed again, opened, and measured."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nearkin.errors import DataError, StorageError
from nearkin.gallery.layout import Layout
from nearkin.gallery.store import GalleryStore
from nearkin.gallery.values import Settings


def size_of(directory: Path) -> int:
    """Bytes of all files in a directory and those below it.

    Raises:
        StorageError: if the directory is not there any more.
    """
    if not directory.is_dir():
        raise StorageError(f"The gallery {directory} no longer exists: restore it, or create it again.")
    return sum(_sizes(directory.rglob("*")))


def _sizes(files: Iterable[Path]) -> Iterable[int]:
    for file in files:
        # A log may be gone again between being listed and being looked at.
        with suppress(FileNotFoundError):
            if file.is_file():
                yield file.stat().st_size


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
        raise DataError(f"A path must be a text such as 'shop.gallery', or an address of Milvus, not {shown}.")
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
            raise StorageError(f"{path} already exists: open it, remove it, or choose another path.")


def create_store(path: str | Path, settings: Settings, layout: Layout) -> GalleryStore:
    """An empty store at a path or address."""
    with _usable(path):
        if is_local(path):
            from nearkin.gallery.sqlite import SqliteStore
            from nearkin.gallery.sqlite.store import check_layout

            check_layout(layout)
            return SqliteStore.create(Path(path), settings, index=layout.index)
        from nearkin.gallery.milvus import MilvusStore

        return MilvusStore.create(str(path), settings, layout=layout, token=_token())


def open_store(path: str | Path, index: str | None) -> GalleryStore:
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


class NewGallery:
    """A gallery that is being made at a place that was free.

    Args:
        path: where.

    Attributes:
        store: its store, as soon as there is one.
    """

    def __init__(self, path: str | Path) -> None:
        self.store: GalleryStore | None = None
        self._local = is_local(path)
        self._place = place_of(path)
        self._fresh = self._place is not None and not self._place.exists()

    def undo(self) -> None:
        """Remove what was made; what another process made there meanwhile is left alone."""
        if self._local and self._place is not None:
            self._undo_directory(self._place)
        elif self.store is not None:
            self._undo_collections(self.store)

    def _undo_directory(self, directory: Path) -> None:
        if self.store is not None:
            self.store.close()
        elif is_gallery(directory):
            return
        if self._fresh:
            shutil.rmtree(directory, ignore_errors=True)
            return
        for file in directory.iterdir():
            file.unlink(missing_ok=True)

    def _undo_collections(self, store: GalleryStore) -> None:
        from nearkin.gallery.milvus import MilvusStore

        if isinstance(store, MilvusStore):
            # If Milvus cannot be reached any more, the first error tells it.
            with suppress(StorageError):
                alone = store.discard()
                if alone and self._fresh and self._place is not None:
                    shutil.rmtree(self._place, ignore_errors=True)


@contextmanager
def removed_on_error(path: str | Path) -> Iterator[NewGallery]:
    """Make a gallery in the block; if that fails, nothing of it stays."""
    making = NewGallery(path)
    try:
        yield making
    except BaseException:
        making.undo()
        raise


def is_gallery(directory: Path) -> bool:
    """Whether there is a local gallery at a place."""
    from nearkin.gallery.sqlite import SqliteStore

    try:
        SqliteStore.open(directory).close()
    except StorageError:
        return False
    return True
