"""Expensive answers, made once for each state of the gallery."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from nearkin.serve.workers import Job, Workers

R = TypeVar("R")

_MOST_KEPT = 32


@dataclass
class _Kept:
    """An answer that was asked for, in one state of the gallery, and how many wait for it."""

    state: Any
    job: Job[Any]
    waiting: int = 0

    @property
    def failed(self) -> bool:
        answer = self.job.answer
        return answer.done() and (answer.cancelled() or answer.exception() is not None)


class Keeper:
    """Answers by name; one that nobody waits for any more is not begun.

    Args:
        timed: waits for a bounded time.
    """

    def __init__(self, timed: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        self._timed = timed
        self._kept: dict[tuple[Any, ...], _Kept] = {}

    async def get(self, key: tuple[Any, ...], state: Any, workers: Workers, call: Callable[[], R]) -> R:
        """What a call gives, made by workers unless it was in this state.

        Raises:
            Problem: if they have too much to do, or it takes too long; what has begun is then still kept.
        """
        found = self._kept.get(key)
        if found is None or found.state != state or found.failed:
            made = _Kept(state, workers.submit(call))
            while len(self._kept) >= _MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            found = self._kept[key] = made
        found.waiting += 1
        try:
            result: R = await self._timed(asyncio.shield(found.job.answer))
            return result
        finally:
            found.waiting -= 1
            if not found.waiting:
                found.job.withdraw()
