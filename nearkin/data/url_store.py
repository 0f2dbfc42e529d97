"""Items behind URLs: on the web, in object stores, in archives there; whatever fsspec has a filesystem for.

Credentials come from where each filesystem looks for them (its variables of the environment, its own files, fsspec's
configuration), never from a manifest, and no message shows what a URL holds of them.
"""

from __future__ import annotations

import os
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import unquote

from nearkin.data.stores import (
    MAX_ITEM_BYTES,
    UnreadableError,
    check_inside,
    is_url,
    protocols,
    redacted,
    redacted_text,
    sibling_url,
)
from nearkin.errors import DataError, MissingExtraError, NearkinError

T = TypeVar("T")

ARCHIVES = ("zip", "tar")
"""Links that only look into a file of the link after them."""

_ASKED_AT_ONCE = 16
_VERSIONS = ("etag", "md5", "crc", "digest", "modified", "mtime", "generation", "date_time")
_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError, KeyError)
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError)


class UnreachableError(DataError):
    """An item that could not be fetched for a reason that is not its own: the network, the server, credentials.

    It is no `UnreadableError`: leaving out what cannot be read must not leave out what is merely out of reach.
    """


class UrlStore:
    """Items whose paths are URLs, or relative to a manifest's URL.

    What passes by itself (time-outs, lost connections, a busy server) is tried again a few times. Safe to use from
    threads, after a fork and after pickling.

    Args:
        manifest: the URL of the manifest; its items may then only be where it is: paths inside its folder, URLs of its
            protocol and archives there. None: the manifest is a file of the user's own, and may name any URL.
        timeout: seconds to wait for one item.
        tries: how often one is asked for in all.
        pause: seconds before the second try, doubled for each one after.
    """

    def __init__(
        self, manifest: str | None = None, *, timeout: float = 120.0, tries: int = 4, pause: float = 0.5
    ) -> None:
        self.manifest = manifest
        self.timeout = timeout
        self.tries = tries
        self.pause = pause
        self._signatures: dict[str, str] = {}
        self._lock: tuple[int, threading.Lock] | None = None

    def __repr__(self) -> str:
        return f"UrlStore({None if self.manifest is None else redacted(self.manifest)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_signatures": {}, "_lock": None}

    def read(self, path: str) -> bytes:
        """The item's bytes."""
        raw = self._trying(path, self._fetch)
        if len(raw) > MAX_ITEM_BYTES:
            raise UnreadableError(path, "is larger than 1 GiB, too large for one item")
        return raw

    def signature(self, path: str) -> str:
        """Size and version (ETag, checksum or time of change), as far as the filesystem tells them without reading.

        It is asked for once in the life of the store.
        """
        if path not in self._signatures:
            self._signatures[path] = _version(self._trying(path, self._facts))
        return self._signatures[path]

    def signatures(self, paths: Sequence[str]) -> list[str]:
        """The signature of each path, many asked for at once."""
        with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="facts") as pool:
            return list(pool.map(self.signature, paths))

    def check(self, paths: Iterable[str]) -> None:
        """Raise a `DataError` if a path may not be read here, or needs a package that is missing; nothing is read."""
        chains: dict[tuple[str, ...], str] = {}
        for url in map(self.url, paths):
            chains.setdefault(tuple(protocols(url)), url)
        for url in chains.values():
            check_protocols(url)

    def url(self, path: str) -> str:
        """The whole URL of an item; a `DataError` if it may not be read here."""
        if not is_url(path):
            if self.manifest is None:
                raise DataError(f"The path {path!r} is not a URL, but other paths are: use one of the two throughout.")
            folder = redacted(sibling_url(self.manifest, ""))
            for spelling in (path, unquote(path)):
                check_inside(spelling, folder)
                if "::" in spelling:  # it would be a link of its own once it stands beside the manifest
                    raise DataError(f"The path {path!r} in {folder} holds '::', which chains URLs: rename the file.")
            return sibling_url(self.manifest, path)
        if self.manifest is not None:
            *links, source = protocols(path)
            own = protocols(self.manifest)
            if source != own[-1] or not set(links) <= {*ARCHIVES, *own}:
                raise DataError(
                    f"The manifest {redacted(self.manifest)} names {redacted(path)}: a manifest from {own[-1]}:// may "
                    "name items of that protocol only; if you trust it, copy it to this machine and give the copy."
                )
        return path

    def _fetch(self, url: str) -> bytes:
        filesystem, place = _opened(url)
        return self._called(
            filesystem,
            lambda: filesystem.cat_file(place, start=0, end=MAX_ITEM_BYTES + 1),
            lambda: _downloaded(filesystem, place),
        )

    def _facts(self, url: str) -> dict[str, Any]:
        filesystem, place = _opened(url)
        return self._called(filesystem, lambda: filesystem.info(place), lambda: _asked(filesystem, place))

    def _called(self, filesystem: Any, now: Callable[[], T], later: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a call gives, within the time-out if the filesystem can be awaited."""
        from fsspec.asyn import AsyncFileSystem, sync
        from fsspec.implementations.local import LocalFileSystem
        from fsspec.implementations.memory import MemoryFileSystem

        if isinstance(filesystem, AsyncFileSystem):
            return sync(filesystem.loop, later, timeout=self.timeout)
        if isinstance(filesystem, LocalFileSystem | MemoryFileSystem):
            return now()
        # As of `ZipStore._open`: each process has its own lock, since a fork may copy one that is held.
        lock = self._lock
        if lock is None or lock[0] != os.getpid():
            lock = self._lock = (os.getpid(), threading.Lock())
        with lock[1]:  # archives, caches and FTP have one file position or connection each
            return now()

    def _trying(self, path: str, call: Callable[[str], T]) -> T:
        url = self.url(path)
        for attempt in range(1, self.tries + 1):
            try:
                return call(url)
            except NearkinError:
                raise
            except Exception as error:  # each filesystem has exceptions of its own
                if not _may_pass(error):
                    raise _told(path, error) from None  # the cause may show credentials
                if attempt == self.tries:
                    raise UnreachableError(
                        f"{redacted(path)} could not be fetched in {attempt} tries ({_reason(error)}): check the "
                        "address and the connection, then run the same command again."
                    ) from None
                time.sleep(self.pause * 2 ** (attempt - 1))
        raise DataError(f"A store of URLs needs at least one try, not {self.tries}.")


def check_protocols(url: str) -> None:
    """Refuse a URL with an unknown protocol, or one whose package is not installed."""
    import fsspec

    for name in protocols(url):
        try:
            fsspec.get_filesystem_class(name)
        except ImportError as error:
            raise MissingExtraError(f"URLs with {name}:// need a package that is not installed: {error}.") from error
        except ValueError as error:
            raise DataError(f"{redacted(url)} has a protocol that is not known, {name}://: check the URL.") from error


def _opened(url: str) -> tuple[Any, str]:
    """The filesystem, which fsspec keeps for this process, and the file's place in it."""
    import fsspec

    check_protocols(url)
    return fsspec.core.url_to_fs(url)


async def _downloaded(filesystem: Any, place: str) -> bytes:
    """All bytes of a file, or one more than an item may have."""
    if "https" not in filesystem.protocol:
        return await filesystem._cat_file(place, start=0, end=MAX_ITEM_BYTES + 1)
    # A web server may ignore a range, so what it sends is counted here.
    session = await filesystem.set_session()
    raw = bytearray()
    async with session.get(filesystem.encode_url(place), **filesystem.kwargs) as answer:
        answer.raise_for_status()
        async for some in answer.content.iter_chunked(1 << 16):
            raw += some
            if len(raw) > MAX_ITEM_BYTES:
                break
    return bytes(raw)


async def _asked(filesystem: Any, place: str) -> dict[str, Any]:
    """What there is to know of a file without reading it."""
    if "https" not in filesystem.protocol:
        return await filesystem._info(place)
    session = await filesystem.set_session()
    options = {**filesystem.kwargs, "headers": {**filesystem.kwargs.get("headers", {}), "Accept-Encoding": "identity"}}
    async with session.head(filesystem.encode_url(place), allow_redirects=True, **options) as answer:
        if answer.ok:
            return {"size": answer.content_length, **answer.headers}
    # A signed URL, and some servers, allow nothing but GET; its body is left where it is.
    async with session.get(filesystem.encode_url(place), **options) as answer:
        answer.raise_for_status()
        return {"size": answer.content_length, **answer.headers}


def _version(facts: dict[str, Any]) -> str:
    """What the filesystem tells of a file that changes with its content."""
    told = {name.lower(): value for name, value in facts.items() if value is not None}
    versions = [f"{told[name]}" for name in sorted(told) if any(known in name for known in _VERSIONS)]
    return "-".join([str(told.get("size", "?")), *(versions or [f"{told.get('created', '')}"])])


def _status(error: Exception) -> int | None:
    """The status by which a web server, or a store that speaks HTTP, refused."""
    told = (getattr(error, name, None) for name in ("status", "code"))
    return next((value for value in told if isinstance(value, int)), None)


def _may_pass(error: Exception) -> bool:
    """Whether the same call may succeed a little later."""
    status = _status(error)
    if status is not None:
        return status >= 500 or status in (408, 425, 429)
    return not isinstance(error, (*_MISSING, *_DAMAGED, PermissionError, ValueError, TypeError, NotImplementedError))


def _told(path: str, error: Exception) -> DataError:
    """What to say of an item that will not be there later either."""
    status = _status(error)
    if isinstance(error, _MISSING) or status in (404, 410):
        return UnreadableError(path, "is not there")
    if isinstance(error, PermissionError) or (status is not None and status != 416):  # 416: an empty file has no range
        return UnreachableError(
            f"{redacted(path)} may not be read ({_reason(error)}): check your rights and credentials."
        )
    return UnreadableError(path, f"cannot be read ({_reason(error)})")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    status = _status(error)
    text = str(getattr(error, "message", "") or (getattr(error, "strerror", None) or ("" if status else error)))
    text = redacted_text(text.partition("\n")[0]).rstrip(".")
    return " ".join(str(part) for part in (status, text) if part) or type(error).__name__
