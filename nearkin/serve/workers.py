"""Threads that make calls for the event loop: bounded in what waits, and never kept busy for nobody.

They are daemons: a call that does not come to its end does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread
from time import monotonic
from typing import Any, Generic, TypeVar

from nearkin.serve.problems import Problem

R = TypeVar("R")


class Job(Generic[R]):
    """One call that somebody waits for.

    Attributes:
        answer: what it gives.
        begun: whether a thread has taken it up.
    """

    __slots__ = ("answer", "begun", "call")

    def __init__(self, call: Callable[[], R], answer: asyncio.Future[R]) -> None:
        self.call = call
        self.answer = answer
        self.begun = False

    def withdraw(self) -> None:
        """Drop it unless it has begun: nobody waits for it any more."""
        if not self.begun:
            self.answer.cancel()


class Workers:
    """A few threads and what waits for them.

    Args:
        threads: how many.
        name: of the threads.
        capacity: calls that may wait; more are refused.
    """

    def __init__(self, threads: int, name: str, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._jobs: deque[Job[Any]] = deque()
        self._changed = Condition()
        self._closed = False
        self._threads = [Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(threads)]

    def start(self) -> None:
        """Start the threads; to be called in the event loop that will ask."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], R]) -> Job[R]:
        """Have a call made; if its answer is cancelled before it begins, it is not.

        Raises:
            Problem: if too many wait, or the service ends.
        """
        job = Job(call, self._loop.create_future())
        with self._changed:
            if self._closed:
                raise Problem("stopping", "The service is about to end and takes no more requests.")
            if len(self._jobs) >= self._capacity:
                self._jobs = deque(waiting for waiting in self._jobs if not waiting.answer.done())
            if len(self._jobs) >= self._capacity:
                raise Problem("busy", "Too much is waiting to be answered: try again in a moment.")
            self._jobs.append(job)
            self._changed.notify()
        return job

    def drop(self) -> None:
        """Give up what has not begun; to be called in the event loop."""
        with self._changed:
            waiting, self._jobs = self._jobs, deque()
        for job in waiting:
            job.answer.cancel()

    def close(self, seconds: float) -> bool:
        """Make the calls that were accepted, then end the threads; whether all ended in time."""
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
                result, failure = None, error
            with suppress(RuntimeError):  # the loop has ended: nobody waits
                self._loop.call_soon_threadsafe(_settle, job, result, failure)
            del job, result, failure  # a thread that waits must not hold what it gave

    def _next(self) -> Job[Any] | None:
        with self._changed:
            while not self._jobs:
                if self._closed:
                    return None
                self._changed.wait()
            return self._jobs.popleft()


def _settle(job: Job[Any], result: Any, failure: Exception | None) -> None:
    if job.answer.done():
        return
    if failure is not None:
        job.answer.set_exception(failure)
    else:
        job.answer.set_result(result)
