"""Where a gallery is: a directory or a Milvus collection; made whole or removed again, opened, and measured."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nearkin.errors import DataError, StorageError
from nearkin.gallery.layout import Layout
from nearkin.gallery.store import GalleryStore
from nearkin.gallery.values import Settings
from nearkin.storage import in_turn, write_text


def size_of(directory: Path) -> int:
    """Bytes of all files in a directory and those below it.

    Raises:
        StorageError: if the directory is not there any more.
    """
    if not directory.is_dir():
        raise StorageError(f"The gallery {directory} no longer exists: restore it, or create it again.")
    size = 0
    for file in directory.rglob("*"):
        # A log may be gone again between being listed and being looked at.
        with suppress(FileNotFoundError):
            size += file.stat().st_size if file.is_file() else 0
    return size


class _Opened(Protocol):
    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=_Opened)


@contextmanager
def closing_on_error(opened: Opened) -> Iterator[Opened]:
    """Close a connection or a store if the block fails."""
    try:
        yield opened
    except BaseException:
        opened.close()
        raise


_REMOTE = ("milvus://", "milvus+tls://")
_LITE = ".db"
_TOKEN = "NEARKIN_MILVUS_TOKEN"
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


_MARK = "gallery.creating"
_MARKED = "This gallery is not complete: create it again.\n"
_MADE = re.compile(r"\.?(gallery\.sqlite|model-|hnsw-|writer\.lock)")


def _is_cut_short(place: Path) -> bool:
    """Whether a local gallery has the mark of one that is not complete; it is written where there was nothing else."""
    with suppress(OSError, ValueError):
        return (place / _MARK).read_text(encoding="utf-8") == _MARKED
    return False


def _content(place: Path) -> list[Path]:
    """The files of a directory without the mark, its temporary files and its lock."""
    return [file for file in place.iterdir() if not file.name.lstrip(".").startswith(_MARK)]


def _is_free(place: Path) -> bool:
    """Whether there is nothing, an empty directory, or what a killed creation left."""
    if not place.exists():
        return True
    if not place.is_dir():
        return False
    content = _content(place)
    return not content or (_is_cut_short(place) and all(_MADE.match(file.name) for file in content))


def check_free(path: str | Path) -> None:
    """Refuse a place where something is already, other than what a killed creation left.

    Raises:
        DataError: if it can be no place of a gallery.
        StorageError: if something is there.
    """
    check_place(path)
    with _usable(path):
        place = place_of(path)
        if place is not None and is_local(path) and not _is_free(place):
            raise StorageError(f"{path} already exists: open it, remove it, or choose another path.")


def create_store(path: str | Path, settings: Settings, layout: Layout) -> GalleryStore:
    """An empty store at a path or address."""
    with _usable(path):
        if is_local(path):
            from nearkin.gallery.sqlite.store import SqliteStore, check_layout

            check_layout(layout)
            return SqliteStore.create(Path(path), settings, index=layout.index)
        from nearkin.gallery.milvus import MilvusStore

        return MilvusStore.create(str(path), settings, layout=layout, token=os.environ.get(_TOKEN))


def open_store(path: str | Path, index: str | None) -> GalleryStore:
    """The store at a path or address."""
    check_place(path)
    with _usable(path):
        if is_local(path):
            from nearkin.gallery.sqlite import SqliteStore

            if _is_cut_short(Path(path)):
                raise StorageError(
                    f"{path} is still being created, or that was cut short: try again later, or create it again."
                )
            return SqliteStore.open(Path(path), index=index)
        from nearkin.gallery.milvus import MilvusStore

        return MilvusStore.open(str(path), token=os.environ.get(_TOKEN))


@contextmanager
def _usable(path: str | Path) -> Iterator[None]:
    """Tell in a sentence what the system says of a path: a name that is too long, no permission."""
    try:
        yield
    except OSError as error:
        shown = str(path) if len(str(path)) <= 200 else f"{str(path)[:200]}…"
        raise StorageError(f"{shown} cannot be used ({error.strerror or error}): choose another path.") from error


@contextmanager
def removed_on_error(path: str | Path) -> Iterator[list[GalleryStore]]:
    """Make a gallery in the block, which adds its store to the list; if that fails, nothing of it stays.

    A local one that is cut short is told by its mark, and removed by the next creation. What another process made there
    meanwhile is left alone.
    """
    made: list[GalleryStore] = []
    place = place_of(path)
    with _usable(path):
        fresh = place is not None and not place.exists()
    with _marked(place) if place is not None and is_local(path) else nullcontext():
        try:
            yield made
        except BaseException:
            _remove(path, place, fresh, *made)
            raise


@contextmanager
def _marked(place: Path) -> Iterator[None]:
    """Mark a place in the block as that of a gallery that is not complete, alone among processes.

    Raises:
        StorageError: if another process made something there meanwhile, or the place cannot be written.
    """
    with in_turn(place / f"{_MARK}.lock"):
        check_free(place)
        for file in _content(place):
            file.unlink()
        mark = place / _MARK
        write_text(mark, _MARKED)
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)
            _keep_names(place)


def _keep_names(place: Path) -> None:
    """Have the system write down which files a directory has, where it can be asked to."""
    with suppress(OSError):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove(path: str | Path, place: Path | None, fresh: bool, store: GalleryStore | None = None) -> None:
    """Remove what was made of a gallery, and its place too if that is new."""
    if place is not None and is_local(path):
        if store is not None:
            store.close()
        elif is_gallery(place):  # another process made it
            return
        if fresh:
            shutil.rmtree(place, ignore_errors=True)
            return
        for file in _content(place):
            file.unlink(missing_ok=True)
    elif store is not None:
        from nearkin.gallery.milvus import MilvusStore

        # If Milvus cannot be reached any more, the first error tells it.
        with suppress(StorageError):
            if isinstance(store, MilvusStore) and store.discard() and fresh and place is not None:
                shutil.rmtree(place, ignore_errors=True)


def is_gallery(directory: Path) -> bool:
    """Whether there is a local gallery at a place."""
    from nearkin.gallery.sqlite import SqliteStore

    try:
        SqliteStore.open(directory).close()
    except StorageError:
        return False
    return True
