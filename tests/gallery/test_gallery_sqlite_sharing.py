"""One writer and many readers: in one process, and in several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nearkin.errors import StorageError
from nearkin.gallery.sqlite import SqliteStore, change, mirror
from nearkin.gallery.store import ABSENT, Record
from nearkin.gallery.values import Settings

DIMENSION = 8
SIZE = 50


def settings_of() -> Settings:
    return Settings("mine", DIMENSION, {"name": "euclidean"})


def batch(number: int) -> tuple[list[Record], np.ndarray]:
    """The whole gallery at one moment: every item has the batch's label, number and vectors."""
    records = [Record(f"i{row:03d}", f"batch {number}", {"batch": number}) for row in range(SIZE)]
    return records, np.full((SIZE, DIMENSION), number, np.float32) + np.arange(SIZE, dtype=np.float32)[:, None] / 1000


@pytest.fixture
def small(monkeypatch) -> None:
    """Several blocks for a batch; rows of replaced items are squeezed out every few writes."""
    monkeypatch.setattr(mirror, "_BYTES", 16 * DIMENSION * 4)
    monkeypatch.setattr(change, "_LEAST_ROWS", 4 * SIZE)


# Several stores of one gallery see each other's writes.


def test_another_store_sees_each_write(tmp_path, small):
    writer = SqliteStore.create(tmp_path, settings_of())
    reader = SqliteStore.open(tmp_path)
    for number in range(12):
        writer.write(*batch(number))
        assert reader.generation == writer.generation
        assert len(reader) == SIZE
        assert reader.class_sizes() == {f"batch {number}": SIZE}
        found = reader.search(batch(number)[1][:3], 1)
        assert (found.distances == 0).all()
        assert [reader.classes()[code] for code in found.codes[:, 0]] == [f"batch {number}"] * 3
    writer.set_note("n", [1])
    assert reader.note("n") == [1]
    reader.write([Record("extra", None)], np.zeros((1, DIMENSION)))
    assert len(writer) == SIZE + 1
    writer.close()
    reader.close()


def test_only_what_changed_is_read_again(tmp_path, monkeypatch):
    writer = SqliteStore.create(tmp_path, settings_of())
    writer.write(*batch(0))
    reader = SqliteStore.open(tmp_path)
    read: list[tuple[int, int]] = []
    whole = mirror.VectorBlocks.points

    def counted(self, first, end):
        read.append((first, end))
        return whole(self, first, end)

    monkeypatch.setattr(mirror.VectorBlocks, "points", counted)
    assert len(reader) == SIZE
    assert read == []
    writer.write([Record("new", "x")], np.zeros((1, DIMENSION)))
    read.clear()
    assert len(reader) == SIZE + 1
    assert read == [(SIZE, SIZE + 1)]
    writer.close()
    reader.close()


# A second writer.

_HOLDER = """
import fcntl, os, sys
with open(sys.argv[1] + "/writer.lock", "r+") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_second_process_is_told_who_writes(tmp_path):
    store = SqliteStore.create(tmp_path, settings_of())
    store.write(*batch(0))
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    for write in (
        lambda: store.write(*batch(1)),
        lambda: store.remove(["i000"]),
        lambda: store.update(["i000"], label="x"),
        lambda: store.set_note("a", 1),
        lambda: store.replace_vectors(settings_of(), iter([])),
    ):
        with pytest.raises(StorageError, match=rf"\b{holder.pid}\b"):
            write()
    assert store.class_sizes() == {"batch 0": SIZE}
    holder.kill()
    holder.wait()
    store.write(*batch(1))
    assert store.class_sizes() == {"batch 1": SIZE}
    holder.stdin.close()
    holder.stdout.close()
    store.close()


def test_readers_go_on_while_new_vectors_are_made_and_writers_wait(tmp_path):
    store = SqliteStore.create(tmp_path, settings_of())
    other = SqliteStore.open(tmp_path)
    records, points = batch(0)
    store.write(records, points)
    ids = [record.id for record in records]
    waiting = threading.Thread(target=lambda: store.remove(["i000"]))

    def slowly() -> Iterator[tuple[list[str], np.ndarray]]:
        yield ids[:25], -points[:25]
        waiting.start()
        for opened in (store, other):
            assert len(opened) == SIZE
            assert opened.search(points[:1], 1).distances[0, 0] == 0
        with pytest.raises(StorageError, match=rf"\b{os.getpid()}\b"):
            other.remove(["i001"])
        with pytest.raises(StorageError, match="call"):
            store.remove(["i001"])
        yield ids[25:], -points[25:]

    store.replace_vectors(settings_of(), slowly())
    waiting.join(30)
    assert store.get(["i000"]) == [None]
    np.testing.assert_array_equal(other.vectors(ids[1:]), -points[1:])
    store.close()
    other.close()


# Nobody sees half of a call.

_READERS = """
import json, os, sys
from pathlib import Path
from nearkin.gallery.sqlite import SqliteStore
place, stop, result = sys.argv[1:]
reader = os.fork()
store = SqliteStore.open(Path(place))
seen = []
Path(f"{result}-{reader > 0}.ready").touch()
while not Path(stop).exists():
    sizes, page = store.class_sizes(), store.page(limit=1000)
    sample = store.sample(1000, 0)
    labels = sorted({item.label for item in page})
    firsts = sorted({int(vector[0] + 0.5) for vector in sample.vectors})
    seen.append([sizes, len(page), labels, firsts, len(sample.keys)])
Path(f"{result}-{reader > 0}.json").write_text(json.dumps(seen))
if reader:
    os.waitpid(reader, 0)
"""


def test_readers_in_other_processes_see_whole_calls(programs, tmp_path):
    store = SqliteStore.create(tmp_path / "g", settings_of())
    store.write(*batch(0))
    arguments = [str(tmp_path / name) for name in ("g", "stop", "result")]
    programs.start(_READERS, *arguments)
    limit = time.monotonic() + 120
    while len(list(tmp_path.glob("*.ready"))) < 2 and time.monotonic() < limit:
        time.sleep(0.01)
    for number in range(1, 60):
        store.write(*batch(number))
    (tmp_path / "stop").touch()
    assert programs.ended() == [0], programs.errors
    for result in ("result-True.json", "result-False.json"):
        seen = json.loads((tmp_path / result).read_text())
        numbers = [int(label[6:]) for sizes, *_ in seen for label in sizes]
        assert len(numbers) == len(seen)
        assert sorted(numbers) == numbers
        assert len(set(numbers)) > 3
        for sizes, count, labels, firsts, sampled in seen:
            assert list(sizes.values()) == [SIZE] == [count] == [sampled]
            assert len(labels) == len(firsts) == 1
    store.close()


def test_threads_read_and_write_at_once(tmp_path, small):
    store = SqliteStore.create(tmp_path, settings_of())
    store.write(*batch(0))
    done = threading.Event()

    def write() -> None:
        for number in range(1, 40):
            store.write(*batch(number))
        done.set()

    def read() -> int:
        rounds = 0
        while not done.is_set():
            rounds += 1
            found = store.search(np.zeros((1, DIMENSION)), 2 * SIZE)
            there = found.codes[0] != ABSENT
            assert there.sum() == SIZE
            assert len(set(found.codes[0, there].tolist())) == 1
            assert np.isfinite(found.distances[0, :SIZE]).all()
            assert np.isinf(found.distances[0, SIZE:]).all()
            assert list(store.class_sizes().values()) == [SIZE]
            assert len({item.label for item in store.page(limit=200)}) == 1
            assert sum(len(items) for items, _ in store.batches(200)) == SIZE
        return rounds

    with ThreadPoolExecutor(5) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        pool.submit(write).result(timeout=60)
        assert all(reader.result(timeout=60) > 0 for reader in readers)
    assert store.class_sizes() == {"batch 39": SIZE}
    store.close()


def test_threads_that_write_wait_for_each_other(tmp_path):
    store = SqliteStore.create(tmp_path, settings_of())

    def write(worker: int) -> None:
        for turn in range(10):
            store.write([Record(f"{worker}-{turn}", f"w{worker}")], np.full((1, DIMENSION), worker))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(store) == 40
    assert store.generation == 40
    assert store.class_sizes() == {f"w{worker}": 10 for worker in range(4)}
    store.close()
