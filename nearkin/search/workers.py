"""Threads for blocked work on the CPU, each computing alone.

A block goes through a matrix product and a dozen small steps, and torch spreads only some of them over the cores.
Giving every core a block of its own keeps all of them busy throughout, and each block in one core's cache.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
_starting = threading.Lock()


def worker_count(device: torch.device) -> int:
    """How many blocks are in work at once: as many as torch has threads, one on an accelerator."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def even_height(rows: int, most: int, device: torch.device) -> int:
    """How many of so many rows a block has, at the most `most` where that is possible, so that workers get as much."""
    workers = worker_count(device)
    rounds = -(-rows // (workers * max(1, most)))
    return -(-rows // (workers * rounds))


def run_workers(work: Callable[[int], None], device: torch.device) -> None:
    """Call `work(number)` once for each worker, at the same time, without gradients; raises what a worker raised."""
    count = worker_count(device)
    if count == 1:
        with torch.no_grad():
            work(0)
        return

    def without_gradients(number: int) -> None:
        with torch.no_grad():  # grad mode belongs to a thread
            work(number)

    futures = [_pool(count).submit(without_gradients, number) for number in range(count)]
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None:
            raise error


class Queue(Iterable[T]):
    """Items that several workers draw from, each item going to one of them, in order."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._lock = threading.Lock()

    def __iter__(self) -> Queue[T]:
        return self

    def __next__(self) -> T:
        with self._lock:
            return next(self._items)


def lone_threads(count: int, name: str) -> ThreadPoolExecutor:
    """So many threads, each with torch set to one thread of its own; torch's setting elsewhere stays as it is."""
    usual = torch.get_num_threads()
    ready = threading.Barrier(count + 1)

    def alone() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # a thread takes the number over when it first asks: let it ask now
        ready.wait()

    pool = ThreadPoolExecutor(count, thread_name_prefix=name, initializer=alone)
    for _ in range(count):
        pool.submit(lambda: None)
    ready.wait()
    # The setting is a thread's own, but threads born later inherit the last one made: ours must not leak.
    torch.set_num_threads(usual)
    return pool


def _pool(count: int) -> ThreadPoolExecutor:
    """The threads, started once in a process; a forked child needs its own."""
    key = (os.getpid(), count)
    with _starting:
        if key not in _pools:
            _pools[key] = lone_threads(count, "nearkin-search")
        return _pools[key]
