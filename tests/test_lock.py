"""One writer at a time, and what a fork does to it."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from nearkin.errors import StorageError
from nearkin.lock import WriterLock


def test_a_second_writer_is_refused_until_the_first_has_finished(tmp_path):
    with (
        WriterLock(tmp_path).held(),
        pytest.raises(StorageError, match=str(os.getpid())),
        WriterLock(tmp_path).held(),
    ):
        pass
    with WriterLock(tmp_path).held():
        pass


def _leaves(lock: WriterLock) -> None:
    """End the block in a forked child, where a file of its own has taken the number of the lock's."""
    with lock.held():
        child = os.fork()
        if child == 0:
            taken = os.open(os.devnull, os.O_RDONLY)
    if child == 0:
        os.fstat(taken)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_that_ends_the_block_closes_nothing_of_its_own(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=_leaves, args=(WriterLock(tmp_path),))
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_child_that_was_forked_meanwhile_neither_keeps_nor_frees_the_lock(tmp_path):
    with WriterLock(tmp_path).held():
        fork = multiprocessing.get_context("fork")
        started = fork.Event()
        child = fork.Process(target=lambda: (started.set(), time.sleep(60)))
        child.start()
        assert started.wait(30)
        with pytest.raises(StorageError, match=str(os.getpid())), WriterLock(tmp_path).held():
            pass
    try:
        assert child.is_alive()
        with WriterLock(tmp_path).held():
            pass
    finally:
        child.kill()
        child.join()
