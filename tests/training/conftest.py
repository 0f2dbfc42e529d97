"""Fixtures of the tests of training."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def of_two(**more: str) -> list[dict[str, str]]:
    """The environments that torchrun would give two processes."""
    both = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "TORCHELASTIC_RUN_ID": "none",
    }
    return [{**both, "RANK": rank, "LOCAL_RANK": rank, **more} for rank in ("0", "1")]


@pytest.fixture(scope="session")
def two_processes(programs) -> Callable[..., None]:
    """Runs a file as a program in two processes with torchrun's environment."""

    def run(file: str, *arguments: object) -> None:
        code = f"import runpy\nrunpy.run_path({file!r}, run_name='__main__')"
        programs.start(code, *arguments, environments=of_two())
        assert programs.ended() == [0, 0], programs.errors

    return run


@pytest.fixture(scope="session")
def start_two(programs) -> Callable[..., list[int]]:
    """Begins a command of nearkin in two processes with torchrun's environment; gives their ids by rank."""

    def start(*words: object, **environment: str) -> list[int]:
        code = "from nearkin.cli import main\nmain()"
        return programs.start(code, *words, environments=of_two(**environment))

    return start


@pytest.fixture(scope="session")
def torchrun() -> Callable[..., subprocess.Popen[str]]:
    """Starts a program in several processes, which torchrun looks after; its words can be read from the pipes."""

    def launch(*command: object, processes: int = 2, **environment: str) -> subprocess.Popen[str]:
        options = [f"--nproc-per-node={processes}", f"--master-port={_free_port()}"]
        return subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options, *map(str, command)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return launch


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache directory that the tests of a module, and the processes they start, have to themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
