"""Work done side by side in processes of their own, one thread each, that end with the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from nearkin.errors import NearkinError, TrainingError

K = TypeVar("K")

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_PATIENCE = 10.0
"""Seconds that an idle process has to end."""


class Stopped(Exception):
    """Work was stopped and can be resumed."""


class Outcome(NamedTuple):
    """What came of a piece of work.

    Attributes:
        value: what was found; None if nothing was.
        error: why nothing was found; `Stopped` if it was asked to stop.
    """

    value: Any = None
    error: Exception | None = None


class Jobs(Generic[K]):
    """Processes that do pieces of work, at most `count` at once; use as a context manager.

    They are in a session of their own, so Ctrl-C reaches only the process that started them, which then calls `stop`.
    When it dies, they end, too.

    Args:
        do: what to do with a piece of work; both must be picklable, and so must what it returns. It raises `Stopped`
            if SIGTERM asked it to stop.
        count: how many processes.
    """

    def __init__(self, do: Callable[[K], Any], count: int) -> None:
        self._do = do
        self._count = count
        self._idle: list[tuple[BaseProcess, Connection]] = []
        self._busy: dict[Connection, tuple[BaseProcess, K]] = {}
        self._stopping = False

    def __enter__(self) -> Jobs[K]:
        return self

    @property
    def busy(self) -> list[K]:
        """The pieces that are in work."""
        return [piece for _, piece in self._busy.values()]

    @property
    def free(self) -> bool:
        """Whether another piece can be begun now."""
        return len(self._busy) < self._count and not self._stopping

    def begin(self, piece: K) -> None:
        """Begin a piece of work."""
        process, connection = self._idle.pop() if self._idle else self._start()
        connection.send(piece)
        self._busy[connection] = (process, piece)

    def finished(self, seconds: float) -> list[tuple[K, Outcome]]:
        """What was finished, waiting so long for the first; a process that died is an outcome with an error."""
        found = []
        for ready in wait(list(self._busy), timeout=seconds):
            connection: Connection = ready  # type: ignore[assignment]
            process, piece = self._busy.pop(connection)
            try:
                outcome = Outcome(*connection.recv())
                self._idle.append((process, connection))
            except (EOFError, OSError):
                process.join()
                outcome = Outcome(error=Stopped() if self._stopping else _died(process))
                connection.close()
            found.append((piece, outcome))
        return found

    def stop(self) -> None:
        """Ask all processes to stop where they can be resumed; they are still to be waited for by `finished`."""
        if self._stopping:
            return
        self._stopping = True
        for process, _ in self._busy.values():
            process.terminate()

    def __exit__(self, *_: object) -> None:
        for process, _piece in self._busy.values():
            process.kill()
        for process, connection in self._idle:
            with suppress(OSError):
                connection.send(None)
            process.join(_PATIENCE)
            if process.is_alive():
                process.kill()
            connection.close()

    def _start(self) -> tuple[BaseProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self._do))
        with _one_thread():
            process.start()
        theirs.close()
        return process, ours


def _died(process: BaseProcess) -> TrainingError:
    code = process.exitcode or 0
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return TrainingError(f"Its process {how}: if the memory was too small, use fewer jobs or smaller batches.")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Inside the block, processes that start have one thread for each library."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _work(connection: Connection, do: Callable[[Any], Any]) -> None:
    """Do pieces of work until there are no more; runs in a process of its own."""
    if hasattr(os, "setsid"):
        os.setsid()
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError):
        while (piece := connection.recv()) is not None:
            connection.send(_attempt(do, piece))


def _attempt(do: Callable[[Any], Any], piece: Any) -> tuple[Any, Exception | None]:
    try:
        return do(piece), None
    except (Stopped, NearkinError) as error:
        return None, error
    except KeyboardInterrupt:
        return None, Stopped()
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return None, RuntimeError(f"{type(error).__name__}: {error}")


def _end_with_parent() -> None:
    """Wait for the end of the process that started this one, however it comes, and end at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
