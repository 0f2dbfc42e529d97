"""Where data sets live on this machine: the data directory, and the user's cache beside it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from nearkin.errors import StorageError


def cache_directory() -> Path:
    """The directory of the current user for downloaded data."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nearkin"


def data_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """The data directory: the one given, else `$NEARKIN_DATA`, else the user's cache."""
    chosen = given or os.environ.get("NEARKIN_DATA")
    return Path(chosen).expanduser() if chosen else cache_directory()


def reading_places(given: str | os.PathLike[str] | None = None) -> list[Path]:
    """Directories to look in, in order: what was downloaded past a read-only data directory is in the cache."""
    return list(dict.fromkeys([data_directory(given), cache_directory()]))


def writing_place(given: str | os.PathLike[str] | None = None) -> Path:
    """The first of the `reading_places` that accepts new files."""
    for place in reading_places(given):
        if _is_writable(place):
            return place
    raise StorageError(
        f"Neither {data_directory(given)} nor {cache_directory()} can be written: give a data directory that can."
    )


def _is_writable(place: Path) -> bool:
    # A directory without any write bit is meant to be read only, even for a user whom the system would let write.
    existing = next(folder for folder in (place, *place.absolute().parents) if folder.exists())
    return existing.is_dir() and os.access(existing, os.W_OK) and bool(existing.stat().st_mode & _ANY_WRITE)


_ANY_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
