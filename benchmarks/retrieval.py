"""Retrieval metrics and exact search against the bare matrix product, pytorch-metric-learning and faiss.

    python benchmarks/retrieval.py            the table (about ten minutes); writes benchmarks/retrieval.json
    python benchmarks/retrieval.py --check    exit code 0 only if every bar holds
    python benchmarks/retrieval.py --quick    under a minute; bars that do not fit are printed as not checked

Absolute times on shared machines are noise, so every figure is a ratio of contenders that take turns in one run, each
by its best round. Peak memory is sampled in a process of its own, beside what that process holds before the call.
Needs the extras `train` (for pytorch-metric-learning) and `faiss`.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing as mp
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import faiss
import pytorch_metric_learning
import torch
from bars import machine
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor

from nearkin.metrics import retrieval_metrics
from nearkin.search import exact

SEED = 0
DIMENSIONS = 128
NOISE = 1.5
"""Standard deviation of a class around its centre, where centres have 1: a fair, not a perfect, embedding."""
METRICS = ("P@1", "R-precision", "MAP@R")
PEER_METRICS = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
PRODUCT_BLOCKS = ((1024, 1024), (2048, 2048), (4096, 1024), (4096, 4096))
CASES = {
    # name: (items, classes, rounds in the full run, rounds in the quick run)
    "60,000 / 11,000": (60_000, 11_000, 3, 1),
    "20,000 / 20": (20_000, 20, 5, 2),
    "6,000 / 100": (6_000, 100, 15, 9),
}
LARGE = (200_000, 1_000)
SEARCH = {"queries": 10_000, "items": 200_000, "k": 10}
SEARCH_ROUNDS = {"full": 5, "quick": 2}
GROWTH = (15_000, 30_000, 60_000, 120_000)
GROWTH_CLASS = 6
BUDGET_MB = 512
MB = 2**20
RESULT = Path(__file__).with_suffix(".json")

Contender = Callable[[Tensor, Tensor], dict[str, float]]
"""Embeddings (n, d) and labels (n,) to metrics by name."""

BARS: dict[str, tuple[str, str, float]] = {
    # figure: (meaning, direction, bar)
    "60k over product": ("60,000 / 11,000: time / bare product", "<=", 1.8),
    "60k over PML": ("60,000 / 11,000: PML's time / ours", ">=", 2.0),
    "60k memory": ("60,000 / 11,000: peak extra MB", "<=", 600),
    "20k over PML": ("20,000 / 20: PML's time / ours", ">=", 2.5),
    "6k over PML": ("6,000 / 100: PML's time / ours", ">=", 1.7),
    "200k memory": ("200,000 / 1,000: peak extra MB", "<=", 1000),
    "search over faiss": ("10-NN of 10,000 in 200,000: time / faiss IndexFlat", "<=", 1.3),
    "growth": ("growth: exponent of time in n, from 30,000 to 120,000", "<=", 2.15),
    "growth memory": ("growth: peak extra MB at 120,000", "<=", BUDGET_MB),
}


def clustered(items: int, classes: int) -> tuple[Tensor, Tensor]:
    """Unit vectors (n, d) around class centres, and their labels (n,)."""
    generator = torch.Generator().manual_seed(SEED)
    labels = torch.randint(classes, (items,), generator=generator)
    return around_centres(labels, classes, generator), labels


def around_centres(labels: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    """Unit vectors (n, d), each around the centre of its class."""
    centres = torch.randn(classes, DIMENSIONS, generator=generator)
    noise = torch.randn(len(labels), DIMENSIONS, generator=generator)
    return torch.nn.functional.normalize(centres[labels] + NOISE * noise, dim=1)


# ---------------------------------------------------------------- contenders


def ours(x: Tensor, labels: Tensor) -> dict[str, float]:
    return retrieval_metrics(x, labels, metrics=METRICS, memory_mb=BUDGET_MB).values


def pml(x: Tensor, labels: Tensor) -> dict[str, float]:
    found = AccuracyCalculator(include=PEER_METRICS, k="max_bin_count").get_accuracy(x, labels)
    return {name: found[peer] for name, peer in zip(METRICS, PEER_METRICS, strict=True)}


def product(x: Tensor, block: tuple[int, int]) -> None:
    """Every inner product once, block by block into one buffer, and nothing else."""
    buffer = torch.empty(block[0] * block[1])
    for left in x.split(block[0]):
        for right in x.split(block[1]):
            torch.mm(left, right.T, out=buffer[: len(left) * len(right)].view(len(left), len(right)))


# ---------------------------------------------------------------- measuring


def take_turns(contenders: dict[str, Callable[[], Any]], rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
    """The best time of every contender, and what each returned."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    answers = {}
    for number in range(rounds):
        # Every other round goes backwards, so that a drift of the machine's speed favours nobody.
        for name in list(contenders) if number % 2 == 0 else list(contenders)[::-1]:
            began = time.perf_counter()
            answers[name] = contenders[name]()
            times[name].append(time.perf_counter() - began)
    return {name: min(values) for name, values in times.items()}, answers


def peak_memory(items: int, classes: int, contender: Contender = ours) -> tuple[float, float]:
    """Seconds and peak extra MB of a contender's metrics, in a fresh process."""
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_measure_memory, args=(there, items, classes, contender))
    process.start()
    answer = here.recv()
    process.join()
    return answer


def _measure_memory(pipe: Connection, items: int, classes: int, contender: Contender) -> None:
    x, labels = clustered(items, classes)
    contender(*clustered(3000, 500))  # threads, libraries and small buffers are there before the call
    peak, before, done = 0, _resident(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, _resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    contender(x, labels)
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    pipe.send((seconds, (peak - before) / MB))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measure_metrics(quick: bool, figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    for name, (items, classes, full_rounds, quick_rounds) in CASES.items():
        short = f"{items // 1000}k"
        x, labels = clustered(items, classes)
        contenders: dict[str, Callable[[], Any]] = {"nearkin": lambda x=x, labels=labels: ours(x, labels)}
        if items <= 20_000 or not quick:
            contenders["PML max_bin_count"] = lambda x=x, labels=labels: pml(x, labels)
        if items == 60_000:
            for block in PRODUCT_BLOCKS:
                contenders[f"product {block[0]} x {block[1]}"] = lambda x=x, block=block: product(x, block)
        ours(x[:3000], labels[:3000])
        times, answers = take_turns(contenders, quick_rounds if quick else full_rounds)
        if "PML max_bin_count" in answers:
            figures[f"{short} over PML"] = times["PML max_bin_count"] / times["nearkin"]
            for metric, value in answers["nearkin"].items():
                if not math.isclose(value, answers["PML max_bin_count"][metric], abs_tol=2e-5):
                    raise SystemExit(
                        f"{name}: {metric} is {value} here and {answers['PML max_bin_count'][metric]} there"
                    )
        bare = [seconds for contender, seconds in times.items() if contender.startswith("product")]
        if bare:
            figures["60k over product"] = times["nearkin"] / min(bare)
        table += [{"case": name, "contender": contender, "seconds": seconds} for contender, seconds in times.items()]


def measure_search(mode: str, figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(SEARCH["queries"], DIMENSIONS, generator=generator)
    y = torch.randn(SEARCH["items"], DIMENSIONS, generator=generator)
    index = faiss.IndexFlatL2(DIMENSIONS)
    index.add(y.numpy())
    contenders = {
        "nearkin": lambda: exact(x, y, SEARCH["k"], space="euclidean", memory_mb=BUDGET_MB)[1].numpy(),
        "faiss IndexFlatL2": lambda: index.search(x.numpy(), SEARCH["k"])[1],
    }
    times, answers = take_turns(contenders, SEARCH_ROUNDS[mode])
    agreement = float((answers["nearkin"] == answers["faiss IndexFlatL2"]).mean())
    if agreement < 0.9999:
        raise SystemExit(f"Only {agreement:.5f} of the neighbours agree with faiss")
    figures["search over faiss"] = times["nearkin"] / times["faiss IndexFlatL2"]
    name = f"10-NN, {SEARCH['queries']:,} in {SEARCH['items']:,}"
    table += [{"case": name, "contender": contender, "seconds": seconds} for contender, seconds in times.items()]


def measure_memory(figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    items, classes, *_ = CASES["60,000 / 11,000"]
    seconds, figures["60k memory"] = peak_memory(items, classes)
    table.append({"case": "60,000 / 11,000", "contender": "nearkin, memory", "seconds": seconds})
    seconds, figures["200k memory"] = peak_memory(*LARGE)
    table.append({"case": f"{LARGE[0]:,} / {LARGE[1]:,}", "contender": "nearkin, memory", "seconds": seconds})


def measure_growth(figures: dict[str, float], table: list[dict[str, Any]]) -> None:
    seconds = {}
    for items in GROWTH:
        seconds[items], memory = peak_memory(items, items // GROWTH_CLASS)
        case = {"case": f"growth, {items:,}", "contender": "nearkin", "seconds": seconds[items], "extra MB": memory}
        table.append(case)
    figures["growth memory"] = memory
    first, last = GROWTH[1], GROWTH[-1]
    figures["growth"] = math.log(seconds[last] / seconds[first]) / math.log(last / first)


# ---------------------------------------------------------------- telling


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless every bar holds")
    parser.add_argument("--quick", action="store_true", help="under a minute: few rounds, no slow contender")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    table: list[dict[str, Any]] = []
    measure_metrics(arguments.quick, figures, table)
    measure_search("quick" if arguments.quick else "full", figures, table)
    if not arguments.quick:
        measure_memory(figures, table)
        measure_growth(figures, table)
    print(f"\n{'case (d = 128)':30} {'contender':22} {'seconds':>9}")
    for row in table:
        extra = f"   {row['extra MB']:.0f} MB extra" if "extra MB" in row else ""
        print(f"{row['case']:30} {row['contender']:22} {row['seconds']:9.3f}{extra}")
    print()
    failed = False
    for name, (meaning, direction, bar) in BARS.items():
        if name not in figures:
            print(f"{meaning:56} {'':8}  bar {direction} {bar}: not checked")
            continue
        holds = figures[name] <= bar if direction == "<=" else figures[name] >= bar
        failed |= not holds
        print(f"{meaning:56} {figures[name]:8.2f}  bar {direction} {bar}: {'holds' if holds else 'FAILS'}")
    if not arguments.quick:
        rounded = {name: round(value, 3) for name, value in figures.items()}
        peers = {"faiss": faiss.__version__, "pytorch-metric-learning": pytorch_metric_learning.__version__}
        result = {"machine": {**machine(), **peers}, "bars": BARS, "figures": rounded, "table": table}
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\n60,000 embeddings of 11,000 classes: {figures['60k over product']:.2f} x the bare matrix product")
    return 1 if arguments.check and failed else 0


if __name__ == "__main__":
    sys.exit(main())
