"""Files written whole or not at all, and one writer of a directory at a time.

A file gets a temporary name and is renamed when it is complete. Threads that share a lock wait for each other;
another process is told to come back.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nearkin.errors import StorageError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it over `path` if the block succeeds.

    A failed block leaves whatever `path` held before. A full disk, a quota or a read-only
    folder becomes a `StorageError` that names the file. What killed processes left of theirs is removed.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    with storing(target):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_orphans(target)
            temporary.touch()
            with _in_use(temporary):
                usual = temporary.stat().st_mode
                yield temporary
                # Some writers make files that only their owner may read.
                temporary.chmod(usual)
                with open(temporary, "rb+") as handle:
                    os.fsync(handle.fileno())
                os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def _in_use(temporary: Path) -> Iterator[None]:
    """Hold a lock on a temporary file in the block, which the system frees when the process ends.

    On Windows a locked file could not be written, so orphans stay there.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with open(temporary, "rb+") as handle:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _remove_orphans(target: Path) -> None:
    """Remove temporary files of a target that no process is writing any more."""
    if sys.platform == "win32":
        return
    import fcntl

    for file in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 8}.tmp"):
        with suppress(OSError), open(file, "rb+") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle.fileno()).st_size:  # an empty one may be about to be locked
                file.unlink()


@contextmanager
def storing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a refused write inside the block into a `StorageError` that names `path`."""
    try:
        yield
    except Exception as error:
        # safetensors wraps the system's error in an exception of its own.
        if isinstance(error, OSError) or type(error).__name__ == "SafetensorError":
            raise StorageError(
                f"Could not write {path} ({error}): make room there or choose another place; "
                "what was there before is unchanged."
            ) from error
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


class WriterLock:
    """The right to write to a directory, such as a gallery, for the length of one call.

    The system frees it when a process ends, however it ends. Processes that the holder forks meanwhile, such as those
    that decode samples, do not share it: otherwise they would keep it for as long as they outlive a killed holder.

    Args:
        directory: what is written to; the lock is its file `writer.lock`, which holds the writer's process id.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._threads = threading.RLock()
        self._held = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock in the block.

        Raises:
            StorageError: if another process holds it, or this thread does already, or the file cannot be written.
        """
        with self._threads:
            if self._held:
                raise StorageError(f"{self._directory} is already being written by this call: wait until it is done.")
            lock, owner = self._acquired(), os.getpid()
            self._held = True
            try:
                yield
            finally:
                self._held = False
                if os.getpid() == owner:  # a forked child has no part in it
                    lock.release()

    def _acquired(self) -> FileLock:
        file = self._directory / "writer.lock"
        if not self._directory.is_dir():  # FileLock would make it
            raise StorageError(f"Cannot write to {self._directory} (no such directory): restore it.")
        lock = FileLock(file, thread_local=False, fallback_to_soft=False, on_acquired=_write_process_id)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            number = ""
            with suppress(OSError):  # Windows lets nobody read a locked file
                number = file.read_text(errors="replace")[:32]
            writer = f"process {number}" if number else "another process"
            raise StorageError(f"{self._directory} is being written by {writer}: try again when it is done.") from error
        except OSError as error:
            raise StorageError(
                f"Cannot write to {self._directory} ({error.strerror}): make it writable, make room there, or use a "
                "copy of it."
            ) from error
        return lock


@contextmanager
def in_turn(file: Path) -> Iterator[None]:
    """Hold a lock file in the block, waiting for whichever process holds it; its folder is made if need be.

    The file is gone afterwards, so three processes may come to hold two of them: look again at what there is to do.
    """
    with storing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(file, thread_local=False, fallback_to_soft=False)
        lock.acquire()
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file
            file.unlink()
        lock.release()


def _write_process_id(handle: int) -> None:
    os.ftruncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())


def cache_directory() -> Path:
    """The directory of the current user for what can be made or downloaded again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nearkin"
