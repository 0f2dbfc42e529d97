"""Stores: where the bytes of each item are, whether loose files, a zip, Arrow shards or arrays in memory.

Items behind URLs have theirs in `url_store`. URLs are as fsspec writes them: `https://host/a.jpg`, `s3://bucket/a.jpg`,
or a chain, `zip://a.jpg::s3://bucket/b.zip`, whose links stand from the file outwards: the last one says where the
bytes come from.

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

from nearkin.errors import DataError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://|[a-z0-9]+::[A-Za-z][A-Za-z0-9+.\-]*(://|::)")
_INSIDE_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://[^\s'\"<>)]+")
_USER = re.compile(r"^(?!abfss?:|az:|adl:)([^/]+://)[^/]*@")  # Azure's `abfs://container@account` names no person
_HTTP_QUERY = re.compile(r"^(https?://[^?#]*)[?#].*$", re.DOTALL)
_FAMILIES = {"http": "https", "local": "file", "gcs": "gs", "s3a": "s3", "abfss": "abfs"}


def is_url(text: str) -> bool:
    """Whether a text is a URL, chained or not, rather than a path or a name."""
    return _URL.match(text) is not None


def redacted(url: str) -> str:
    """A URL as people may see it: without user, password and query, where secrets are; a path as it is."""
    if not is_url(url):
        return url
    return "::".join(_USER.sub(r"\1", link).partition("?")[0] for link in url.split("::"))


def redacted_text(text: str) -> str:
    """A text whose URLs are as `redacted` gives them."""
    return _INSIDE_TEXT.sub(lambda match: redacted(match[0]), text)


def protocols(url: str) -> list[str]:
    """The protocol of each link, told apart as fsspec does; of two that go to one place, such as http, the usual."""
    return [_FAMILIES.get(name, name) for name in map(_protocol, url.split("::"))]


def file_name(url: str) -> str:
    """The path of the file, without a query, by which its format is told; a path as it is."""
    if not is_url(url):
        return url
    links = url.split("::")
    return _HTTP_QUERY.sub(r"\1", links[_place(links)]).partition("://")[2]


def sibling_url(url: str, path: str) -> str:
    """The URL of what is called `path` in the folder of the file `url`, which lends no query."""
    links = url.split("::")
    place = _place(links)
    link = _HTTP_QUERY.sub(r"\1", links[place])
    links[place] = link[: max(link.rfind("/"), link.find("://") + 2) + 1] + path
    return "::".join(links)


def _place(links: list[str]) -> int:
    """Which link names the file: the first that has a path, since a cache takes that of the link after it."""
    return next((row for row, link in enumerate(links) if link.partition("://")[2]), len(links) - 1)


def _protocol(link: str) -> str:
    name, mark, _ = link.partition("://")
    if mark:
        return name if len(name) > 1 else "file"
    if link.startswith("data:"):
        return "data"
    return link if re.fullmatch("[a-z0-9]+", link) else "file"


MAX_ITEM_BYTES = 1 << 30
"""No single image or recording is this large; whatever claims to be is a mistake or an attack."""

_MAX_ZIP_BYTES = 64 << 30
_MAX_RATIO = 200
_RATIO_FLOOR = 50_000_000

# Absolute (POSIX, UNC, drive), climbing by '..' with either slash, or cut short by a NUL.
_OUTSIDE = re.compile(r"^[\\/]|^[A-Za-z]:[\\/]|(^|[\\/])\.\.([\\/]|$)|\0")


# Hidden files and what file managers leave behind, as any part of a path.
_JUNK = re.compile(r"(?:^|/)(?:\.[^/]*|__macosx|(?:eh)?thumbs\.db|desktop\.ini)(?:/|$)", re.IGNORECASE)


def is_junk(path: str) -> bool:
    """Whether a path is that of a hidden file or of system litter, or below such a folder."""
    return _JUNK.search(path) is not None


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

    def names(self) -> list[str]:
        """Every file below the folder, relative to it, sorted, without hidden files and system litter.

        Raises:
            DataError: a folder below it cannot be read, or is a link.
        """
        found: list[str] = []

        def unreadable(error: OSError) -> None:
            raise DataError(f"{error.filename} cannot be read: {error.strerror}.") from error

        root = os.fspath(self.root)
        for place, folders, files in os.walk(root, onerror=unreadable):
            folders[:] = [name for name in folders if not is_junk(name)]
            for name in folders:
                if os.path.islink(link := os.path.join(place, name)):
                    raise DataError(f"{link} is a link to a folder, which is not followed: copy the folder there.")
            prefix = "" if place == root else os.path.relpath(place, root).replace(os.sep, "/") + "/"
            found.extend(prefix + name for name in files if not is_junk(name))
        return sorted(found)

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
