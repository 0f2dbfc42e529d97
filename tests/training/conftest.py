"""Fixtures of the tests of training."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(scope="session")
def torchrun() -> Callable[..., subprocess.Popen[str]]:
    """Starts a program in several processes, which torchrun looks after; its words can be read from the pipes."""

    def launch(*command: object, processes: int = 2, **environment: str) -> subprocess.Popen[str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = [f"--nproc-per-node={processes}", f"--master-port={port}"]
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
