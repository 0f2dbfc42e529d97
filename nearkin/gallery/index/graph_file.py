"""A graph on disk: `hnsw-<version>.faiss`, and beside it what it was built of."""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.errors import require
from nearkin.gallery.index.graph import Frame, Graph
from nearkin.gallery.index.snapshot import Snapshot
from nearkin.spaces import Space
from nearkin.storage import replacing, write_json

_CHUNK = 2**22
_WITNESSES = 64


def write_graph(directory: Path, version: int, graph: Graph, space: Space, now: Snapshot, generation: int) -> None:
    """Write a graph of the first slots, and delete those of other versions."""
    kit = require("faiss", "faiss")
    path = _path(directory, version)
    with replacing(path) as temporary:
        kit.write_index(graph.index, str(temporary))
        checksum = _checksum(temporary)
    write_json(
        path.with_suffix(".json"),
        {
            "generation": generation,
            "covered": graph.covered,
            **_kind(version, space, now),
            "origin": graph.frame.origin.tolist(),
            "scale": graph.frame.scale,
            "directions": graph.frame.directions,
            "witnesses": _witnesses(now, graph.covered),
            "checksum": checksum,
            "faiss": kit.__version__,
        },
    )
    for other in directory.glob("hnsw-*"):
        if other.suffix in (".faiss", ".json") and other.stem != path.stem:
            with suppress(OSError):
                other.unlink()


def read_graph(directory: Path, version: int, space: Space, now: Snapshot) -> tuple[Graph, int] | None:
    """A graph and the generation it was written at; None if there is none that fits these vectors.

    A damaged graph would lead a walk out of memory, so the file's checksum is compared before faiss reads it.
    """
    kit = require("faiss", "faiss")
    path = _path(directory, version)
    try:
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        covered = facts["covered"]
        fits = 0 < covered <= now.count and _kind(version, space, now).items() <= facts.items()
        if not fits or facts["witnesses"] != _witnesses(now, covered) or facts["checksum"] != _checksum(path):
            return None
        frame = Frame(np.array(facts["origin"], np.float64), float(facts["scale"]), bool(facts["directions"]))
        graph = Graph(frame, kit.read_index(str(path)))
        if graph.covered != covered or graph.index.d != len(frame.origin):
            return None
        return graph, int(facts["generation"])
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, MemoryError, AttributeError):
        return None


def _path(directory: Path, version: int) -> Path:
    return directory / f"hnsw-{version}.faiss"


def _kind(version: int, space: Space, now: Snapshot) -> dict[str, Any]:
    return {"version": version, "dimension": now.vectors.shape[1], "space": space.to_dict()}


def _witnesses(now: Snapshot, covered: int) -> int:
    """A checksum of some of the vectors that the graph was built of."""
    some = np.unique(np.linspace(0, covered - 1, _WITNESSES).astype(np.int64))
    return zlib.crc32(now.vectors[some].tobytes())


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as handle:
        while chunk := handle.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
