"""The service under load: 200 requests in flight on loopback against calling the encoder directly in batches.

    python benchmarks/service.py            the table (about five minutes); writes benchmarks/service.json
    python benchmarks/service.py --check    exit code 0 only if every bar holds
    python benchmarks/service.py --quick    under a minute; bars that do not fit are printed as not checked

A process serves a gallery of EfficientNet-Lite0 and this one is the client: prebuilt HTTP/1.1 requests with whole JPEG
files, on kept-alive connections, each `POST /v1/identify`. The direct way is `QueryEncoder.encode` on the same bytes in
the serving process, so both decode, and both have the same threads; they take turns, and each counts by its median
round. Every answer is compared with what the gallery says of the directly made vector. The photographs are those of
CUB-200-2011 (NEARKIN_DATA), or generated ones of their size without it.

Memory is watched over 10,000 requests in a fresh process, with small images and a small network so that it takes
minutes and not an hour: what a request leaves behind does not depend on the network.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import multiprocessing as mp
import os
import platform
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from nearkin.allocator import tune_allocator

tune_allocator()  # as the nearkin command does, before anything is imported that starts threads

import numpy as np
import psutil
import torch
from PIL import Image

from nearkin.data import open_named
from nearkin.gallery.gallery import Gallery
from nearkin.models import ModelSection, build_embedder
from nearkin.serve.app import Server, create_app
from nearkin.serve.settings import ServeSettings

SEED = 0
IN_FLIGHT = 200
BATCH = 64
NEIGHBOURS = 5
ITEMS = {"full": 2000, "quick": 128}
REQUESTS = {"full": 1280, "quick": 256}
"""Of a round; all different images."""
ROUNDS = {"full": 4, "quick": 1}
SMALL_ITEMS = 300
WATCHED = 10_000
WARM = 2_000
EVERY = 500
TOLERANCE = 1e-3
"""By which distances may differ: a batch of another size adds up in another order."""
RESULT = Path(__file__).with_suffix(".json")

BARS: dict[str, tuple[str, str, float]] = {
    "lost": ("answers lost or refused", "<=", 0.0),
    "wrong": ("answers that differ from the gallery's own", "<=", 0.0),
    "throughput": ("service / encoder directly in batches, images a second", ">=", 0.85),
    "growth": (f"memory: MB that {WATCHED:,} requests add after {WARM:,}, by a straight line", "<=", 5.0),
}


def photographs(count: int) -> tuple[list[bytes], list[str]]:
    """JPEG files and their classes, in random order."""
    rng = np.random.default_rng(SEED)
    root = Path(os.environ.get("NEARKIN_DATA", "."))
    if not (root / "cub200.zip").is_file():  # a benchmark downloads nothing
        return [generated(rng, 500, 375) for _ in range(count)], [f"class {number % 40}" for number in range(count)]
    dataset = open_named("cub200", root, progress=False)
    rows = rng.permutation(len(dataset))[:count]
    chosen = dataset.select(rows)
    return [chosen.store.read(path) for path in chosen.manifest.paths], list(map(str, chosen.labels))


def generated(rng: np.random.Generator, width: int, height: int) -> bytes:
    """A JPEG file with about the detail of a photograph."""
    coarse = rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


# The serving process.


def serve(pipe: Connection, folder: str, section: ModelSection, items: list[bytes], labels: list[str]) -> None:
    """Serve a gallery of these items, and do what the client asks for through the pipe."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    with Gallery.create(Path(folder) / "bench.gallery", build_embedder(section).eval(), progress=False) as gallery:
        if items:
            gallery.add(items, labels, progress=False)
        gallery.recalibrate()
        settings = ServeSettings(port=listener.getsockname()[1], rate=0, max_batch=BATCH)
        server = Server(create_app(gallery, settings))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        pipe.send(settings.port)
        while (asked := pipe.recv()) is not None:
            pipe.send(answer(gallery, *asked))
        server.should_exit = True
        thread.join()


def answer(gallery: Gallery, name: str, files: list[bytes]) -> Any:
    if name == "memory":
        return psutil.Process().memory_info().rss / 1e6
    began = time.perf_counter()
    vectors = gallery.encoder.encode(files, batch_size=BATCH)
    seconds = time.perf_counter() - began
    if name == "direct":
        return seconds
    return [
        (match.label, [(near.item.id, near.distance) for near in match.neighbours])
        for match in gallery.identify_vectors(vectors, neighbours=NEIGHBOURS)
    ]


@contextmanager
def served(section: ModelSection, items: list[bytes], labels: list[str]) -> Iterator[tuple[int, Connection]]:
    ours, theirs = mp.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = mp.get_context("spawn").Process(target=serve, args=(theirs, folder, section, items, labels))
        process.start()
        try:
            yield ours.recv(), ours
        finally:
            ours.send(None)
            process.join(60)


# The client.


def request(port: int, file: bytes) -> bytes:
    """A whole request, as bytes."""
    edge = b"----nearkin-benchmark"
    start = b"--" + edge + b'\r\nContent-Disposition: form-data; name="'
    body = start + b'neighbours"\r\n\r\n' + str(NEIGHBOURS).encode() + b"\r\n"
    body += (
        start + b'image"; filename="x.jpg"\r\nContent-Type: image/jpeg\r\n\r\n' + file + b"\r\n--" + edge + b"--\r\n"
    )
    head = (
        f"POST /v1/identify HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: multipart/form-data; boundary={edge.decode()}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def load(port: int, requests: list[bytes], numbers: Iterator[int]) -> dict[int, tuple[float, bytes]]:
    """Send requests by number, so many at a time; seconds and body of each answer that was 200."""
    found: dict[int, tuple[float, bytes]] = {}

    async def keep_asking() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            began = time.perf_counter()
            writer.write(requests[number % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            if head.startswith(b"HTTP/1.1 200"):
                found[number] = (time.perf_counter() - began, body)
        writer.close()

    await asyncio.gather(*(keep_asking() for _ in range(IN_FLIGHT)), return_exceptions=True)
    return found


def differs(body: bytes, expected: tuple[str | None, list[tuple[str, float]]]) -> bool:
    """Whether an answer is not the direct one; neighbours at the same distance may have changed places."""
    given = json.loads(body)
    label, neighbours = expected
    distances = np.array([distance for _, distance in neighbours])
    found = np.array([near["distance"] for near in given["neighbours"]])
    if found.shape != distances.shape or not np.allclose(found, distances, atol=TOLERANCE):
        return True
    alone = np.diff(distances, prepend=-np.inf, append=np.inf) > 2 * TOLERANCE
    clear = alone[:-1] & alone[1:]
    clear[-1] = False  # the one after it is not known
    moved = [near["id"] != id for near, (id, _) in zip(given["neighbours"], neighbours, strict=True)]
    margin = [one["probability"] for one in given["candidates"][:2]]
    sure = len(margin) < 2 or margin[0] - margin[1] > 10 * TOLERANCE
    return bool((np.array(moved) & clear).any()) or (sure and given["label"] != label)


def measure_load(mode: str) -> dict[str, float]:
    files, labels = photographs(ITEMS[mode] + REQUESTS[mode])
    queries = files[ITEMS[mode] :]
    section = ModelSection(backbone="efficientnet-lite0", pretrained=True, dimension=None)
    with served(section, files[: ITEMS[mode]], labels[: ITEMS[mode]]) as (port, pipe):
        requests = [request(port, file) for file in queries]
        asyncio.run(load(port, requests, iter(range(2 * BATCH))))
        pipe.send(("answers", queries))
        expected = pipe.recv()
        seconds: dict[str, list[float]] = {"direct": [], "service": []}
        latencies, lost, wrong = [], 0, 0
        for _ in range(ROUNDS[mode]):
            pipe.send(("direct", queries))
            seconds["direct"].append(pipe.recv())
            began = time.perf_counter()
            found = asyncio.run(load(port, requests, iter(range(len(requests)))))
            seconds["service"].append(time.perf_counter() - began)
            lost += len(requests) - len(found)
            wrong += sum(differs(body, expected[number]) for number, (_, body) in found.items())
            latencies += [taken for taken, _ in found.values()]
    rates = {name: len(queries) / median(taken) for name, taken in seconds.items()}
    return {
        "direct images/s": rates["direct"],
        "service images/s": rates["service"],
        "throughput": rates["service"] / rates["direct"],
        "lost": lost,
        "wrong": wrong,
        "requests": ROUNDS[mode] * len(queries),
        "p50 seconds": float(np.percentile(latencies, 50)),
        "p99 seconds": float(np.percentile(latencies, 99)),
    }


def measure_memory() -> dict[str, Any]:
    rng = np.random.default_rng(SEED)
    files = [generated(rng, 64, 64) for _ in range(SMALL_ITEMS)]
    labels = [f"class {number % 10}" for number in range(SMALL_ITEMS)]
    section = ModelSection(backbone="conv4", channels=3, size=28, dimension=64)
    sizes, answered = [], 0
    with served(section, files, labels) as (port, pipe):
        requests = [request(port, file) for file in files]
        for first in range(0, WARM + WATCHED, EVERY):
            answered += len(asyncio.run(load(port, requests, iter(range(first, first + EVERY)))))
            pipe.send(("memory", []))
            sizes.append(pipe.recv())
    watched = np.array(sizes[WARM // EVERY :])
    slope = np.polyfit(np.arange(len(watched)) * EVERY, watched, 1)[0]
    return {
        "growth": float(slope * WATCHED),
        "memory MB": float(watched[-1]),
        "memory lost": WARM + WATCHED - answered,
        "memory sizes MB": [round(size, 1) for size in sizes],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless every bar that was checked holds")
    parser.add_argument("--quick", action="store_true", help="one round, no watching of memory; nothing is written")
    arguments = parser.parse_args()
    mode = "quick" if arguments.quick else "full"
    figures: dict[str, Any] = measure_load(mode)
    if not arguments.quick:
        figures |= measure_memory()
        figures["lost"] += figures["memory lost"]
    print("\n| what | measured | bar | |\n|---|---|---|---|")
    holds = True
    for name, (meaning, sign, bar) in BARS.items():
        if name not in figures:
            print(f"| {meaning} | | {sign} {bar:g} | not checked |")
            continue
        met = figures[name] <= bar if sign == "<=" else figures[name] >= bar
        holds &= met
        print(f"| {meaning} | {figures[name]:.3g} | {sign} {bar:g} | {'holds' if met else 'FAILS'} |")
    if not arguments.quick:
        machine = {
            "cpu": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        RESULT.write_text(json.dumps({"machine": machine, "figures": figures, "bars": BARS}, indent=2) + "\n")
    print(
        f"\n{IN_FLIGHT} requests in flight: {figures['service images/s']:.0f} images a second, "
        f"{figures['throughput']:.2f} of the encoder alone ({figures['direct images/s']:.0f}); half of the answers "
        f"within {1000 * figures['p50 seconds']:.0f} ms, 99 % within {1000 * figures['p99 seconds']:.0f} ms"
    )
    return 1 if arguments.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
