"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore

# One thread per test process: the suite runs in two processes on two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Browsers are driven by `make test-browser`, which installs what that needs.
collect_ignore = [] if find_spec("playwright") else ["browser"]

# A machine that has other work to do makes no test fail.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# Looking for garbage among all that was imported and collected takes a twentieth of the time: look less often.
gc.set_threshold(50_000, 20, 20)

_PATIENCE = 240
"""Seconds until a program must have ended, on a busy machine."""


class Programs:
    """Programs in processes of their own, one after the other; see `fork_server.py`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._codes: dict[int, int | None] = {}
        self._answers: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            self._answers.put([int(word) for word in line.split()])

    def start(self, code: str, *arguments: object, environments: Sequence[Mapping[str, str]] = ({},)) -> list[int]:
        """Run code in as many processes as there are environments, each added to that of the tests; their ids."""
        assert self._server.stdin is not None
        for process in (one for one, code in self._codes.items() if code is None):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.ended()
        for name in ("out", "err"):
            (self._folder / name).write_text("", encoding="utf-8")
        job = {
            "code": code,
            "arguments": [str(argument) for argument in arguments],
            "out": str(self._folder / "out"),
            "err": str(self._folder / "err"),
            "environments": [{**os.environ, "OMP_NUM_THREADS": "1", **one} for one in environments],
        }
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        self._codes = dict.fromkeys(self._answers.get(timeout=_PATIENCE))
        return list(self._codes)

    def ended(self, *processes: int) -> list[int]:
        """Exit codes, negative for signals, of some processes or of all, in the order they were started."""
        wanted = processes or tuple(self._codes)
        while any(self._codes[process] is None for process in wanted):
            process, code = self._answers.get(timeout=_PATIENCE)
            self._codes[process] = code
        return [code for process in wanted if (code := self._codes[process]) is not None]

    def run(self, code: str, *arguments: object, **environment: str) -> tuple[int, str, str]:
        """Run code in one process to its end: exit code, output and errors."""
        self.start(code, *arguments, environments=[environment])
        (found,) = self.ended()
        return found, self.output, self.errors

    @property
    def output(self) -> str:
        """What the last program has written to standard output so far."""
        return (self._folder / "out").read_text(encoding="utf-8")

    @property
    def errors(self) -> str:
        """What it has written to standard error."""
        return (self._folder / "err").read_text(encoding="utf-8")

    def close(self) -> None:
        """End the server."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(_PATIENCE)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Runs code in a process of its own, which has imported nearkin already."""
    made = Programs(tmp_path_factory.mktemp("programs"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def coarse_pictures(request, monkeypatch):
    """Draw few pixels where pictures are not what is tested."""
    if request.node.path.parent.name != "report" and not request.node.get_closest_marker("pixels"):
        monkeypatch.setattr("nearkin.report.canvas._DPI", 50)


_FIGURES: dict[str, Any] = {}


def _first_figure(name: str, draw: Callable[..., Any], *given: Any) -> Any:
    """What a function of an audit's report has drawn first in this process."""
    if name not in _FIGURES:
        _FIGURES[name] = draw(*given)
    return _FIGURES[name]


@pytest.fixture
def drawn_once(request, monkeypatch) -> None:
    """Reports show neighbours, distances, map and curves of the first audit; tests/audits draws those of each."""
    from nearkin.audits import result

    if not request.node.get_closest_marker("pixels"):
        for name in ("_neighbours", "_distances", "draw_embedding_map", "draw_curves"):
            monkeypatch.setattr(result, name, partial(_first_figure, name, getattr(result, name)))


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The directory with real data, or a skip that says how to provide it."""
    given = os.environ.get("NEARKIN_DATA")
    if not given or not Path(given).is_dir():
        pytest.skip("real data is not at hand: set NEARKIN_DATA to the directory that holds cub200.zip and the others")
    return Path(given)


def _pattern_images(classes: int, items: int, size: int, seed: int) -> tuple[list[str], list[str], np.ndarray]:
    """Images that are a pattern of their class plus noise: easy to learn, impossible to tell apart untrained."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 256, (classes, size, size, 3))
    names, labels, images = [], [], []
    for label in range(classes):
        for item in range(items):
            noise = rng.normal(0, 60, (size, size, 3))
            names.append(f"class{label:02d}/{item:02d}.png")
            labels.append(f"class{label:02d}")
            images.append(np.clip(patterns[label] + noise, 0, 255).astype(np.uint8))
    return names, labels, np.stack(images)


@pytest.fixture(scope="session")
def patterns() -> Dataset:
    """A data set in memory: 10 classes of 8 images of 16 px."""
    names, labels, images = _pattern_images(10, 8, 16, seed=0)
    return Dataset(Manifest.from_rows(names, labels), ArrayStore(images, names), name="patterns")


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """A folder with one folder per class, as a user would have it."""
    root = tmp_path_factory.mktemp("data") / "photos"
    names, _, images = _pattern_images(8, 6, 24, seed=1)
    for name, image in zip(names, images, strict=True):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / name)
    return root


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Overrides that make any recipe train in a second: a small network from scratch on small images."""
    return [
        "model.backbone=conv4",
        "model.pretrained=false",
        "model.channels=3",
        "model.size=16",
        "model.freeze=null",
        "model.cache=false",
        "model.dimension=16",
        "data.workers=0",
        "data.classes_per_batch=4",
        "data.per_class=3",
        "data.test_classes=0.3",
        "data.val_classes=0.3",
        "data.split=fraction",
        "training.max_steps=12",
        "training.lr_schedule=constant",
        "training.evaluate_every=4",
        "training.log_every=3",
        "training.backbone_lr_factor=1.0",
    ]
