"""What nearkin costs over bare PyTorch: the training loop, encoding, and building the feature cache.

    python benchmarks/overhead.py            the table; writes benchmarks/overhead.json
    python benchmarks/overhead.py --check    exit code 0 only if every bar holds
    python benchmarks/overhead.py --quick    under a minute; bars that do not fit are printed as not checked

Absolute times on shared machines are noise, so every figure is a ratio of contenders that take turns in one run. The
bare loop and the tuned forward pass have the same CPU tuning as ours; the naive forward pass runs in a process of its
own, because the allocator's settings are the process's. Everyone starts from the same uint8 images in memory and ends
with embeddings; the cache also resizes and crops them, as it does with any data set, and writes the result to disk.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing as mp
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore
from nearkin.models import Embedder, FeatureCache, build_embedder
from nearkin.models.section import CacheViews, ModelSection
from nearkin.models.speed import as_channels_last, channels_last, compiled, inference_copy, tune_allocator
from nearkin.objectives import make_objective
from nearkin.objectives.section import ObjectiveSection
from nearkin.recipe import TrainingSection
from nearkin.training import Loop, Run

SEED = 0
ROUNDS = {"full": 4, "quick": 3}
LOOP_ROUNDS = {"full": 9, "quick": 5}
"""Turns of about a second each."""
LOOPS = {
    # name: (model section, loss, input shape, steps a round)
    "cached head 1280-128, batch 32": (
        ModelSection(backbone="efficientnet-lite0", pretrained=False, freeze="all", dimension=128),
        "proxy-anchor",
        (32, 1280),
        1000,
    ),
    "Conv4 at 28 px, batch 64": (
        ModelSection(backbone="conv4", channels=1, size=28, dimension=64),
        "multi-similarity",
        (64, 1, 28, 28),
        30,
    ),
}
CLASSES = 100
BATCHES = 8
IMAGES = {"full": 512, "quick": 96}
CACHED = {"full": 1536, "quick": 96}
"""A cache is made once for a whole data set: enough images that its start and end weigh as little as they do there."""
BATCH_SIZE = 32
ENCODER = ModelSection(backbone="efficientnet-lite0", pretrained=True, freeze="all", dimension=128)
BARS = {
    "loop": ("our loop / bare loop, steps per second", 0.95),
    "encode": ("encode / best of tuned eager and torch.compile", 0.90),
    "cache": ("cache building / best of tuned eager and torch.compile", 0.90),
    "encode over naive": ("encode / naive eager NCHW", 3.0),
    "cache over naive": ("cache building / naive eager NCHW", 3.0),
}
RESULT = Path(__file__).with_suffix(".json")


# ---------------------------------------------------------------- the training loop


class _Fixed:
    """The same few batches over and over, noting when each is asked for."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]], start: str | None) -> None:
        self.batches = batches
        self.start = start
        self.times: list[float] = []

    def stream(self, first: int, last: int) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(first, last + 1):
            self.times.append(time.perf_counter())
            yield self.batches[step % len(self.batches)]


def _fixed_batches(shape: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(SEED)
    per_class = 4
    found = []
    for _ in range(BATCHES):
        labels = torch.randperm(CLASSES, generator=generator)[: shape[0] // per_class].repeat_interleave(per_class)
        found.append((as_channels_last(torch.randn(shape, generator=generator)), labels))
    return found


def _our_loop(section: ModelSection, loss: str, batches: list[tuple[Tensor, Tensor]], steps: int) -> float:
    embedder = build_embedder(section, seed=SEED)
    objective = _objective(loss, embedder)
    fixed = _Fixed(batches, "pooling" if batches[0][0].ndim == 2 else None)
    training = TrainingSection(max_steps=steps, evaluate_every=steps, patience=None)
    with tempfile.TemporaryDirectory() as folder:
        Loop(embedder, objective, fixed, training, Run(folder), None, progress=False).train()
    return _rate(fixed.times)


def _bare_loop(section: ModelSection, loss: str, batches: list[tuple[Tensor, Tensor]], steps: int) -> float:
    tune_allocator()
    embedder = channels_last(build_embedder(section, seed=SEED))
    objective = _objective(loss, embedder)
    start = "pooling" if batches[0][0].ndim == 2 else None
    parameters = [p for module in (embedder, objective) for p in module.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=1e-3, fused=True)
    embedder.train()
    fixed = _Fixed(batches, start)
    for inputs, labels in fixed.stream(1, steps):
        value = objective(embedder(inputs, start=start), labels)
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        optimiser.step()
    return _rate(fixed.times)


def _objective(loss: str, embedder: Embedder) -> torch.nn.Module:
    section = ObjectiveSection(loss=loss)
    return make_objective(section, dimension=embedder.dimension, classes=CLASSES, space=embedder.space, seed=SEED)


def _rate(times: list[float]) -> float:
    """Steps per second after the first few, which warm up."""
    skip = len(times) // 10
    return (len(times) - 1 - skip) / (times[-1] - times[skip])


def measure_loops(rounds: int) -> dict[str, dict[str, float]]:
    found = {}
    for name, (section, loss, shape, steps) in LOOPS.items():
        batches = _fixed_batches(shape)
        contenders = {
            "ours": partial(_our_loop, section, loss, batches, steps),
            "bare": partial(_bare_loop, section, loss, batches, steps),
        }
        for contender in contenders.values():
            contender()
        rates = _take_turns(contenders, rounds)
        found[name] = _summary(rates) | {"ratio": _median_ratio(rates["ours"], rates["bare"])}
    return found


# ---------------------------------------------------------------- encoding


def _pixels(count: int) -> np.ndarray:
    return np.random.default_rng(SEED).integers(0, 256, (count, 224, 224, 3), dtype=np.uint8)


def _batches(count: int) -> list[Tensor]:
    return list(torch.from_numpy(_pixels(count)).permute(0, 3, 1, 2).contiguous().split(BATCH_SIZE))


def _forward_rate(forward: Callable[[Tensor], Tensor], batches: list[Tensor]) -> float:
    with torch.inference_mode():
        began = time.perf_counter()
        for batch in batches:
            forward(batch)
        return sum(map(len, batches)) / (time.perf_counter() - began)


def _naive_process(pipe: Connection, count: int) -> None:
    """Default allocator, default memory format, nothing folded: what model(batch) gives."""
    embedder = build_embedder(ENCODER, seed=SEED).eval()
    mean, std = embedder.normalise.mean, embedder.normalise.std
    batches = _batches(count)

    def forward(batch: Tensor) -> Tensor:
        return embedder.embed((batch / 255.0 - mean) / std)

    while pipe.recv():
        pipe.send(_forward_rate(forward, batches))


def _jpegs(count: int) -> Dataset:
    """Photographs' worth of decoding: smooth images, compressed as cameras do."""
    rng = np.random.default_rng(SEED)
    files = {}
    for index in range(count):
        small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        small.resize((341, 256), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        files[f"{index}.jpg"] = buffer.getvalue()
    manifest = Manifest.from_rows(list(files), ["x"] * count)
    return Dataset(manifest, _Bytes(files), name="jpegs")


class _Bytes:
    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def read(self, path: str) -> bytes:
        return self.files[path]

    def signature(self, path: str) -> str:
        return path


def measure_encoding(rounds: int, count: int, cached: int, with_compile: bool) -> dict[str, Any]:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_naive_process, args=(theirs, count // 4), daemon=True)
    process.start()
    tune_allocator()
    embedder = build_embedder(ENCODER, seed=SEED).eval()
    fast = inference_copy(embedder)
    batches = _batches(count)

    def forward(batch: Tensor) -> Tensor:
        return fast.embed(as_channels_last(fast.normalise(batch)))

    pixels = _pixels(count)
    names = [str(index) for index in range(cached)]
    repeated = [pixels[index % count] for index in range(cached)]
    dataset = Dataset(Manifest.from_rows(names, ["x"] * cached), ArrayStore(repeated, names), name="pixels")
    tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
    jpegs = _jpegs(count)

    def naive() -> float:
        ours.send(True)
        return ours.recv()

    def encode(items: Any) -> float:
        began = time.perf_counter()
        embedder.encode(items, batch_size=BATCH_SIZE, progress=False)
        return count / (time.perf_counter() - began)

    def cache() -> float:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            FeatureCache.build(
                embedder,
                dataset,
                at="pooling",
                views=CacheViews(),
                dtype="float32",
                directory=Path(folder),
                seed=SEED,
                progress=False,
            )
            return cached / (time.perf_counter() - began)

    contenders: dict[str, Callable[[], float]] = {
        "naive eager NCHW": naive,
        "tuned eager": lambda: _forward_rate(forward, batches),
        "encode": lambda: encode(tensor),
        "cache building": cache,
        "encode, JPEG files": lambda: encode(jpegs),
    }
    if with_compile:
        contenders["torch.compile"] = partial(_forward_rate, compiled(forward), batches)
    for contender in contenders.values():
        contender()
    rates = _take_turns(contenders, rounds)
    ours.send(False)
    process.join()
    peers = [rates[name] for name in ("tuned eager", "torch.compile") if name in rates]
    best = [max(values) for values in zip(*peers, strict=True)]
    return {
        "rates": _summary(rates),
        "encode": _median_ratio(rates["encode"], best),
        "cache": _median_ratio(rates["cache building"], best),
        "JPEG": _median_ratio(rates["encode, JPEG files"], best),
        "encode over naive": _median_ratio(rates["encode"], rates["naive eager NCHW"]),
        "cache over naive": _median_ratio(rates["cache building"], rates["naive eager NCHW"]),
    }


# ---------------------------------------------------------------- taking turns, telling


def _take_turns(contenders: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        # Every other round goes backwards, so that a drift of the machine's speed favours nobody.
        order = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for name in order:
            rates[name].append(contenders[name]())
    return rates


def _summary(rates: dict[str, list[float]]) -> dict[str, float]:
    return {name: round(median(values), 2) for name, values in rates.items()}


def _median_ratio(ours: list[float], theirs: list[float]) -> float:
    return round(median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless every bar holds")
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer rounds, no torch.compile")
    arguments = parser.parse_args()
    mode = "quick" if arguments.quick else "full"
    rounds = ROUNDS[mode]
    loops = measure_loops(LOOP_ROUNDS[mode])
    encoding = measure_encoding(rounds, IMAGES[mode], CACHED[mode], with_compile=not arguments.quick)
    print(f"\n{'training loop':34} {'ours/s':>10} {'bare/s':>10} {'ratio':>7}")
    for name, row in loops.items():
        print(f"{name:34} {row['ours']:10.1f} {row['bare']:10.1f} {row['ratio']:7.3f}")
    print(f"\n{'EfficientNet-Lite0 at 224 px':34} {'images/s':>10}")
    for name, rate in encoding["rates"].items():
        print(f"{name:34} {rate:10.1f}")
    print(f"JPEG files / best forward: {encoding['JPEG']:.3f} (no bar: decoding shares the cores)\n")
    figures = {"loop": min(row["ratio"] for row in loops.values())} | {k: encoding[k] for k in BARS if k in encoding}
    failed = False
    for name, (meaning, bar) in BARS.items():
        unchecked = arguments.quick and name in ("encode", "cache")
        verdict = "not checked (needs torch.compile)" if unchecked else "holds" if figures[name] >= bar else "FAILS"
        failed |= verdict == "FAILS"
        print(f"{meaning:55} {figures[name]:6.3f}  bar {bar}: {verdict}")
    if not arguments.quick:
        machine = {"cpu": _cpu(), "cores": torch.get_num_threads(), "torch": torch.__version__}
        result = {"machine": machine, "rounds": rounds, "loops": loops, "encoding": encoding, "figures": figures}
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nloop {figures['loop']:.3f} of bare; encode {figures['encode over naive']:.2f} x naive")
    return 1 if arguments.check and failed else 0


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    sys.exit(main())
