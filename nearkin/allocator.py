"""glibc's allocator told to keep memory, waiting threads told to sleep: why is said in nearkin/models/speed.py.

Imports nothing heavy.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8


@cache
def tune_allocator() -> bool:
    """Make glibc keep freed memory for the next tensor; the process then stays at its largest size.

    Safe to call often; models call it. Threads that were started before it keep what memory they have of their own, so
    a program that computes in threads calls it first of all, before numpy and torch start theirs: the `nearkin` command
    does. Elsewhere than on Linux with glibc it does nothing.

    Returns:
        Whether the allocator was tuned.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    # No block by mmap; give nothing back below 2 GiB of free memory at the top; grow in steps of 64 MiB. One arena: the
    # heaps of the others, which threads get, give their memory back whatever the threshold is.
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 64 * 2**20), (_M_ARENA_MAX, 1))
    results = [mallopt(parameter, value) for parameter, value in settings]
    return all(result == 1 for result in results)


def trim_memory() -> None:
    """Give freed memory back to the system, whatever the allocator was told; some milliseconds, and it takes it anew.

    Elsewhere than on Linux with glibc it does nothing.
    """
    if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL("libc.so.6").malloc_trim(0)


_SPINS = "1000"
"""Turns in which a thread waits awake, some microseconds; libgomp's own 300,000 are more than a millisecond."""
_TICKS = "14"
"""The same for NumPy's products (OpenBLAS), 2^14 ticks of the clock; their own 2^26 are some 20 milliseconds."""


def tune_threads() -> None:
    """Make the threads of OpenMP and OpenBLAS fall asleep soon when they wait.

    A thread that waits awake keeps the core from the one it waits for, if anything else runs on the machine: decoders,
    or other programs. Call it before numpy and torch are imported, which read the settings then: the `nearkin` command
    does. Settings in the environment (OMP_WAIT_POLICY, GOMP_SPINCOUNT, OPENBLAS_THREAD_TIMEOUT) are left alone.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ["GOMP_SPINCOUNT"] = _SPINS
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", _TICKS)
