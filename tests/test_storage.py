"""Files are written whole or not at all."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time

import pytest

from nearkin.errors import StorageError
from nearkin.storage import WriterLock, replacing, write_json, write_text


def test_a_failed_block_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "file.txt"
    write_text(target, "old")

    def fail_half_way():
        with replacing(target) as temporary:
            temporary.write_text("half of the n")
            raise KeyError

    with pytest.raises(KeyError):
        fail_half_way()
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_missing_parents_are_made(tmp_path):
    write_json(tmp_path / "a" / "b.json", {"x": 1})
    assert (tmp_path / "a" / "b.json").read_text() == '{\n  "x": 1\n}\n'


def test_a_folder_in_the_way_is_a_storage_error(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(StorageError, match="taken"):
        write_text(tmp_path / "taken", "text")


FULL_DISK = """
import resource, signal, sys, pathlib
import torch
from nearkin.errors import StorageError
from nearkin.storage import write_text
from nearkin.training.run import save_state, load_state
folder = pathlib.Path(sys.argv[1])
small = {"weights": {"w": torch.zeros(4)}}
save_state(folder / "last.safetensors", small, {"identity": {}, "state": {"step": 1}})
write_text(folder / "text", "old")
large = {"weights": {"w": torch.zeros(1_000_000)}}
# A limit on file sizes makes the kernel refuse writes as a full disk does, part of the way through.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for write in (
    lambda: save_state(folder / "last.safetensors", large, {"identity": {}, "state": {}}),
    lambda: write_text(folder / "text", "x" * 1_000_000),
):
    try:
        write()
    except StorageError as error:
        print(error)
    else:
        sys.exit("no error")
tensors, facts = load_state(folder / "last.safetensors")
assert facts["state"] == {"step": 1} and tensors["weights"]["w"].shape == (4,)
assert (folder / "text").read_text() == "old"
assert sorted(path.name for path in folder.iterdir()) == ["last.safetensors", "text"]
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on file sizes to stand in for a full disk")
def test_a_write_refused_half_way_keeps_the_last_checkpoint(programs, tmp_path):
    code, output, errors = programs.run(FULL_DISK, tmp_path)
    assert code == 0, errors
    assert str(tmp_path / "last.safetensors") in output
    assert str(tmp_path / "text") in output


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


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_what_a_killed_process_left_is_removed_by_the_next_and_what_is_in_use_stays(tmp_path):
    target = tmp_path / "export [1].parquet"
    child = os.fork()
    if child == 0:
        with replacing(target) as temporary:
            temporary.write_text("half of it")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    other = tmp_path / ".other.parquet.0123abcd.tmp"
    other.write_text("of another target")
    (left,) = set(tmp_path.iterdir()) - {other}
    with replacing(target) as mine:
        mine.write_text("mine")
        write_text(target, "the next call")
        assert set(tmp_path.iterdir()) == {target, mine, other}
    assert not left.exists()
    assert target.read_text() == "mine"
