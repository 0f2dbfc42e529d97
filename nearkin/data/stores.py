"""Stores: where the bytes of each item are, whether loose files, a zip, Arrow shards or arrays in memory.

Items behind URLs have theirs in `url_store`.

Every store can be pickled for worker processes and opens its files when first read, in the process that reads.
"""

from __future__ import annotations

import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from nearkin.data.urls import redacted
from nearkin.errors import DataError

MAX_ITEM_BYTES = 1 << 30
"""No single image or recording is this large; whatever claims to be is a mistake or an attack."""

_MAX_ZIP_BYTES = 64 << 30
_MAX_RATIO = 200
_RATIO_FLOOR = 50_000_000

# Absolute (POSIX, UNC, drive), climbing by '..' with either slash, or cut short by a NUL.
_OUTSIDE = re.compile(r"^[\\/]|^[A-Za-z]:[\\/]|(^|[\\/])\.\.([\\/]|$)|\0")


class UnreadableError(DataError):
    """One item that cannot be read or decoded.

    Args:
        path: the item, as the manifest names it.
        reason: what is wrong with it, to be read after the path: "is truncated".
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{redacted(self.path)} {self.reason}."


class Store(Protocol):
    """Where the items of a manifest are kept."""

    def read(self, path: str) -> bytes | np.ndarray:
        """The encoded bytes of an item, or uint8 (H, W) or (H, W, 3) where the source holds decoded images."""
        ...

    def signature(self, path: str) -> str:
        """A short string, cheap to get, that changes with the item's content."""
        ...


@runtime_checkable
class RemoteStore(Store, Protocol):
    """A store far away, which is asked for many signatures at once."""

    def signatures(self, paths: Sequence[str]) -> list[str]:
        """The signature of each path."""
        ...


def signatures(store: Store, paths: Sequence[str]) -> list[str]:
    """The signature of each path."""
    return store.signatures(paths) if isinstance(store, RemoteStore) else [store.signature(path) for path in paths]


def check_inside(path: str, root: str | Path) -> None:
    """Refuse a path that is absolute or climbs out of its root, in the spelling of any system."""
    if _OUTSIDE.search(path) or os.path.isabs(path):
        raise DataError(f"The path {path!r} points outside {root}: use paths relative to it, without '..'.")


class FolderStore:
    """Loose files under one folder.

    Absolute paths, `..` and symbolic links that leave the folder are refused.

    Args:
        root: the folder that the paths are relative to.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._real = os.path.realpath(root)
        self._folders: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"FolderStore({str(self.root)!r})"

    def read(self, path: str) -> bytes:
        """The file's bytes."""
        place, _ = self._locate(path)
        try:
            return Path(place).read_bytes()
        except OSError as error:
            raise UnreadableError(path, f"cannot be read ({error.strerror or error})") from error

    def signature(self, path: str) -> str:
        """Size and time of last change."""
        _, status = self._locate(path)
        return f"{status.st_size:x}-{status.st_mtime_ns:x}"

    def check(self, paths: Iterable[str]) -> None:
        """Raise a `DataError` unless every path is inside the folder and a regular file."""
        for path in paths:
            self._locate(path)

    def _locate(self, path: str) -> tuple[str, os.stat_result]:
        check_inside(path, self.root)
        head, tail = os.path.split(path)
        folder = self._folders.get(head)
        if folder is None:  # resolving every parent of every file again would cost more than reading small files
            folder = self._folders[head] = self._inside(os.path.join(self._real, head), path)
        place = os.path.join(folder, tail)
        try:
            if os.path.islink(place):
                place = self._inside(place, path)
            status = os.stat(place)
        except FileNotFoundError as error:
            hint = " (write paths with forward slashes)" if "\\" in path else ""
            raise UnreadableError(path, f"is not in {self.root}{hint}") from error
        except OSError as error:
            raise UnreadableError(path, f"cannot be read ({error.strerror or error})") from error
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError(path, "is not a regular file")
        if status.st_size > MAX_ITEM_BYTES:
            raise UnreadableError(path, "is larger than 1 GiB, too large for one item")
        return place, status

    def _inside(self, place: str, path: str) -> str:
        real = os.path.realpath(place)
        if real != self._real and not real.startswith(self._real.rstrip(os.sep) + os.sep):
            raise DataError(f"The path {path!r} is a link that leaves {self.root}: copy the files into the folder.")
        return real


class ZipStore:
    """The entries of a zip file, read in place and never extracted.

    Entries that point outside the archive, are links, are encrypted, or would unpack to absurd sizes are
    refused when the archive is first opened. Safe to use from threads, after a fork and after pickling.

    Args:
        path: the zip file.
        prefix: a folder inside the zip that the paths are relative to, "" or ending in "/".
    """

    def __init__(self, path: str | Path, prefix: str = "") -> None:
        self.path = Path(path)
        self.prefix = prefix
        self._handle: tuple[int, zipfile.ZipFile] | None = None

    def __repr__(self) -> str:
        return f"ZipStore({str(self.path)!r}, prefix={self.prefix!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}

    def names(self) -> list[str]:
        """All file entries below the prefix, relative to it, in the archive's order."""
        entries = self._open().NameToInfo
        start = len(self.prefix)
        return [name[start:] for name in entries if name.startswith(self.prefix) and not name.endswith("/")]

    def below(self, prefix: str) -> ZipStore:
        """The same archive seen from one of its folders."""
        store = ZipStore(self.path, self.prefix + prefix)
        store._handle = self._handle
        return store

    def read(self, path: str) -> bytes:
        """The entry's bytes, checked against its checksum."""
        archive, entry = self._open(), self._entry(path)
        try:
            return archive.read(entry)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
            raise UnreadableError(path, f"is damaged inside {self.path} ({error})") from error

    def signature(self, path: str) -> str:
        """Checksum and size, as the archive's directory states them."""
        entry = self._entry(path)
        return f"{entry.CRC:08x}-{entry.file_size:x}"

    def check(self, paths: Iterable[str]) -> None:
        """Raise a `DataError` unless every path is an entry of the archive."""
        for path in paths:
            self._entry(path)

    def _entry(self, path: str) -> zipfile.ZipInfo:
        try:
            return self._open().NameToInfo[self.prefix + path]
        except KeyError:
            check_inside(path, self.path)
            hint = " (write paths with forward slashes)" if "\\" in path else ""
            raise UnreadableError(path, f"is not in {self.path}{hint}") from None

    def _open(self) -> zipfile.ZipFile:
        # A forked child shares its parent's file position, so each process has a handle of its own. Two threads
        # that race here open the archive twice and one handle is dropped; a lock could be held across a fork.
        handle = self._handle
        if handle is None or handle[0] != os.getpid():
            try:
                archive = zipfile.ZipFile(self.path)
            except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
                raise DataError(f"{self.path} is not a readable zip file ({error}): make or copy it again.") from error
            _check_entries(archive.infolist(), self.path)
            handle = self._handle = (os.getpid(), archive)
        return handle[1]


def _check_entries(entries: list[zipfile.ZipInfo], path: Path) -> None:
    total = 0
    for entry in entries:
        name, size = entry.filename, entry.file_size
        if _OUTSIDE.search(name) or "\0" in entry.orig_filename:
            raise DataError(f"The zip file {path} holds the entry {name!r}, which points outside it: do not trust it.")
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise DataError(f"The zip file {path} holds the link {name!r}: zip the files themselves.")
        if entry.flag_bits & 0x1:
            raise DataError(f"The zip file {path} is encrypted (entry {name!r}): zip it again without a password.")
        if size > MAX_ITEM_BYTES or (size > _RATIO_FLOOR and size > _MAX_RATIO * max(entry.compress_size, 1)):
            raise DataError(
                f"The zip file {path} looks like a zip bomb: {name!r} would unpack from {entry.compress_size:,} "
                f"to {size:,} bytes; remove that entry."
            )
        total += size
    if total > _MAX_ZIP_BYTES:
        raise DataError(f"The zip file {path} looks like a zip bomb: it would unpack to {total:,} bytes; split it.")


class ArrayStore:
    """Decoded images in memory.

    Args:
        images: uint8, all as one array (n, H, W) or (n, H, W, 3) with `names`, or name to array.
        names: the path of each image when `images` is one array.
    """

    def __init__(
        self, images: np.ndarray | Sequence[np.ndarray] | Mapping[str, np.ndarray], names: Sequence[str] | None = None
    ) -> None:
        if isinstance(images, Mapping):
            names, images = list(images), list(images.values())
        if names is None or len(names) != len(images):
            raise DataError(f"{len(images)} images need as many names, not {0 if names is None else len(names)}.")
        self._images = images
        self._rows = {str(name): row for row, name in enumerate(names)}

    def __repr__(self) -> str:
        return f"ArrayStore({len(self._rows)} images)"

    def read(self, path: str) -> np.ndarray:
        """The image, uint8 (H, W) or (H, W, 3)."""
        try:
            return np.asarray(self._images[self._rows[path]])
        except KeyError:
            raise UnreadableError(path, "is not among the arrays") from None

    def signature(self, path: str) -> str:
        """Checksum and shape of the pixels."""
        image = np.ascontiguousarray(self.read(path))
        return f"{zlib.crc32(image.data):08x}-{'x'.join(map(str, image.shape))}"
