"""Dynamic batching: what many requests ask for at once is answered in one pass.

A job is first prepared in a small pool of threads (an image is decoded), then waits until the one thread that runs
batches is free. While that thread is busy jobs pile up, and the next batch takes as many of them as it may; when it is
idle and more jobs are being prepared, it waits a few milliseconds for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from threading import Condition, Thread
from time import monotonic
from typing import Any, Generic, TypeVar

from nearkin.serve.problems import Problem

T = TypeVar("T")
R = TypeVar("R")


class _Job:
    """One thing that somebody waits for."""

    __slots__ = ("answer", "item")

    def __init__(self, item: Any, answer: asyncio.Future[Any]) -> None:
        self.item = item
        self.answer = answer


class Batcher(Generic[T, R]):
    """Answers items in batches.

    Args:
        run: answers a batch, in the same order; called in one thread.
        prepare: what to do with each item before, in threads; None: nothing.
        threads: how many threads prepare.
        max_batch: items of a batch.
        wait: seconds that a batch waits for items that are being prepared.
        capacity: items that may be under way; more are refused.
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
        self._threads = threads
        self._max_batch = max_batch
        self._wait = wait
        self._capacity = capacity
        self._observe = observe
        self._name = name
        self._raw: SimpleQueue[_Job | None] = SimpleQueue()
        self._ready: deque[_Job] = deque()
        self._preparing = 0
        self._closed = False
        self._changed = Condition()
        self.waiting = 0

    def start(self) -> None:
        """Start the threads; to be called in the event loop that will ask."""
        self._loop = asyncio.get_running_loop()
        # Daemons: an image that takes very long to decode must not keep the process from ending.
        self._pool = [
            Thread(target=self._prepare_all, name=f"{self._name}-prepare", daemon=True) for _ in range(self._threads)
        ]
        self._thread = Thread(target=self._work, name=self._name, daemon=True)
        for thread in (*self._pool, self._thread):
            thread.start()

    async def submit(self, item: T) -> R:
        """The answer to one item; if the caller is cancelled before its batch begins, it is left out of it.

        Raises:
            Problem: if too much is under way.
        """
        if self.waiting >= self._capacity:
            raise Problem("busy", "Too much is waiting to be answered: try again in a moment.")
        job = _Job(item, self._loop.create_future())
        self.waiting += 1
        try:
            self._enter(job)
            answer: R = await job.answer
            return answer
        finally:
            self.waiting -= 1

    def close(self, seconds: float) -> bool:
        """Answer what was accepted, then end the threads; whether all ended in time."""
        until = monotonic() + seconds
        with self._changed:
            self._closed = True
            self._changed.notify()
        for _ in self._pool:
            self._raw.put(None)
        threads = [*self._pool, self._thread]
        for thread in threads:
            thread.join(max(0.0, until - monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _enter(self, job: _Job) -> None:
        with self._changed:
            if self._closed:
                raise Problem("stopping", "The service is about to end and takes no more requests.")
            if self._prepare is None:
                self._ready.append(job)
                self._changed.notify()
                return
            self._preparing += 1
            self._raw.put(job)

    def _prepare_all(self) -> None:
        while (job := self._raw.get()) is not None:
            self._prepared(job)
            del job  # a thread that waits must not hold an image

    def _prepared(self, job: _Job) -> None:
        failure = None
        try:
            if not job.answer.done() and self._prepare is not None:
                job.item = self._prepare(job.item)
        except Exception as error:
            failure = error
        with self._changed:
            self._preparing -= 1
            if failure is None:
                self._ready.append(job)
            self._changed.notify()
        if failure is not None:
            self._deliver([(job, failure)])

    def _work(self) -> None:
        while jobs := self._next():
            wanted = [job for job in jobs if not job.answer.done()]
            if wanted:
                self._observe(len(wanted))
                self._deliver(self._answers(wanted))

    def _next(self) -> list[_Job]:
        """The jobs of the next batch; none when the batcher is closed and all is done."""
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

    def _answers(self, jobs: list[_Job]) -> list[tuple[_Job, Any]]:
        """Each job with its answer or what went wrong; one bad item does not spoil the batch for the others."""
        try:
            return list(zip(jobs, self._run([job.item for job in jobs]), strict=True))
        except Exception as error:
            if len(jobs) == 1:
                return [(jobs[0], error)]
        return [self._answers([job])[0] for job in jobs]

    def _deliver(self, answers: list[tuple[_Job, Any]]) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody waits
            self._loop.call_soon_threadsafe(_settle, answers)


def _settle(answers: list[tuple[_Job, Any]]) -> None:
    for job, answer in answers:
        if job.answer.done():
            continue
        if isinstance(answer, Exception):
            job.answer.set_exception(answer)
        else:
            job.answer.set_result(answer)
