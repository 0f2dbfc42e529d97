"""A writer that is killed at any moment: all of a call is there afterwards, or nothing of it.

This file is also the program that writes: `python test_gallery_sqlite_crash.py` imports once, then forks a writer for
every line it reads, so that a kill costs milliseconds.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearkin.gallery.sqlite import SqliteStore, change, mirror
from nearkin.gallery.store import Record
from nearkin.gallery.values import Settings

KILLS = 60
_LABELS = [None, "ant", "bee", "cat"]

# What a gallery must hold: id -> (label, metadata value, seed of its vector), and the number of its settings.
Model = dict[str, tuple[str | None, int, int]]


def _settings(number: int) -> Settings:
    return Settings(f"model {number}", 16 + 8 * (number % 3), {"name": "euclidean"}, fingerprint=str(number))


def _vector(seed: int, number: int) -> np.ndarray:
    """The vector of an item under the settings of this number."""
    dimension = _settings(number).dimension
    return (np.arange(dimension, dtype=np.float32) * (seed % 977) + seed + 1000 * number) % 1009


def _vectors(model: Model, ids: list[str], number: int) -> np.ndarray:
    return np.stack([_vector(model[name][2], number) for name in ids])


def _step(model: Model, number: int, step: int) -> tuple[str, Any, Model, int]:
    """What step number `step` does, with what, and what the gallery holds and is tied to after it."""
    rng = np.random.default_rng(step)
    names = sorted(model)
    what = ["add", "add", "remove", "update", "rebuild"][int(rng.integers(5))] if len(names) > 300 else "add"
    after = dict(model)
    if what == "add":
        ids = [f"i{row:05d}" for row in rng.choice(1500, 400, replace=False)]
        after.update({name: (_LABELS[int(rng.integers(4))], step, 1000 * step + row) for row, name in enumerate(ids)})
        return what, ids, after, number
    chosen = [
        names[row] for row in rng.choice(len(names), len(names) // (3 if what == "rebuild" else 2), replace=False)
    ]
    if what == "update":
        after.update({name: (f"label {step}", step, model[name][2]) for name in chosen})
        return what, chosen, after, number
    for name in chosen:
        del after[name]
    return what, chosen, after, number + (what == "rebuild")


def _perform(store: SqliteStore, what: str, ids: list[str], after: Model, number: int) -> None:
    if what == "add":
        records = [Record(n, after[n][0], {"v": after[n][1]}, thumbnail=b"t" * 50, original=b"o" * 99) for n in ids]
        store.write(records, _vectors(after, ids, number))
    elif what == "remove":
        store.remove(ids)
    elif what == "update":
        store.update(ids, label=after[ids[0]][0], metadata={"v": after[ids[0]][1]})
    else:
        names = sorted(after)
        parts = [names[row : row + 100] for row in range(0, len(names), 100)]
        store.replace_vectors(_settings(number), iter([(p, _vectors(after, p, number)) for p in parts]), drop=ids)


def _small_blocks() -> None:
    """Many blocks, and removed rows squeezed out often: more places to be killed in."""
    mirror._BYTES = 2**14
    change._LEAST_ROWS = 1000


def _write_for_ever(directory: Path, journal: int, history: tuple[int, ...], first: int) -> None:
    store = SqliteStore.open(directory)
    model, number = _after(history)
    os.write(journal, b"ready\n")
    for step in range(first, first + 1000):
        what, ids, model, number = _step(model, number, step)
        os.write(journal, f"begin {step}\n".encode())
        _perform(store, what, ids, model, number)
        os.write(journal, f"end {step}\n".encode())


@cache
def _after(history: tuple[int, ...]) -> tuple[Model, int]:
    """What a gallery holds and is tied to after some steps."""
    if not history:
        return {}, 0
    _, _, model, number = _step(*_after(history[:-1]), history[-1])
    return model, number


def _serve() -> None:
    """Fork a writer for each line, the arguments of `killed`; say its process id, then that it has ended."""
    _small_blocks()
    for line in sys.stdin:
        directory, journal, steps, first = json.loads(line)
        history = tuple(steps)
        _after(history)  # remembered here, so that no writer has to begin from nothing
        child = os.fork()
        if child == 0:
            _write_for_ever(Path(directory), os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND), history, first)
            os._exit(1)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)


class _Writers:
    def __init__(self) -> None:
        quiet = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet
        )

    def killed(
        self, directory: Path, journal: Path, history: tuple[int, ...], first: int, calls: int, delay: float
    ) -> list[str]:
        """The journal of a writer that went on after a history and was killed, some time after some calls."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([str(directory), str(journal), history, first]) + "\n")
        self._server.stdin.flush()
        child = int(self._server.stdout.readline())
        limit = time.monotonic() + 30
        while not (journal.exists() and journal.read_text().count("\n") > 2 * calls) and time.monotonic() < limit:
            time.sleep(0.0005)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        assert self._server.stdout.readline() == "ended\n"
        return journal.read_text().split("\n")[1:-1]

    def close(self) -> None:
        self._server.communicate(timeout=10)


@pytest.fixture
def writers(monkeypatch) -> Iterator[_Writers]:
    monkeypatch.setattr(mirror, "_BYTES", 2**14)
    monkeypatch.setattr(change, "_LEAST_ROWS", 1000)
    made = _Writers()
    yield made
    made.close()


def _holds(directory: Path, model: Model, number: int) -> bool:
    """Whether the gallery is exactly this."""
    store = SqliteStore.open(directory)
    try:
        items = store.page(limit=10_000)
        held = {item.id: (item.label, item.metadata["v"]) for item in items}
        if held != {name: value[:2] for name, value in model.items()} or store.settings != _settings(number):
            return False
        names = sorted(model)
        assert len(store) == len(names)
        assert sum(store.class_sizes().values()) == len(names)
        assert all(item.thumbnail for item in items)
        if names:
            np.testing.assert_array_equal(store.vectors(names), _vectors(model, names, number))
            found = store.search(_vectors(model, names[:20], number), 1)
            assert (found.distances == 0).all()
            sample = store.sample(10_000, 0)
            classes = [*store.classes(), None]
            assert [item.label for item in store.items(sample.keys)] == [classes[code] for code in sample.codes]
        return True
    finally:
        store.close()


def _integrity(directory: Path) -> list[Any]:
    connection = sqlite3.connect(directory / "gallery.sqlite")
    try:
        items, pictures, originals = (
            {slot for (slot,) in connection.execute(f"SELECT slot FROM {table}")}
            for table in ("items", "thumbnails", "originals")
        )
        assert items == pictures == originals
        return connection.execute("PRAGMA integrity_check").fetchall()
    finally:
        connection.close()


@pytest.mark.slow
def test_a_killed_writer_leaves_all_of_a_call_or_nothing(tmp_path, writers):
    directory = tmp_path / "a b?.gallery"
    SqliteStore.create(directory, _settings(0)).close()
    rng = np.random.default_rng(0)
    history: tuple[int, ...] = ()
    cut: list[str] = []
    for kill in range(KILLS):
        plan = history, 1000 * kill, int(rng.integers(4)), float(rng.uniform(0, 0.03))
        lines = writers.killed(directory, tmp_path / f"journal{kill}", *plan)
        complete = history + tuple(int(line[4:]) for line in lines if line.startswith("end"))
        begun = history + tuple(int(line[6:]) for line in lines if line.startswith("begin"))
        assert len(begun) - len(complete) in (0, 1)
        if begun != complete:
            cut.append(_step(*_after(complete), begun[-1])[0])
        held = [steps for steps in (complete, begun) if _holds(directory, *_after(steps))]
        assert held, f"kill {kill}: the gallery is neither that of {len(complete)} nor of {len(begun)} calls"
        assert _integrity(directory) == [("ok",)]
        history = held[-1]
    assert set(cut) == {"add", "remove", "update", "rebuild"}, "every kind of call must have been cut short"
    assert len(cut) > KILLS / 3


if __name__ == "__main__":
    _serve()
