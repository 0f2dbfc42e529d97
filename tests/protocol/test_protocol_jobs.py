"""Models side by side in processes: the same book as one after the other, however it is stopped."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

from nearkin.data.sources import open_data
from nearkin.errors import DataError, TrainingError
from nearkin.protocol import Candidate
from nearkin.protocol.worker import Jobs, Stopped
from nearkin.recipe import load_recipe


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Pictures are looked at elsewhere."""
    monkeypatch.setattr("nearkin.protocol.tables.draw_benchmark", lambda *_, **__: b"")


def cells(path: Path) -> dict[str, str]:
    """The ledger's lines by cell, without what differs from one time to the next."""
    rows = [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]
    named = {json.dumps([row[key] for key in ("recipe", "kind", "seed", "fold")]): row for row in rows}
    assert len(named) == len(rows)
    return {name: json.dumps({key: row[key] for key in row if key != "seconds"}) for name, row in named.items()}


def same_queries(left: Path, right: Path) -> bool:
    files = [sorted(file.name for file in (path / "queries").iterdir()) for path in (left, right)]
    both = [(path / "queries" / name).read_bytes() for path in (left, right) for name in files[0]]
    return files[0] == files[1] and both[: len(files[0])] == both[len(files[0]) :]


SHORT = ["training.max_steps=40", "training.evaluate_every=4", "training.log_every=2"]


def candidates(tiny):
    """Two recipes that train, and one that cannot."""
    bad = load_recipe("contrastive", [*tiny, "training.lr=1e30", "training.optimizer=sgd"])
    return [
        *(Candidate(name, load_recipe(name, [*tiny, *SHORT])) for name in ("triplet", "contrastive")),
        Candidate("bad", bad),
    ]


@pytest.fixture(scope="module")
def one_by_one(bench, photos, tiny, tmp_path_factory):
    """The book of one job with one thread."""
    assert torch.get_num_threads() == 1
    path = tmp_path_factory.mktemp("one") / "book"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nearkin.protocol.tables.draw_benchmark", lambda *_, **__: b"")
        bench(candidates(tiny), path, open_data(photos))
    return path


def test_two_jobs_give_the_book_of_one(one_by_one, bench, photos, tiny, tmp_path, capsys):
    path = tmp_path / "book"
    done = bench(candidates(tiny), path, open_data(photos), jobs=2, progress=True)
    assert (done.interrupted, done.summary.missing) == (False, 3)
    assert sorted(failure.split(":")[0] for failure in done.failures) == ["bad, fold 1, seed 0", "bad, fold 2, seed 0"]
    assert cells(path) == cells(one_by_one)
    assert same_queries(path, one_by_one)
    assert sorted(entry.name for entry in path.iterdir()) == sorted(entry.name for entry in one_by_one.iterdir())
    told = capsys.readouterr().err
    assert "Finished: contrastive, fold 2, seed 0" in told
    assert "steps at the most: 184/184" in told


COMMAND = """
import sys
from pathlib import Path
import torch
from nearkin.data.sources import open_data
from nearkin.protocol import Candidate, run_benchmark
from nearkin.recipe import load_recipe

if __name__ == "__main__":
    photos, book, overrides = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    names = ("triplet", "contrastive")
    result = run_benchmark(
        open_data(photos), [Candidate(name, load_recipe(name, overrides)) for name in names], book,
        folds=2, seeds=1, cache_directory=book.parent, progress=False, jobs=2,
    )
    sys.exit(130 if result.interrupted else 0)
"""


def children(pid: int) -> list[int]:
    return [process.pid for process in psutil.Process(pid).children(recursive=True)]


def gone(pids: list[int]) -> bool:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if not any(Path(f"/proc/{pid}").exists() and "Z" not in _state(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopped_or_killed_the_same_benchmark_gives_the_same_book(
    how, one_by_one, bench, photos, tiny, programs, tmp_path
):
    for turn in range(5):
        path = tmp_path / f"book{turn}"
        (process,) = programs.start(COMMAND, photos, path, *tiny, *SHORT)
        until = time.monotonic() + 60
        while len(list(path.glob("runs/*/last.safetensors"))) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        workers = children(process)
        os.kill(process, how)
        (code,) = programs.ended()
        if code:  # else it had finished before the signal came, on a machine with other work
            break
    assert code == (-how if how == signal.SIGKILL else 130)
    assert gone(workers)
    bench(candidates(tiny)[:2], path, open_data(photos))
    assert cells(path) == cells(one_by_one)
    assert same_queries(path, one_by_one)


def test_no_job_is_refused(bench, photos, tiny, tmp_path):
    with pytest.raises(DataError, match="job"):
        bench(candidates(tiny), tmp_path / "book", open_data(photos), jobs=0)


def double(piece):
    """Done by the jobs below."""
    if piece == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if piece == 4:
        raise TrainingError("four.")
    if piece == 5:
        raise Stopped
    return 2 * piece, torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]


def test_jobs_tell_what_came_of_every_piece():
    found, waiting = {}, [1, 2, 3, 4, 5, 6]
    with Jobs(double, 2) as jobs:
        while waiting or jobs.busy:
            while waiting and jobs.free:
                jobs.begin(waiting.pop(0))
            assert len(jobs.busy) <= 2
            found |= dict(jobs.finished(20))
    assert [found[piece].value for piece in (1, 2, 6)] == [(2, 1, "1"), (4, 1, "1"), (12, 1, "1")]
    assert "signal 9" in str(found[3].error)
    assert (str(found[4].error), type(found[5].error)) == ("four.", Stopped)
