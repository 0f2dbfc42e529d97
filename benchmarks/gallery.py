"""A local gallery of a million vectors against bare NumPy and bare SQLite.

    python benchmarks/gallery.py            the table (some minutes); writes benchmarks/gallery.json
    python benchmarks/gallery.py --check    exit code 0 only if every bar that was checked holds
    python benchmarks/gallery.py --quick    under a minute, a fifth of the size; bars that do not fit are not checked

Contenders take turns in one run and count by their median. Each part runs in a process of its own, so that memory is
that of the part. Files are read from the system's cache on both sides: what is compared is the work, not the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from nearkin.gallery import Gallery

SEED = 0
ITEMS = {"full": 1_000_000, "quick": 200_000}
DIMENSIONS = 128
CLASSES_PER_ITEM = 100
"""Items of a class, on average."""
NOISE = 0.7
"""Standard deviation of a class around its centre over that of the centres."""
ADDED = 10_000
QUERIES = 1000
"""For recall."""
K = 10
ROUNDS = {"full": 7, "quick": 5}
SINGLE = {"full": 40, "quick": 40}
"""Single queries timed."""
PAUSE = 0.02
PART = 100_000
"""Items added at once while the gallery is built."""
RESULT = Path(__file__).with_suffix(".json")

BARS: dict[str, tuple[str, str, float]] = {
    "open": ("opening / reading a .npy of the same vectors", "<=", 4.0),
    "search": ("exact search, one query, k = 10 / one bare matrix-vector product", "<=", 1.5),
    "memory": ("resident memory of the opened gallery after searches / the vectors", "<=", 1.3),
    "add": ("adding 10,000 items / a bare insert of the same rows in one transaction", "<=", 3.0),
    "hnsw": ("exact search / HNSW search, one query, k = 10", ">=", 10.0),
    "recall": ("recall@10 of HNSW", ">=", 0.98),
}
FULL_ONLY = ("memory", "hnsw", "recall")


def clustered(count: int, seed: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors float32 (n, d) around class centres, and the class of each (n,); the centres never change."""
    centres = np.random.default_rng(SEED).standard_normal((classes, DIMENSIONS), dtype=np.float32)
    generator = np.random.default_rng([SEED, seed])
    codes = generator.integers(classes, size=count)
    rows = centres[codes] + NOISE * generator.standard_normal((count, DIMENSIONS), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, codes


def records(count: int, seed: int, classes: int) -> tuple[np.ndarray, list[str], list[dict[str, Any]]]:
    """Vectors, labels and metadata of items to be added."""
    rows, codes = clustered(count, seed, classes)
    metadata = [{"price": float(code % 97), "shelf": f"shelf {code % 13}"} for code in codes]
    return rows, [f"class {code}" for code in codes], metadata


def medians(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each contender, taking turns after a turn that does not count.

    Before each turn there is a pause: the threads of BLAS and OpenMP spin for a while after a product, and would take a
    core from whoever comes next.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            time.sleep(PAUSE)
            begin = time.perf_counter()
            run()
            if number:
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def build(folder: Path, size: str) -> dict[str, float]:
    """The gallery and the .npy that the other parts use."""
    count = ITEMS[size]
    classes = count // CLASSES_PER_ITEM
    every = np.empty((count, DIMENSIONS), np.float32)
    begin = time.perf_counter()
    with Gallery.create(folder / "big.gallery", dimension=DIMENSIONS, name="clustered", index="exact") as gallery:
        for start in range(0, count, PART):
            rows, labels, metadata = records(PART, start, classes)
            gallery.add(rows, labels, metadata)
            every[start : start + PART] = rows
    seconds = time.perf_counter() - begin
    np.save(folder / "vectors.npy", every)
    return {"build seconds": seconds}


def measure_open(folder: Path, size: str) -> dict[str, float]:
    """Opening against np.load, and memory."""
    path, vectors = folder / "big.gallery", folder / "vectors.npy"
    times = medians(
        {"npy": lambda: np.load(vectors), "gallery": lambda: Gallery.open(path).close()},
        ROUNDS[size],
    )
    return {"npy seconds": times["npy"], "open seconds": times["gallery"], "open": times["gallery"] / times["npy"]}


def measure_memory(folder: Path, size: str) -> dict[str, float]:
    """What an opened and searched gallery adds to the resident memory of a process that has imported everything."""
    queries, _ = clustered(8, 10**8 + 1, ITEMS[size] // CLASSES_PER_ITEM)
    with Gallery.create(folder / "tiny.gallery", dimension=DIMENSIONS, name="clustered") as tiny:
        tiny.add(queries)
        tiny.search_vectors(queries[:1], K)
    process = psutil.Process()
    before = process.memory_info().rss
    with Gallery.open(folder / "big.gallery") as gallery:
        for query in queries:
            gallery.search_vectors(query[None], K)
        after = process.memory_info().rss
    vectors = ITEMS[size] * DIMENSIONS * 4
    return {"memory MB": (after - before) / 2**20, "memory": (after - before) / vectors, "process MB": after / 2**20}


def measure_search(folder: Path, size: str) -> dict[str, float]:
    """Single queries against the faster of two bare products."""
    queries, _ = clustered(SINGLE[size], 10**8 + 2, ITEMS[size] // CLASSES_PER_ITEM)
    array = np.load(folder / "vectors.npy")
    tensor = torch.from_numpy(array)
    asked = iter(range(10**9))
    with Gallery.open(folder / "big.gallery") as gallery:
        times = medians(
            {
                "numpy": lambda: array @ queries[next(asked) % len(queries)],
                "torch": lambda: tensor @ torch.from_numpy(queries[next(asked) % len(queries)]),
                "gallery": lambda: gallery.search_vectors(queries[next(asked) % len(queries)][None], K),
            },
            SINGLE[size],
        )
        _check_exact(gallery, array, queries)
    bare = min(times["numpy"], times["torch"])
    return {"product ms": 1e3 * bare, "search ms": 1e3 * times["gallery"], "search": times["gallery"] / bare}


def _check_exact(gallery: Gallery, array: np.ndarray, queries: np.ndarray) -> None:
    """The answers must be those of brute force in float64."""
    for query in queries[:5]:
        chords = np.linalg.norm(array.astype(np.float64) - query.astype(np.float64), axis=1)
        best = np.sort(chords)[:K]
        found = [neighbour.distance for neighbour in gallery.search_vectors(query[None], K)[0]]
        if not np.allclose(best, found, atol=1e-5):
            raise SystemExit("The gallery's answers are not those of brute force.")


def measure_hnsw(folder: Path, size: str) -> dict[str, float]:
    """Building the graph, its recall, and single queries against exact search."""
    queries, _ = clustered(QUERIES, 10**8 + 3, ITEMS[size] // CLASSES_PER_ITEM)
    path = folder / "big.gallery"
    exact, begin = Gallery.open(path), time.perf_counter()
    graph = Gallery.open(path, index="hnsw")
    graph.search_vectors(queries[:1], K)
    seconds = time.perf_counter() - begin
    hits = 0
    for start in range(0, QUERIES, 50):
        some = queries[start : start + 50]
        pairs = zip(exact.search_vectors(some, K), graph.search_vectors(some, K), strict=True)
        hits += sum(len({n.item.id for n in mine} & {n.item.id for n in true}) for true, mine in pairs)
    asked = iter(range(10**9))
    times = medians(
        {
            "exact": lambda: exact.search_vectors(queries[next(asked) % QUERIES][None], K),
            "hnsw": lambda: graph.search_vectors(queries[next(asked) % QUERIES][None], K),
        },
        SINGLE[size],
    )
    exact.close()
    graph.close()
    begin = time.perf_counter()
    Gallery.open(path, index="hnsw").close()
    return {
        "graph seconds": seconds,
        "reopen seconds": time.perf_counter() - begin,
        "exact ms": 1e3 * times["exact"],
        "hnsw ms": 1e3 * times["hnsw"],
        "hnsw": times["exact"] / times["hnsw"],
        "recall": hits / (QUERIES * K),
    }


def bare_insert(
    path: Path, rows: np.ndarray, labels: list[str], metadata: list[dict[str, Any]], ids: list[str]
) -> None:
    """The peer: one table, one transaction, the durability the gallery has."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS items (id TEXT PRIMARY KEY, label TEXT, metadata TEXT, vector BLOB)")
    begin = time.perf_counter()
    connection.execute("BEGIN IMMEDIATE")
    parts = zip(ids, labels, map(json.dumps, metadata), map(bytes, map(memoryview, rows)), strict=True)
    connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", parts)
    connection.execute("COMMIT")
    _SECONDS.append(time.perf_counter() - begin)
    connection.close()


_SECONDS: list[float] = []


def measure_add(folder: Path, size: str) -> dict[str, float]:
    """Adding to the large gallery against inserting into a bare table."""
    classes = ITEMS[size] // CLASSES_PER_ITEM
    ours: list[float] = []
    with Gallery.open(folder / "big.gallery") as gallery:
        for number in range(ROUNDS[size] + 1):
            rows, labels, metadata = records(ADDED, 10**7 + number, classes)
            begin = time.perf_counter()
            ids = gallery.add(rows, labels, metadata, progress=False)
            ours.append(time.perf_counter() - begin)
            bare_insert(folder / "bare.sqlite", rows, labels, metadata, ids)
    mine, bare = statistics.median(ours[1:]), statistics.median(_SECONDS[1:])
    return {"add seconds": mine, "bare insert seconds": bare, "add": mine / bare}


PARTS: dict[str, Callable[[Path, str], dict[str, float]]] = {
    "build": build,
    "open": measure_open,
    "memory": measure_memory,
    "search": measure_search,
    "hnsw": measure_hnsw,
    "add": measure_add,
}


def run_part(name: str, folder: Path, size: str) -> dict[str, float]:
    """A part in a process of its own."""
    command = [sys.executable, __file__, "--part", name, "--folder", str(folder), "--size", size]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()), flush=True)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless every bar that was checked holds")
    parser.add_argument("--quick", action="store_true", help="a fifth of the size, no graph; nothing is written")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--size", choices=ITEMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(PARTS[arguments.part](arguments.folder, arguments.size)))
        return 0
    size = "quick" if arguments.quick else "full"
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="nearkin-bench-") as folder:
        for name in PARTS:
            if not (arguments.quick and name in ("hnsw", "memory")):
                figures |= run_part(name, Path(folder), size)
    print(f"\n{ITEMS[size]:,} x {DIMENSIONS} float32\n\n| what | measured | bar | |\n|---|---|---|---|")
    holds = True
    for name, (meaning, sign, bar) in BARS.items():
        if arguments.quick and name in FULL_ONLY:
            print(f"| {meaning} | | {sign} {bar:g} | not checked |")
            continue
        met = figures[name] <= bar if sign == "<=" else figures[name] >= bar
        holds &= met
        print(f"| {meaning} | {figures[name]:.3g} | {sign} {bar:g} | {'holds' if met else 'FAILS'} |")
    if not arguments.quick:
        machine = {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "sqlite": sqlite3.sqlite_version,
        }
        RESULT.write_text(json.dumps({"machine": machine, "figures": figures, "bars": BARS}, indent=2) + "\n")
    print(
        f"\n{ITEMS[size]:,} vectors: opens in {figures['open']:.1f} x a .npy, searches in {figures['search']:.2f} x a "
        f"bare product ({figures['search ms']:.0f} ms), adds 10,000 in {figures['add']:.1f} x a bare insert"
        + ("" if arguments.quick else f"; HNSW {figures['hnsw']:.0f} x faster at recall@10 {figures['recall']:.3f}")
    )
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
