"""Training beyond one batch and one process: gradient caching, and two processes on the cores of one.

`benchmarks/scale.py` runs these parts, each in a process of its own, so that memory is that of the part.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearkin.data.augment import BatchAugment
from nearkin.models import Embedder, build_embedder
from nearkin.models.section import ModelSection
from nearkin.models.speed import as_channels_last
from nearkin.objectives import Objective, make_objective
from nearkin.objectives.section import ObjectiveSection
from nearkin.recipe import TrainingSection
from nearkin.training import Loop, Run
from nearkin.training.batches import Deferred
from nearkin.training.ranks import Ranks

SEED = 0
NETWORK = ModelSection(backbone="resnet20", channels=3, size=32, dimension=128)
LOSS = "multi-similarity"
PER_CLASS = 4
SMALL = 64
"""The batch whose memory is the measure."""
LARGE = 4096
PART = 32
"""Items of a large batch that go through the network together."""
WARM = 8
"""Items of the step after which a process counts as idle: libraries have then made what they keep."""
MEMORY_STEPS = 2
TIME_ROUNDS = 3

PROCESSES = 2
PROCESS_BATCH = 128
PROCESS_STEPS = {"full": 25, "quick": 8}
PROCESS_ROUNDS = {"full": 3, "quick": 1}


class Bytes:
    """The same random images in every step, kept as bytes and normalised when they are taken.

    Args:
        count: items of the whole batch.
        ranks: of which this process has its slice.
    """

    start: str | None = None

    def __init__(self, count: int, ranks: Ranks | None = None) -> None:
        ranks = Ranks() if ranks is None else ranks
        generator = torch.Generator().manual_seed(SEED)
        size = (NETWORK.channels, NETWORK.size, NETWORK.size)
        samples = torch.randint(0, 256, (count, *size), dtype=torch.uint8, generator=generator)
        labels = torch.arange(count // PER_CLASS).repeat_interleave(PER_CLASS)
        self.samples, self.labels = (whole.chunk(ranks.world_size)[ranks.rank].clone() for whole in (samples, labels))
        self.times: list[float] = []

    def stream(self, first: int, last: int) -> Iterator[tuple[Deferred, Tensor]]:
        """Yield the batch of each step, noting when it is asked for."""
        for step in range(first, last + 1):
            self.times.append(time.perf_counter())
            yield Deferred(self.samples, partial(prepared, step)), self.labels
        self.times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Of each step but the first."""
        return [later - earlier for earlier, later in zip(self.times[1:], self.times[2:], strict=False)]


AUGMENT = BatchAugment(build_embedder(NETWORK).spec, flip=False)


def prepared(step: int, samples: Tensor, place: int) -> Tensor:
    return as_channels_last(AUGMENT(samples, step))


def learner(classes: int) -> tuple[Embedder, Objective]:
    embedder = build_embedder(NETWORK, seed=SEED)
    return embedder, make_objective(ObjectiveSection(loss=LOSS), dimension=embedder.dimension, classes=classes)


def run_steps(
    count: int, part: int | None, steps: int, ranks: Ranks | None = None, shared_norms: bool = True
) -> list[float]:
    """Train on batches of `count` items, `part` at a time; seconds of each step but the first."""
    embedder, objective = learner(count // PER_CLASS)
    batches = Bytes(count, ranks)
    section = TrainingSection(
        max_steps=steps, evaluate_every=steps, patience=None, gradient_cache=part, sync_batch_norm=shared_norms
    )
    with tempfile.TemporaryDirectory() as folder:
        Loop(embedder, objective, batches, section, Run(folder), None, progress=False, ranks=ranks).train()
    return batches.seconds()


# ---------------------------------------------------------------- gradient caching


def peak_memory(count: int, part: int | None) -> dict[str, float]:
    """What training with such batches adds to the resident memory of an idle process, in MB, at its peak."""
    run_steps(WARM, None, 2)
    idle = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    run_steps(count, part, MEMORY_STEPS)
    return {"MB": _status("VmHWM") - idle, "idle MB": idle}


def _status(name: str) -> float:
    """A line of /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def caching_times() -> dict[str, float]:
    """Seconds a sample of a small batch as a whole, and of a large one in parts of that size; in turns."""
    times: dict[str, list[float]] = {"small": [], "large": []}
    contenders: dict[str, Callable[[], list[float]]] = {
        "small": lambda: [seconds / SMALL for seconds in run_steps(SMALL, None, LARGE // SMALL + 1)],
        "large": lambda: [seconds / LARGE for seconds in run_steps(LARGE, PART, 2)],
    }
    for turn in range(TIME_ROUNDS):
        for name in list(contenders)[:: 1 if turn % 2 == 0 else -1]:
            times[name] += contenders[name]()
    return {name: statistics.median(values) for name, values in times.items()}


PARTS: dict[str, Callable[[], dict[str, float]]] = {
    "memory small": lambda: peak_memory(SMALL, None),
    "memory large": lambda: peak_memory(LARGE, PART),
    "memory large in parts of the small": lambda: peak_memory(LARGE, SMALL),
    "memory large as a whole": lambda: peak_memory(LARGE, None),
    "time": caching_times,
}


def run_part(name: str) -> dict[str, float]:
    """A part in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--part", name], stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()), flush=True)
    return figures


def measure_caching() -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Rows of the table and figures of gradient caching."""
    seconds = run_part("time")
    names = ("small", "large", "large in parts of the small", "large as a whole")
    small, parts, larger_parts, whole = (run_part(f"memory {name}")["MB"] for name in names)
    table = [
        {"what": f"batch {SMALL}, whole", "peak MB": small, "ms a sample": 1e3 * seconds["small"]},
        {"what": f"batch {LARGE:,}, parts of {PART}", "peak MB": parts, "ms a sample": 1e3 * seconds["large"]},
        {"what": f"batch {LARGE:,}, parts of {SMALL}", "peak MB": larger_parts},
        {"what": f"batch {LARGE:,}, whole", "peak MB": whole},
    ]
    return table, {"caching memory": parts / small, "caching time": seconds["large"] / seconds["small"]}


# ---------------------------------------------------------------- two processes


def measure_processes(quick: bool) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """One process with two threads against two processes with one each, the same batch; in turns."""
    size = "quick" if quick else "full"
    contenders = {"1 process": (1, True), f"{PROCESSES} processes": (PROCESSES, True)}
    if not quick:
        contenders[f"{PROCESSES} processes, norms not synchronised"] = (PROCESSES, False)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(PROCESS_ROUNDS[size]):
        for name in list(contenders)[:: 1 if turn % 2 == 0 else -1]:
            seconds[name] += _launched(*contenders[name], PROCESS_STEPS[size])
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    table = [
        {
            "what": f"{name}, threads of each: {PROCESSES // contenders[name][0]}",
            "ms a step": 1e3 * found,
            "efficiency": medians["1 process"] / found,
        }
        for name, found in medians.items()
    ]
    return table, {"processes": medians["1 process"] / medians[f"{PROCESSES} processes"]}


def _launched(processes: int, shared_norms: bool, steps: int) -> list[float]:
    """Seconds of the steps, as the first process sees them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", f"--master-port={port}"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        environment = {**os.environ, "OMP_NUM_THREADS": str(PROCESSES // processes)}
        options = ["--steps", str(steps), str(out), "shared" if shared_norms else "own"]
        subprocess.run([*command, __file__, *options], check=True, env=environment)
        found: list[float] = json.loads(out.read_text())
    return found


def one_of_several(steps: int, out: Path, shared_norms: bool) -> None:
    """The program of a process."""
    ranks = Ranks.from_environment()
    ranks.meet("cpu")
    seconds = run_steps(PROCESS_BATCH, None, steps, ranks, shared_norms)
    if ranks.is_first:
        out.write_text(json.dumps(seconds))


if __name__ == "__main__":
    if sys.argv[1] == "--steps":
        one_of_several(int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4] == "shared")
    else:
        print(json.dumps(PARTS[sys.argv[2]]()))
