"""A process that dies or hangs: the others stop soon and say so, and the checkpoint is whole."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
import torch

from nearkin.api import fit_run
from nearkin.errors import LostProcessError, TrainingError
from nearkin.training import Run
from nearkin.training.ranks import Ranks, together
from nearkin.training.state import load_state

SETS = [
    "model.freeze=all",
    "training.max_steps=100000",
    "training.evaluate_every=5",
    "training.patience=null",
    "data.workers=0",
]
SOON = 25.0
"""Seconds; a machine with other work to do is slow."""


@pytest.fixture
def training(photos, tiny, torchrun, tmp_path, monkeypatch):
    """Two processes that train, with a checkpoint written; ended with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sets = [part for one in [*tiny, *SETS] for part in ("--set", one)]
    out = tmp_path / "run"
    started = torchrun(
        "-m", "nearkin", "train", photos, "--recipe", "proxy-anchor", "--out", out, *sets, NEARKIN_PROCESS_TIMEOUT="4"
    )
    deadline = time.monotonic() + 60
    while not Run(out).state_file.exists() and started.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert Run(out).state_file.exists()
    yield started, Run(out)
    for process in [*psutil.Process(started.pid).children(recursive=True), started] if started.poll() is None else []:
        process.kill()
    started.communicate()


def process_of(launcher, rank: int) -> psutil.Process:
    children = psutil.Process(launcher.pid).children(recursive=True)
    return next(child for child in children if child.environ().get("RANK") == str(rank))


def check_whole(run: Run) -> None:
    """The checkpoint can be read, and nothing is half-written."""
    tensors, facts = load_state(run.state_file)
    assert facts["state"]["step"] >= 5
    assert all(torch.isfinite(value).all() for value in tensors["embedder"].values())
    assert not list(run.path.glob(".*tmp"))


@pytest.mark.parametrize("lost", [0, 1])
def test_the_others_stop_when_one_is_killed(lost, training, photos):
    launcher, run = training
    process_of(launcher, lost).kill()
    began = time.monotonic()
    _, errors = launcher.communicate(timeout=60)
    assert time.monotonic() - began < SOON
    assert launcher.returncode != 0
    assert errors.count("nearkin: ") == 1
    assert "Traceback (most recent call last)" not in errors.split("torch/distributed/elastic")[0]
    check_whole(run)
    if lost:
        goes_on(run, photos)


def goes_on(run: Run, photos: Path) -> None:
    """What was saved is taken up by one process, to the results of a run that nobody killed."""
    recipe = run.recipe()
    steps = load_state(run.state_file)[1]["state"]["step"] + 5
    short = recipe.model_copy(update={"training": recipe.training.model_copy(update={"max_steps": steps})})
    short.save(run.recipe_file)
    whole = Run(run.path.parent / "whole")
    fit_run(photos, short, run, resume=True, progress=False)
    fit_run(photos, short, whole, progress=False)
    ours, theirs = (one.history()[-1] for one in (run, whole))
    assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-4)


def test_the_others_stop_when_one_hangs(training):
    launcher, run = training
    frozen = process_of(launcher, 1)
    other = process_of(launcher, 0)
    frozen.suspend()
    began = time.monotonic()
    psutil.wait_procs([other], timeout=60)
    assert 2.0 < time.monotonic() - began < SOON
    assert not other.is_running() or other.status() == psutil.STATUS_ZOMBIE
    frozen.kill()
    _, errors = launcher.communicate(timeout=60)
    assert "NEARKIN_PROCESS_TIMEOUT" in errors
    check_whole(run)


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:3", "stopped"),
        ("[gloo/transport/tcp/buffer.cc:72] Timed out waiting 4000ms for recv", "NEARKIN_PROCESS_TIMEOUT"),
    ],
)
def test_what_a_lost_connection_is_called(told, word):
    with pytest.raises(LostProcessError, match=word), together():
        raise RuntimeError(told)


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="shapes"), together():
        raise RuntimeError("shapes do not fit")


@pytest.mark.parametrize("given", ["soon", "0", "-3", "nan", "1e9"])
def test_a_time_out_is_a_number_of_seconds(given):
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    assert Ranks.from_environment({**place, "NEARKIN_PROCESS_TIMEOUT": "7.5"}).timeout == 7.5
    assert Ranks.from_environment(place).timeout == 1800
    with pytest.raises(TrainingError, match="NEARKIN_PROCESS_TIMEOUT"):
        Ranks.from_environment({**place, "NEARKIN_PROCESS_TIMEOUT": given})
