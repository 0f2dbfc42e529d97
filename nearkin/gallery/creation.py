"""Making a gallery, all of it or nothing: what was made until something failed is removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nearkin.errors import StorageError
from nearkin.gallery.places import is_local, place_of
from nearkin.gallery.store import Store


class Making:
    """A gallery that is being made at a place that was free.

    Args:
        path: where.

    Attributes:
        store: its store, as soon as there is one.
    """

    def __init__(self, path: str | Path) -> None:
        self.store: Store | None = None
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

    def _undo_collections(self, store: Store) -> None:
        from nearkin.gallery.milvus import MilvusStore

        if isinstance(store, MilvusStore):
            # If Milvus cannot be reached any more, the first error tells it.
            with suppress(StorageError):
                alone = store.discard()
                if alone and self._fresh and self._place is not None:
                    shutil.rmtree(self._place, ignore_errors=True)


@contextmanager
def undone_on_error(path: str | Path) -> Iterator[Making]:
    """Make a gallery in the block; if that fails, nothing of it stays."""
    making = Making(path)
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
