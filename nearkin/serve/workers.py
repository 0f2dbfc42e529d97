"""Threads that work for the event loop: single calls with a bounded queue, and dynamic batches.

Threads are daemons: a call that never returns does not keep the process alive. An item of a batch is first prepared by
a few workers (an image is decoded), then waits for the one thread that runs batches. While that thread is busy, items
pile up and the next batch takes as many as it may; when it is idle and more items are being prepared, it waits a few
milliseconds for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from threading import Condition, Thread
from time import monotonic
from typing import Any, Generic, TypeVar

from nearkin.errors import drop_locals
from nearkin.serve.problems import Problem

R = TypeVar("R")


class Job(Generic[R]):
    """A call and its answer.

    Attributes:
        answer: its result, once there is one.
        begun: whether a thread has started it.
    """

    __slots__ = ("answer", "begun", "call")

    def __init__(self, call: Callable[[], R], answer: asyncio.Future[R]) -> None:
        self.call = call
        self.answer = answer
        self.begun = False

    def withdraw(self) -> None:
        """Cancel it unless it has begun."""
        if not self.begun:
            self.answer.cancel()


class Workers:
    """A few threads with a bounded queue.

    Args:
        threads: number of threads.
        name: of the threads.
        capacity: most waiting calls; more are refused.
    """

    def __init__(self, threads: int, name: str, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._jobs: deque[Job[Any]] = deque()
        self._changed = Condition()
        self._closed = False
        self._threads = [Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(threads)]

    def start(self) -> None:
        """Start the threads; called in the event loop of the callers."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], R]) -> Job[R]:
        """Queue a call; if its answer is cancelled before it begins, it is skipped.

        Raises:
            Problem: if too many are waiting, or the workers are closed.
        """
        job = Job(call, self._loop.create_future())
        with self._changed:
            if self._closed:
                raise _stopping()
            if len(self._jobs) >= self._capacity:
                self._jobs = deque(waiting for waiting in self._jobs if not waiting.answer.done())
            if len(self._jobs) >= self._capacity:
                raise _busy()
            self._jobs.append(job)
            self._changed.notify()
        return job

    def drop(self) -> None:
        """Cancel the calls that have not begun; called in the event loop."""
        with self._changed:
            waiting, self._jobs = self._jobs, deque()
        for job in waiting:
            job.answer.cancel()

    def close(self, seconds: float) -> bool:
        """Finish the accepted calls, then end the threads; returns whether all ended in time."""
        until = monotonic() + seconds
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            if job.answer.done():
                continue
            job.begun = True
            try:
                result, failure = job.call(), None
            except Exception as error:
                drop_locals(error)
                result, failure = None, error
            _deliver(self._loop, [(job.answer, result, failure)])
            del job, result, failure  # do not hold them while waiting

    def _next(self) -> Job[Any] | None:
        with self._changed:
            while not self._jobs:
                if self._closed:
                    return None
                self._changed.wait()
            return self._jobs.popleft()


_Answers = list[tuple[asyncio.Future[Any], Any, Exception | None]]
"""Answers with their results or errors."""


def _deliver(loop: asyncio.AbstractEventLoop, answers: _Answers) -> None:
    """Let the event loop give answers, unless it has ended."""

    def settle() -> None:
        for answer, result, failure in answers:
            if failure is not None and not answer.done():
                answer.set_exception(failure)
            elif not answer.done():
                answer.set_result(result)

    with suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)


T = TypeVar("T")
_Waiting = tuple[Any, asyncio.Future[Any]]
"""An item of a batch and its answer."""


class Batcher(Generic[T, R]):
    """Answers items in batches.

    Args:
        run: answers a batch, in the same order; called in one thread.
        prepare: called with each item first, in a pool of threads; None: nothing.
        threads: number of threads that prepare.
        max_batch: most items of a batch.
        wait: seconds a batch waits for items that are being prepared.
        capacity: most items in progress; more are refused.
        observe: called with the size of every batch.
        name: of its threads.
    """

    def __init__(
        self,
        run: Callable[[list[Any]], Iterable[R]],
        *,
        prepare: Callable[[T], Any] | None = None,
        threads: int = 1,
        max_batch: int = 32,
        wait: float = 0.0,
        capacity: int = 1024,
        observe: Callable[[int], None] = lambda size: None,
        name: str = "batches",
    ) -> None:
        self._run = run
        self._prepare = prepare
        self._pool = Workers(threads if prepare else 0, f"{name}-prepare", capacity)
        self._max_batch = max_batch
        self._wait = wait
        self._capacity = capacity
        self._observe = observe
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._ready: deque[_Waiting] = deque()
        self._preparing = 0
        self._closed = False
        self._changed = Condition()
        self.waiting = 0

    def start(self) -> None:
        """Start the threads; called in the event loop of the callers."""
        self._loop = asyncio.get_running_loop()
        self._pool.start()
        self._thread.start()

    async def submit(self, item: T) -> R:
        """The answer to one item; if the caller is cancelled before its batch begins, it is left out.

        Raises:
            Problem: if too many items are in progress.
        """
        if self.waiting >= self._capacity:
            raise _busy()
        answer: asyncio.Future[R] = self._loop.create_future()
        self.waiting += 1
        try:
            self._enter(item, answer)
            return await answer
        finally:
            self.waiting -= 1
            del item, answer  # an error in the answer holds this frame: the two would keep each other

    def close(self, seconds: float) -> bool:
        """Answer the accepted items, then end the threads; returns whether all ended in time."""
        until = monotonic() + seconds
        with self._changed:
            self._closed = True
            self._changed.notify()
        prepared = self._pool.close(seconds)
        self._thread.join(max(0.0, until - monotonic()))
        return prepared and not self._thread.is_alive()

    def _enter(self, item: T, answer: asyncio.Future[R]) -> None:
        with self._changed:
            if self._closed:
                raise _stopping()
            if self._prepare is None:
                self._ready.append((item, answer))
                self._changed.notify()
                return
            self._pool.submit(partial(self._prepared, item, answer))
            self._preparing += 1

    def _prepared(self, item: Any, answer: asyncio.Future[R]) -> None:
        failure = None
        try:
            if not answer.done() and self._prepare is not None:
                item = self._prepare(item)
        except Exception as error:
            failure = error
        with self._changed:
            self._preparing -= 1
            if failure is None:
                self._ready.append((item, answer))
            self._changed.notify()
        if failure is not None:
            drop_locals(failure)
            _deliver(self._loop, [(answer, None, failure)])
        del item, answer, failure  # the error holds this frame

    def _work(self) -> None:
        while batch := self._next():
            wanted = [(item, answer) for item, answer in batch if not answer.done()]
            if wanted:
                self._observe(len(wanted))
                _deliver(self._loop, self._answers(wanted))

    def _next(self) -> list[_Waiting]:
        """The next batch; empty when the batcher is closed and all is done."""
        with self._changed:
            while not self._ready:
                if self._closed and not self._preparing:
                    return []
                self._changed.wait()
            until = monotonic() + self._wait
            while len(self._ready) < self._max_batch and self._preparing:
                left = until - monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            return [self._ready.popleft() for _ in range(min(self._max_batch, len(self._ready)))]

    def _answers(self, batch: list[_Waiting]) -> _Answers:
        """Each answer with its result or its error; one bad item does not spoil the batch for the others."""
        try:
            results = self._run([item for item, _ in batch])
            return [(answer, result, None) for (_, answer), result in zip(batch, results, strict=True)]
        except Exception as error:
            if len(batch) == 1:
                return [(batch[0][1], None, error)]
        return [self._answers([one])[0] for one in batch]


def _busy() -> Problem:
    return Problem("busy", "Too many requests are waiting: try again in a moment.")


def _stopping() -> Problem:
    return Problem("stopping", "The service is shutting down.")
