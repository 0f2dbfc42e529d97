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


_BOTH = """
import os, runpy, sys
runpy.run_path(sys.argv[1], run_name="imported")  # once for both
sys.argv = sys.argv[1:]
children = []
for rank in ("0", "1"):
    children.append(os.fork())
    if not children[-1]:
        os.environ.update(RANK=rank, LOCAL_RANK=rank)
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
codes = [os.waitpid(child, 0)[1] for child in children]
sys.exit(any(codes))
"""


@pytest.fixture(scope="session")
def two_processes() -> Callable[..., None]:
    """Runs a file as a program in two processes with torchrun's environment, which import what it needs only once."""

    def run(*command: object) -> None:
        environment = {
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "TORCHELASTIC_RUN_ID": "none",
            "OMP_NUM_THREADS": "1",
        }
        words = [sys.executable, "-c", _BOTH, *map(str, command)]
        done = subprocess.run(
            words, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, done.stderr

    return run


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
