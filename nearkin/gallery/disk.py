"""How much room a gallery takes on disk."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from nearkin.errors import StorageError


def size_of(directory: Path) -> int:
    """Bytes of all files in a directory and those below it.

    Raises:
        StorageError: if the directory is not there any more.
    """
    if not directory.is_dir():
        raise StorageError(f"The gallery {directory} is not there any more: bring it back, or create it again.")
    return sum(_sizes(directory.rglob("*")))


def _sizes(files: Iterable[Path]) -> Iterable[int]:
    for file in files:
        # A log may be gone again between being listed and being looked at.
        with suppress(FileNotFoundError):
            if file.is_file():
                yield file.stat().st_size
