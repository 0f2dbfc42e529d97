"""Folders of shards, on this machine or behind a URL: what the files are called, each written whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nearkin.data.stores import file_name, is_url, protocols, redacted, redacted_text
from nearkin.data.url_store import check_protocols
from nearkin.errors import DataError, NearkinError, StorageError
from nearkin.storage import WriterLock, replacing, storing

MAX_SHARDS = 100_000

_PART = re.compile(r"part-(\d{5})-of-(\d{5,6})\.parquet")


def shard_rows(shard: int, shards: int, items: int) -> range:
    """The rows of one shard: runs in the data's order whose lengths differ by one at most; none where shards abound."""
    check_shard(shard, shards)
    return range(shard * items // shards, (shard + 1) * items // shards)


def check_shard(shard: int, shards: int) -> None:
    """Refuse a number of shards, or of one, that there cannot be."""
    if not 1 <= shards <= MAX_SHARDS:
        raise DataError(f"shards must be a number from 1 to {MAX_SHARDS:,}, not {shards}.")
    if not 0 <= shard < shards:
        raise DataError(f"There is no shard {shard} of {shards}: shards are numbered from 0 to {shards - 1}.")


def part_name(shard: int, shards: int) -> str:
    """The file of a shard."""
    return f"part-{shard:05d}-of-{shards:05d}.parquet"


def unfinished_name(shard: int, shards: int) -> str:
    """The folder of a shard that is being embedded; hidden, so that its chunks are not taken for parts."""
    return f".part-{shard:05d}-of-{shards:05d}.unfinished"


def parsed_part(name: str) -> tuple[int, int] | None:
    """Which shard of how many a file is, by its name; None of other files."""
    found = _PART.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class LocalFolder:
    """A folder of this machine, or of a disk that it shares; files are one level deep.

    Args:
        root: its path.
    """

    root: Path

    def names(self) -> list[str]:
        """What is in it, sorted; nothing if it is not there."""
        try:
            return sorted(os.listdir(self.root))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataError(f"{self.root} is not a folder that can be read ({error.strerror}).") from error

    def open(self, name: str) -> BinaryIO:
        """A file to read from, at any position; an `OSError` if there is none."""
        return open(self.root / name, "rb")

    def writing(self, name: str) -> AbstractContextManager[Path]:
        """A temporary path, which becomes the file if the block succeeds: it is synced and renamed."""
        return replacing(self.root / name)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder's lock; another process that asks for it meanwhile is told to come back."""
        with storing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(WriterLock(self.root).held())
            except StorageError as error:
                # Some shared disks have no locks. Without one, two processes only do the same work twice.
                if getattr(error.__cause__, "errno", None) not in _NO_LOCKS:
                    raise
            yield

    def below(self, name: str) -> LocalFolder:
        """A folder inside, which need not be there."""
        return LocalFolder(self.root / name)

    def discard(self) -> None:
        """Remove it with all that is in it, as far as the disk lets go of it: a shared one may keep what is open."""
        shutil.rmtree(self.root, ignore_errors=True)

    def place(self, name: str) -> str:
        """The path of a file."""
        return str(self.root / name)


class UrlFolder:
    """A folder behind a URL. There are no locks: of two that write one file, the later wins, and it is whole.

    Args:
        url: its URL; a filesystem that can be written to.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url.rstrip("/") if url.partition("://")[2] else url
        check_protocols(url)
        with _told(redacted(url)):
            self._files, self._root = fsspec.core.url_to_fs(self.url)

    def names(self) -> list[str]:
        """What is in it, sorted; nothing if it is not there."""
        with _told(redacted(self.url)):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._root, detail=False)
            except FileNotFoundError:
                return []
        return sorted(name for name in {path.rstrip("/").rpartition("/")[2] for path in found} if name)

    def open(self, name: str) -> BinaryIO:
        """A file to read from, at any position; an `OSError` if there is none."""
        try:
            return self._files.open(f"{self._root}/{name}", "rb")
        except OSError:
            raise
        except Exception as error:  # each filesystem has exceptions of its own
            raise OSError(redacted_text(str(error))) from None

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """A temporary path, which becomes the file if the block succeeds: uploaded by another name and moved."""
        arriving = f"{self._root}/.{name}.{uuid.uuid4().hex[:8]}.tmp"
        with tempfile.TemporaryDirectory(prefix="nearkin-") as folder:
            temporary = Path(folder) / name
            with storing(temporary):
                yield temporary
            with _told(self.place(name)):
                self._files.makedirs(self._root, exist_ok=True)
                self._files.put_file(str(temporary), arriving)
                self._files.mv(arriving, f"{self._root}/{name}")

    def held(self) -> AbstractContextManager[None]:
        """Nothing is held."""
        return nullcontext()

    def below(self, name: str) -> UrlFolder:
        """A folder inside, which need not be there."""
        return UrlFolder(f"{self.url}/{name}")

    def discard(self) -> None:
        """Remove it with all that is in it."""
        with _told(redacted(self.url)):
            self._files.invalidate_cache()
            if self._files.exists(self._root):
                self._files.rm(self._root, recursive=True)

    def place(self, name: str) -> str:
        """The URL of a file, without secrets."""
        return f"{redacted(self.url)}/{name}"


Folder = LocalFolder | UrlFolder


def open_folder(place: str | os.PathLike[str]) -> Folder:
    """The folder at a path or URL; it is made when something is written."""
    text = os.fspath(place)
    if not is_url(text):
        return LocalFolder(Path(text).expanduser())
    return LocalFolder(Path(file_name(text))) if protocols(text) == ["file"] else UrlFolder(text)


def check_division(folder: Folder, shards: int) -> list[str]:
    """What is in a folder; refuse one whose parts are of another number of shards."""
    names = folder.names()
    others = {part[1] for part in map(parsed_part, names) if part is not None and part[1] != shards}
    if others:
        raise DataError(
            f"{folder.place('')} holds parts of {min(others)} shards, not {shards}: pass that number, or write to "
            f"another folder."
        )
    return names


@contextmanager
def _told(place: str) -> Iterator[None]:
    """Turn what a filesystem raises, each its own, into a sentence that names the place and no credentials."""
    try:
        yield
    except NearkinError:
        raise
    except Exception as error:
        reason = redacted_text(str(error).partition("\n")[0]) or type(error).__name__
        raise StorageError(
            f"{place} cannot be written or listed ({reason}): check the address, your rights and that its protocol "
            "can be written to."
        ) from None
