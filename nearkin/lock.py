"""One writer at a time: threads that share a lock wait for each other, everybody else is told to come back."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nearkin.errors import StorageError


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
        self._handle: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock in the block.

        Raises:
            StorageError: if another process holds it, or this thread does already, or the file cannot be written.
        """
        with self._threads:
            if self._handle is not None:
                raise StorageError(f"{self._directory} is being written by this very call: wait until it has finished.")
            _HELD.add(self)
            try:
                self._handle = self._taken()
                yield
            finally:
                _HELD.discard(self)
                self._close()

    def _close(self) -> None:
        """Give the lock back; in a forked child, which has closed its copy already, nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _taken(self) -> int:
        """The locked file."""
        try:
            handle = os.open(self._directory / "writer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StorageError(
                f"{self._directory} cannot be written to ({error.strerror}): make it writable, or use a copy of it."
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        except BlockingIOError as error:
            # The writer may not have written its number down yet.
            number = os.pread(handle, 32, 0).decode(errors="replace")
            writer = f"process {number}" if number else "another process"
            os.close(handle)
            raise StorageError(
                f"{self._directory} is being written by {writer}: try again when it has finished."
            ) from error
        except OSError as error:
            os.close(handle)
            raise StorageError(
                f"{self._directory} cannot be written to ({error.strerror}): make room there."
            ) from error
        return handle


_HELD: weakref.WeakSet[WriterLock] = weakref.WeakSet()
"""The locks that this process holds."""


def _let_go() -> None:
    """In a child that was just forked: close its copies, which leaves the holder's lock as it is."""
    for lock in list(_HELD):
        lock._close()
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go)
