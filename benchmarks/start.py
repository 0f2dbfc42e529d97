"""What the start of a head costs: one pass over cached features against their bare covariance, memory, and training.

    python benchmarks/start.py            the table (about five minutes); writes benchmarks/start.json
    python benchmarks/start.py --check    exit code 0 only if every bar holds
    python benchmarks/start.py --quick    seconds: few and short features; no bar is checked, nothing is written

The features are synthetic, 100,000 x 1280 in 1,000 classes, and come from a memory-mapped file, which is read before.
The peer reads the same file by the same chunks and forms the mean and the covariance with NumPy. Contenders take turns
in one process, and every ratio is one of medians. Searches of the sample of left-out items are timed by themselves.
Memory is that of a process of its own, without the pages of files. Training takes the cached features of CUB-200-2011
(85 classes train, 15 validate) through the default recipe; the table has it with the start and without. It needs the
data, NEARKIN_DATA or --data-root, and is not checked without.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from nearkin.allocator import tune_allocator, tune_threads

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads
tune_threads()

import numpy as np
import torch
from bars import in_turns, kept, tell, write
from torch import Tensor

from nearkin.api import fit_run
from nearkin.data.sources import open_data
from nearkin.models import start
from nearkin.models.start import HeadStart, fit_start
from nearkin.recipe import load_recipe
from nearkin.training import Run

SEED = 0
SIZES = {
    # mode: (items, features, classes)
    "full": (100_000, 1280, 1_000),
    "quick": (8_000, 256, 200),
}
NOISE = 1.5
"""Standard deviation of a class around its centre, where centres have 1."""
CHUNK = 4096
RIDGE, DIMENSION = 1.0, 128
ROUNDS, WARM = {"full": 5, "quick": 2}, 1
TRAININGS = 3
SETTINGS = ["data.split=column", "data.val_classes=0.15"]
MB = 2**20
BARS: dict[str, tuple[str, str, float]] = {
    "given": ("100,000 x 1280, ridge and size given: time / covariance by NumPy", "<=", 1.5),
    "chosen": ("the same, both chosen, without searches of the sample", "<=", 3.0),
    "memory": ("the same, both chosen: peak extra MB beside the file's pages", "<=", 512.0),
    "training": ("training one head on cached CUB features, validation included: seconds", "<=", 10.0),
}
RESULT = kept("start.json")


# ---------------------------------------------------------------- features and contenders


def write_features(path: Path, items: int, features: int, classes: int) -> np.ndarray:
    """A file of features (n, F) around class centres; their classes (n,)."""
    rng = np.random.default_rng(SEED)
    ids = rng.permutation(np.arange(items) % classes)
    centres = rng.standard_normal((classes, features), dtype=np.float32)
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(items, features))
    for first in range(0, items, CHUNK):
        of = ids[first : first + CHUNK]
        array[first : first + CHUNK] = centres[of] + NOISE * rng.standard_normal((len(of), features), dtype=np.float32)
    array.flush()
    return ids


def in_chunks(path: Path) -> Iterator[tuple[Tensor, np.ndarray]]:
    """Features (m, F) of a mapped file, and their positions (m,)."""
    array = np.load(path, mmap_mode="c")
    for first in range(0, len(array), CHUNK):
        part = array[first : first + CHUNK]
        yield torch.from_numpy(part), np.arange(first, first + len(part))


def covariance(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Mean (F,) and covariance (F, F) by NumPy."""
    array = np.load(path, mmap_mode="c")
    width = array.shape[1]
    total, second = np.zeros(width), np.zeros((width, width))
    for first in range(0, len(array), CHUNK):
        part = array[first : first + CHUNK]
        total += part.sum(axis=0)
        second += part.T @ part
    mean = total / len(array)
    return mean, second / len(array) - np.outer(mean, mean)


def given(path: Path, ids: np.ndarray) -> HeadStart:
    return fit_start(in_chunks(path), ids, ridge=RIDGE, dimension=DIMENSION, seed=SEED)


def chosen(path: Path, ids: np.ndarray) -> HeadStart:
    return fit_start(in_chunks(path), ids, seed=SEED)


class Searches:
    """Stands in for the searches of the sample and adds up their seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._search = start.retrieval_metrics

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return self._search(*arguments, **options)
        finally:
            self.seconds += time.perf_counter() - began


# ---------------------------------------------------------------- measuring


def measure_times(mode: str, path: Path, ids: np.ndarray) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Figures and rows of the table."""
    searches, searched = Searches(), []

    def choose() -> None:
        searches.seconds = 0.0
        chosen(path, ids)
        searched.append(searches.seconds)

    plain, start.retrieval_metrics = start.retrieval_metrics, searches
    try:
        times = in_turns(
            {"covariance by NumPy": partial(covariance, path), "given": partial(given, path, ids), "chosen": choose},
            ROUNDS[mode],
            WARM,
        )
    finally:
        start.retrieval_metrics = plain
    times["searches of the sample"] = searched[WARM:]
    apart = [whole - search for whole, search in zip(times["chosen"], times["searches of the sample"], strict=True)]
    bare = median(times["covariance by NumPy"])
    figures = {"given": median(times["given"]) / bare, "chosen": median(apart) / bare}
    items, features, classes = SIZES[mode]
    case = f"{items:,} x {features}, {classes:,} classes"
    return figures, [{"case": case, "contender": name, "seconds": median(of)} for name, of in times.items()]


def peak_memory(path: Path, ids: np.ndarray) -> float:
    """Peak extra MB of a start with all chosen, in a fresh process."""
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_measure_memory, args=(there, path, ids))
    process.start()
    there.close()
    try:
        answer: float = here.recv()
    except EOFError:
        raise SystemExit("The process whose memory is measured ended without an answer.") from None
    finally:
        process.join()
    return answer


def _measure_memory(pipe: Connection, path: Path, ids: np.ndarray) -> None:
    # Threads and libraries are there before the call.
    small = torch.randn(600, 32, generator=torch.Generator().manual_seed(SEED))
    fit_start([(small, np.arange(600))], np.arange(600) % 60)
    before, done = _own_memory(), threading.Event()
    peak = before

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, _own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    chosen(path, ids)
    done.set()
    watcher.join()
    pipe.send((peak - before) / MB)


def _own_memory() -> int:
    """Bytes in memory that are no pages of files."""
    resident, of_files = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(of_files)) * os.sysconf("SC_PAGE_SIZE")


def measure_training(data_root: Path | None) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Figures and rows of the default recipe on CUB; nothing without the data."""
    if data_root is None and not os.environ.get("NEARKIN_DATA"):
        return {}, []
    dataset, recipe = open_data("cub200", data_root=data_root), load_recipe(overrides=SETTINGS)
    whole, loop = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1 + TRAININGS):  # the first one makes the cache
            began = time.perf_counter()
            result = fit_run(dataset, recipe, Run(Path(folder) / str(number)), progress=number == 0)
            if result.interrupted:
                raise SystemExit(130)
            whole.append(time.perf_counter() - began)
            loop.append(result.state.seconds)
    case = f"CUB, {recipe.name}, {result.state.step} steps, {result.embedder.dimension} dimensions"
    rows = [
        {"case": case, "contender": "start, training and validation", "seconds": median(whole[1:])},
        {"case": case, "contender": "training and validation", "seconds": median(loop[1:])},
    ]
    return {"training": median(loop[1:])}, rows


# ---------------------------------------------------------------- telling


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless every bar holds")
    parser.add_argument("--quick", action="store_true", help="seconds: no bar is checked, nothing is written")
    parser.add_argument("--data-root", type=Path, help="where cub200.zip is; default: NEARKIN_DATA")
    arguments = parser.parse_args()
    mode = "quick" if arguments.quick else "full"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        ids = write_features(path, *SIZES[mode])
        figures, table = measure_times(mode, path, ids)
        figures["memory"] = peak_memory(path, ids)
    if not arguments.quick:
        more, rows = measure_training(arguments.data_root)
        figures, table = figures | more, table + rows
    print(f"\n{'case':50} {'contender':32} {'seconds':>9}")
    for row in table:
        print(f"{row['case']:50} {row['contender']:32} {row['seconds']:9.3f}")
    ratios = (
        f"{figures['given']:.2f} x the covariance with all given, {figures['chosen']:.2f} x and the searches with all "
        f"chosen, {figures['memory']:.0f} MB"
    )
    print()
    # Of fewer and shorter features the pass is a small part: the bars are not about them.
    holds = tell(BARS, {} if arguments.quick else figures)
    if not arguments.quick:
        write(RESULT, BARS, figures, table)
    print(f"\nThe start of {SIZES[mode][0]:,} x {SIZES[mode][1]} features takes {ratios}")
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
