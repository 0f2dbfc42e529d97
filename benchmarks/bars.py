"""What benchmarks share: telling whether bars hold, timing in turns, and the machine's description."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

Bars = Mapping[str, tuple[str, str, float]]
"""Name of a figure to its meaning, "<=" or ">=", and the bar."""


def kept(name: str) -> Path:
    """A file beside these scripts, or in `benchmarks` of the tree that NEARKIN_BOOK names."""
    tree = os.environ.get("NEARKIN_BOOK")
    folder = Path(tree).resolve() / "benchmarks" if tree else Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def tell(bars: Bars, figures: Mapping[str, float]) -> bool:
    """Print each bar with its figure, or that it was not checked; whether none of those checked failed."""
    failed = False
    for name, (meaning, direction, bar) in bars.items():
        if name not in figures:
            print(f"{meaning:80} {'':>8}  bar {direction} {bar:g}: not checked")
            continue
        holds = figures[name] <= bar if direction == "<=" else figures[name] >= bar
        failed |= not holds
        print(f"{meaning:80} {figures[name]:8.3g}  bar {direction} {bar:g}: {'holds' if holds else 'FAILS'}")
    return not failed


def in_turns(
    contenders: Mapping[str, Callable[[], Any]],
    rounds: int,
    warm: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each round of each contender; every other round goes backwards, so that none always follows one."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warm + rounds):
        for name, run in list(contenders.items())[:: 1 if turn % 2 == 0 else -1]:
            began = clock()
            run()
            if turn >= warm:
                times[name].append(clock() - began)
    return times


def median_ratio(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """The ratio of the medians of rounds (n,) that took turns, and its 95 % interval, rounds resampled."""
    pairs = np.array([first, second])
    draws = np.random.default_rng(0).integers(pairs.shape[1], size=(2000, pairs.shape[1]))
    over, under = np.median(pairs[:, draws], axis=2)
    low, high = np.quantile(over / under, [0.025, 0.975])
    value = np.median(pairs[0]) / np.median(pairs[1])
    return float(value), float(low), float(high)


def write(path: Path, bars: Bars, figures: Mapping[str, float], table: list[dict[str, Any]]) -> None:
    """Keep the result of a full run."""
    rounded = {name: float(f"{value:.4g}") for name, value in figures.items()}
    path.write_text(
        json.dumps({"machine": machine(), "bars": bars, "figures": rounded, "table": table}, indent=2) + "\n"
    )


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
