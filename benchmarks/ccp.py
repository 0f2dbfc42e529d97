"""What chance-constrained training costs: greedy k-center, a training step, memory.

    python benchmarks/ccp.py            the table (about two minutes); writes benchmarks/ccp.json
    python benchmarks/ccp.py --check    exit code 0 only if every bar holds
    python benchmarks/ccp.py --quick    under a minute, fewer turns; nothing is written

Absolute times on shared machines are noise, so every figure is a ratio of contenders that take turns in one process:
k-center against loops over the classes, each by its best round; a step of the chance-constrained schedule against one
of the plain schedule, by the medians of many single steps in turn. The bar of k-center is on the loop in PyTorch, where
the tensors are; on arrays this small NumPy has the cheaper calls, and its loop is in the table too. Needs the extra
`train`.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np
import torch
from bars import in_turns, kept, tell, write
from torch import Tensor

from nearkin.models import build_embedder
from nearkin.models.section import ModelSection
from nearkin.models.speed import as_channels_last
from nearkin.objectives import make_objective
from nearkin.objectives.section import ObjectiveSection
from nearkin.recipe import ChanceConstrainedSection, TrainingSection
from nearkin.spaces import kcenter
from nearkin.training import Loop, Run
from nearkin.training.batches import TrainingPool
from nearkin.training.strategies import ChanceConstrained, Schedule
from nearkin.training.strategies.base import SELECTION_METRIC

SEED = 0
CENTERS = {"classes": 10_000, "pool": 10, "picks": 4, "seeds": 4, "dimension": 128}
CENTER_ROUNDS = {"full": 30, "quick": 10}
LOOP_ROUNDS = {"full": 5, "quick": 2}
"""The loops over classes are long enough to need fewer."""
CLASSES = 50
PROXIES = 8
BATCH = {"classes": 8, "per_class": 4}
BATCHES = 8
STEPS = {
    # name: (model section, input shape of one item, single steps in the full run, in the quick run)
    "ResNet-20 at 32 px": (ModelSection(backbone="resnet20", dimension=128), (3, 32, 32), 400, 80),
    "cached head 1280-128": (
        ModelSection(backbone="efficientnet-lite0", pretrained=False, freeze="all", dimension=128),
        (1280,),
        4000,
        1000,
    ),
}
WARM = 10
"""Steps of each that do not count."""
BARS: dict[str, tuple[str, str, float]] = {
    "k-center": ("k-center, 100,000 points of 10,000 classes: loop over classes / ours", ">=", 50.0),
    "step": ("training step, ResNet-20 at 32 px, batch 32: chance-constrained / plain", "<=", 1.10),
    "memory": ("extra memory / (proxies + one copy of the weights)", "<=", 1.01),
}
RESULT = kept("ccp.json")


# ---------------------------------------------------------------- k-center


def pools() -> tuple[Tensor, Tensor]:
    """Unit vectors around class centres: the pool (G, N, d) and the seeds (G, S, d)."""
    generator = torch.Generator().manual_seed(SEED)
    groups, dimension = CENTERS["classes"], CENTERS["dimension"]
    centres = torch.randn(groups, 1, dimension, generator=generator)
    points = centres + torch.randn(groups, CENTERS["pool"], dimension, generator=generator)
    seeds = centres + torch.randn(groups, CENTERS["seeds"], dimension, generator=generator)
    return torch.nn.functional.normalize(points, dim=2), torch.nn.functional.normalize(seeds, dim=2)


def numpy_loop(points: np.ndarray, k: int, seeds: np.ndarray) -> np.ndarray:
    """A class at a time; squared distances, since the order is the same."""
    picks = np.empty((len(points), k), np.int64)
    for group, (mine, known) in enumerate(zip(points, seeds, strict=True)):
        nearest = ((mine[:, None] - known) ** 2).sum(axis=2).min(axis=1)
        for step in range(k):
            pick = nearest.argmax()
            picks[group, step] = pick
            if step < k - 1:
                nearest = np.minimum(nearest, ((mine - mine[pick]) ** 2).sum(axis=1))
                nearest[pick] = -1.0
    return picks


def torch_loop(points: Tensor, k: int, seeds: Tensor) -> Tensor:
    """A class at a time."""
    picks = torch.empty(len(points), k, dtype=torch.long)
    for group, (mine, known) in enumerate(zip(points, seeds, strict=True)):
        between = torch.cdist(mine, torch.cat([mine, known]))
        nearest = between[:, len(mine) :].amin(dim=1)
        for step in range(k):
            pick = int(nearest.argmax())
            picks[group, step] = pick
            if step < k - 1:
                nearest = torch.minimum(nearest, between[pick, : len(mine)])
                nearest[pick] = -1.0
    return picks


def measure_centers(mode: str, figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    points, seeds = pools()
    arrays = points.numpy(), seeds.numpy()
    k = CENTERS["picks"]
    exact = numpy_loop(arrays[0].astype(np.float64), k, arrays[1].astype(np.float64))
    if not np.array_equal(kcenter(points, k, seeds=seeds).numpy(), exact):
        raise SystemExit("The picks of k-center are not those of a loop in double precision.")
    contenders: dict[str, tuple[int, Callable[[], Any]]] = {
        "nearkin": (CENTER_ROUNDS[mode], lambda: kcenter(points, k, seeds=seeds)),
        "loop, NumPy": (LOOP_ROUNDS[mode], lambda: numpy_loop(arrays[0], k, arrays[1])),
        "loop, PyTorch": (LOOP_ROUNDS[mode], lambda: torch_loop(points, k, seeds)),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(LOOP_ROUNDS[mode]):
        for name, (rounds, run) in contenders.items():
            for _ in range(rounds // LOOP_ROUNDS[mode]):
                times[name].append(_seconds(run))
    best = {name: min(values) for name, values in times.items()}
    figures["k-center"] = best["loop, PyTorch"] / best["nearkin"]
    figures["k-center, NumPy loop"] = best["loop, NumPy"] / best["nearkin"]
    table += [{"case": "k-center", "contender": name, "milliseconds": 1e3 * seconds} for name, seconds in best.items()]


# ---------------------------------------------------------------- a step, and what it holds


class _Items:
    """Random items of every class, held in memory: batches for the steps, and the pool for the proxies."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        generator = torch.Generator().manual_seed(SEED)
        per_class = 12
        self.start = "pooling" if len(shape) == 1 else None
        self.class_ids = np.repeat(np.arange(CLASSES), per_class)
        self.items = as_channels_last(torch.randn(len(self.class_ids), *shape, generator=generator))
        self.batches = []
        for _ in range(BATCHES):
            classes = torch.randperm(CLASSES, generator=generator)[: BATCH["classes"]]
            rows = (classes.unsqueeze(1) * per_class + torch.arange(BATCH["per_class"])).flatten()
            self.batches.append((as_channels_last(self.items[rows]), torch.from_numpy(self.class_ids)[rows]))

    def step(self, loop: Loop) -> None:
        """One update of a loop; the batches go round."""
        loop._step(*self.batches[loop.state.step % BATCHES])
        loop.state.step += 1

    def stream(self, first: int, last: int) -> Any:
        return (self.batches[step % BATCHES] for step in range(first, last + 1))

    def plain(self, positions: np.ndarray) -> Tensor:
        return as_channels_last(self.items[torch.from_numpy(positions)])


def ready_loop(section: ModelSection, items: _Items, schedule: str, folder: Path) -> Loop:
    """Our loop, set up for single steps; a chance-constrained one is in its second instance, with the proximal term."""
    embedder = build_embedder(section, seed=SEED)
    objective = make_objective(
        ObjectiveSection(loss="contrastive"), dimension=128, classes=CLASSES, space=embedder.space, seed=SEED
    )
    made = Schedule()
    if schedule == "chance-constrained":
        settings = ChanceConstrainedSection(proxies=PROXIES, patience=1)
        pool = TrainingPool(items, embedder, items.class_ids, SEED)
        made = ChanceConstrained(settings, pool, folder / "instance.safetensors")
    loop = Loop(embedder, objective, items, TrainingSection(lr=1e-4), Run(folder), None, made, progress=False)
    loop._set_up()
    made.begin()
    made.validated(1, {SELECTION_METRIC: 0.5}, loop._weights)
    made.validated(2, {SELECTION_METRIC: 0.4}, loop._weights)
    loop.module.train()
    return loop


def measure_steps(mode: str, figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    for name, (section, shape, *turns) in STEPS.items():
        items = _Items(shape)
        kinds = ("plain", "chance-constrained")
        with tempfile.TemporaryDirectory() as folder:
            loops = {kind: ready_loop(section, items, kind, Path(folder)) for kind in kinds}
            steps = {kind: partial(items.step, loop) for kind, loop in loops.items()}
            times = in_turns(steps, turns[mode == "quick"], WARM)
        middle = {kind: median(values) for kind, values in times.items()}
        figures["step" if "ResNet" in name else "step, cached head"] = middle["chance-constrained"] / middle["plain"]
        table += [
            {"case": f"step, {name}", "contender": kind, "milliseconds": 1e3 * seconds}
            for kind, seconds in middle.items()
        ]


def measure_memory(figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    """Live tensors of a loop between two steps, of one schedule after the other."""
    section, shape, *_ = STEPS["ResNet-20 at 32 px"]
    items, live = _Items(shape), {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("plain", "chance-constrained"):
            before = _live_bytes()
            loop = ready_loop(section, items, kind, Path(folder))
            for batch in items.batches:
                loop._step(*batch)
            live[kind] = _live_bytes() - before
            if kind == "plain":
                del loop
    weights = sum(_bytes(p) for p in loop.embedder.parameters() if p.requires_grad)
    proxies = CLASSES * PROXIES * 128 * 4
    training = sum(
        _bytes(p.grad) + sum(_bytes(value) for value in loop.optimiser.state[p].values())
        for p in loop.schedule.parameters()
    )
    extra = live["chance-constrained"] - live["plain"] - training
    figures["memory"] = extra / (proxies + weights)
    parts = {
        "live tensors of the plain loop": live["plain"],
        "extra, chance-constrained": extra,
        "proxies": proxies,
        "one copy of the weights": weights,
        "beside it: gradient and moments of the proxies": training,
    }
    table += [{"case": "memory", "contender": name, "kilobytes": size / 1e3} for name, size in parts.items()]


def _live_bytes() -> int:
    """Bytes of all storages that tensors of this process hold on to."""
    gc.collect()
    storages = [found.untyped_storage() for found in gc.get_objects() if type(found) in (Tensor, torch.nn.Parameter)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _bytes(x: Tensor | None) -> int:
    return 0 if x is None else x.numel() * x.element_size()


def _seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


# ---------------------------------------------------------------- telling


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless every bar holds")
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer turns, nothing is written")
    arguments = parser.parse_args()
    mode = "quick" if arguments.quick else "full"
    figures: dict[str, float] = {}
    table: list[dict[str, Any]] = []
    measure_memory(figures, table)
    measure_centers(mode, figures, table)
    measure_steps(mode, figures, table)
    print(f"\n{'case':28} {'contender':48} {'':>12}")
    for row in table:
        value = f"{row['milliseconds']:9.3f} ms" if "milliseconds" in row else f"{row['kilobytes']:9.1f} kB"
        print(f"{row['case']:28} {row['contender']:48} {value}")
    print(f"\nno bar: k-center against the loop in NumPy {figures['k-center, NumPy loop']:.0f} x faster")
    print(f"no bar: step on the cached head, chance-constrained / plain {figures['step, cached head']:.3f}\n")
    holds = tell(BARS, figures)
    if not arguments.quick:
        write(RESULT, BARS, figures, table)
    print(
        f"\nA chance-constrained step costs {figures['step']:.3f} of a plain one; "
        f"k-center is {figures['k-center']:.0f} x faster than a loop over classes"
    )
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
