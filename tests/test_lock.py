"""One writer at a time, and what a fork does to it."""

from __future__ import annotations

import multiprocessing
import time

import pytest

from nearkin.errors import StorageError
from nearkin.lock import WriterLock


def test_a_second_writer_is_refused_until_the_first_has_finished(tmp_path):
    with (
        WriterLock(tmp_path).held(),
        pytest.raises(StorageError, match="is being written by process"),
        WriterLock(tmp_path).held(),
    ):
        pass
    with WriterLock(tmp_path).held():
        pass


def test_a_child_that_was_forked_meanwhile_neither_keeps_nor_frees_the_lock(tmp_path):
    with WriterLock(tmp_path).held():
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        with pytest.raises(StorageError, match="is being written by process"), WriterLock(tmp_path).held():
            pass
    try:
        assert child.is_alive()
        with WriterLock(tmp_path).held():
            pass
    finally:
        child.kill()
        child.join()
