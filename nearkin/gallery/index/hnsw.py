"""Approximate search by an HNSW graph of faiss, in memory and on disk, for galleries too large for brute force.

On disk it is `hnsw-<version>.faiss`, and beside it what it was built of.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.errors import DataError, StorageError, require
from nearkin.gallery.index.vectors import SearchRequest, Snapshot, VectorIndex, check_request
from nearkin.progress import Progress
from nearkin.search.ann import reproducible
from nearkin.search.scan import nearest, true_distances
from nearkin.spaces import Euclidean, LipschitzBall, Space, Sphere
from nearkin.storage import replacing, write_json

NEIGHBOURS = 32  # of a node, twice as many on the ground level; 16 missed more where tight and loose classes mix
BUILDING = 128  # efConstruction
SEARCHING = 128  # efSearch; at least twice as many as are proposed


class HnswGraph:
    """Slots 0, 1, 2, ... as nodes of a graph, kept in half precision, in coordinates where that tells points apart.

    Args:
        origin: what is subtracted, float64 (d,).
        scale: what the rest is multiplied by.
        directions: whether lengths are taken away first.
        index: the graph of faiss; None: an empty one.
    """

    def __init__(self, origin: np.ndarray, scale: float, directions: bool, index: Any | None = None) -> None:
        self._kit = kit = require("faiss", "faiss")
        self.origin, self.scale, self.directions = origin, scale, directions
        if index is None:
            index = kit.IndexHNSWSQ(len(origin), kit.ScalarQuantizer.QT_fp16, NEIGHBOURS, kit.METRIC_L2)
            index.hnsw.efConstruction = BUILDING
            index.hnsw.rng = kit.RandomGenerator(0)
        self.index = index

    @classmethod
    def of(cls, space: Space, vectors: np.ndarray) -> HnswGraph:
        """An empty one for vectors like these (n, d): the mean is the origin, and the scale brings them within 1."""
        if isinstance(space, Sphere):
            return cls(np.zeros(vectors.shape[1]), 1.0, True)
        origin = vectors.mean(axis=0, dtype=np.float64)
        reach = float(np.abs(vectors - origin).max())
        return cls(origin, 2.0 ** -float(np.frexp(reach)[1]), False)

    @property
    def covered(self) -> int:
        """How many slots it has."""
        return int(self.index.ntotal)

    def add(self, vectors: np.ndarray) -> None:
        """Add the next slots, float32 (n, d); nobody may walk meanwhile."""
        points = self._enter(vectors)
        with reproducible(self._kit):
            if not self.index.is_trained:
                self.index.train(points)
            self.index.add(points)

    def walk(self, queries: np.ndarray, width: int) -> np.ndarray:
        """About the nearest slots (q, width) of queries (q, d), -1 where the walk found no more.

        Nothing of the graph is set, so that many threads may walk at once.
        """
        effort = self._kit.SearchParametersHNSW(efSearch=max(SEARCHING, 2 * width))
        # faiss.contrib.torch_utils, which others import, puts a `search` without parameters in place of this one.
        search = getattr(self.index, "search_numpy", self.index.search)
        return np.asarray(search(self._enter(queries), width, params=effort)[1])

    def _enter(self, vectors: np.ndarray) -> np.ndarray:
        """Coordinates float32 (n, d) of vectors (n, d), within the range of half precision."""
        wide = (vectors.astype(np.float64) - self.origin) * self.scale
        if self.directions:
            length = np.linalg.norm(wide, axis=1, keepdims=True)
            wide /= np.where(length == 0, 1, length)
        return np.clip(wide, -60_000, 60_000).astype(np.float32)


_CHUNK = 2**22
_WITNESSES = 64


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


_ADDED = 2**13  # slots between two steps of the bar
_SAMPLED = 10_000
_LONG_TAIL = 20_000
_TAIL_SHARE = 0.1
_WIDER = 4
_WIDEST = 0.02  # share of the graph, beyond which comparing everything is faster


class HnswIndex:
    """A graph over the first slots of a `VectorIndex`; the slots after them are compared one by one.

    The graph proposes, the vectors decide: distances are true, and only some neighbours may be missed. Removed slots
    stay in the graph and are passed over. With a mask, and while the graph is being extended, search is exact.
    Any number of threads may search; one may extend or save.

    Args:
        vectors: the vectors of a sphere, Euclidean space or Lipschitz ball.
        directory: where the graph is kept; None: nowhere.
        version: of the vectors; another version's slots are others.

    Attributes:
        saved: how many slots are in the graph that was saved or loaded last.
    """

    def __init__(self, vectors: VectorIndex, directory: Path | None, version: int) -> None:
        require("faiss", "faiss")
        space = vectors.space
        if space.name == "learned":
            raise DataError(
                "A graph cannot search by a learned similarity, which is no distance: use index='exact', or 'auto', "
                "which is always exact for it."
            )
        if type(space) not in (Sphere, Euclidean, LipschitzBall):
            raise DataError(
                f"A graph cannot search the space '{space.name}': it knows the sphere, Euclidean space and the "
                "Lipschitz ball; use the exact index instead."
            )
        self.exact = vectors
        self.directory = directory
        self.version = version
        self.generation = 0
        self.saved = 0
        self._graph: HnswGraph | None = None
        self._walkers = _Walkers()

    @classmethod
    def load(cls, vectors: VectorIndex, directory: Path, version: int) -> HnswIndex | None:
        """The index that was saved; None if there is none, it is damaged, or it is not of these vectors.

        A damaged graph would lead a walk out of memory, so the file's checksum is compared before faiss reads it.
        """
        loaded, now = cls(vectors, directory, version), vectors.snapshot
        file = Path(directory) / f"hnsw-{version}.faiss"
        try:
            facts = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
            covered = facts["covered"]
            fits = 0 < covered <= now.count and _kind(version, vectors.space, now).items() <= facts.items()
            if not fits or facts["witnesses"] != _witnesses(now, covered) or facts["checksum"] != _checksum(file):
                return None
            index = require("faiss", "faiss").read_index(str(file))
            origin = np.array(facts["origin"], np.float64)
            graph = HnswGraph(origin, float(facts["scale"]), bool(facts["directions"]), index)
            loaded._graph, loaded.generation, loaded.saved = graph, int(facts["generation"]), covered
            return loaded if graph.covered == covered and index.d == len(origin) else None
        except (OSError, ValueError, TypeError, KeyError, RuntimeError, MemoryError, AttributeError):
            return None

    @property
    def covered(self) -> int:
        """How many slots, from the first on, are in the graph."""
        return 0 if self._graph is None else self._graph.covered

    @property
    def due(self) -> bool:
        """Whether so many slots are not in the graph that `extend` pays."""
        tail = self.exact.count - self.covered
        return tail > _LONG_TAIL or tail > _TAIL_SHARE * self.covered

    def extend(self, progress: bool = False) -> None:
        """Add the slots that are not in the graph; searches meanwhile are exact."""
        now, first = self.exact.snapshot, self.covered
        if now.count <= first:
            return
        with self._walkers.kept_out(), Progress("Building the graph", now.count - first, progress) as bar:
            graph = self._graph
            if graph is None:
                sample = now.vectors[: now.count : max(1, now.count // _SAMPLED)]
                graph = HnswGraph.of(self.exact.space, sample)
            for start in range(first, now.count, _ADDED):
                block = now.vectors[start : min(start + _ADDED, now.count)]
                graph.add(block)
                bar.advance(len(block))
            self._graph = graph

    def save(self, generation: int) -> None:
        """Write the graph as of a generation of the gallery; graphs of other versions are deleted."""
        if self.directory is None:
            raise StorageError("This index has no directory to be saved in: give one when it is made.")
        if self._graph is None:
            return
        graph, now, kit = self._graph, self.exact.snapshot, require("faiss", "faiss")
        path = Path(self.directory) / f"hnsw-{self.version}.faiss"
        with replacing(path) as temporary:
            try:
                kit.write_index(graph.index, str(temporary))
            except RuntimeError as error:  # so faiss tells of a full disk
                raise OSError("faiss could not write all of it") from error
            checksum = _checksum(temporary)
        write_json(
            path.with_suffix(".json"),
            {
                "generation": generation,
                "covered": graph.covered,
                **_kind(self.version, self.exact.space, now),
                "origin": graph.origin.tolist(),
                "scale": graph.scale,
                "directions": graph.directions,
                "witnesses": _witnesses(now, graph.covered),
                "checksum": checksum,
                "faiss": kit.__version__,
            },
        )
        for other in path.parent.glob("*hnsw-*"):  # also what killed writers left, which begins with a dot
            if other.suffix in (".faiss", ".json", ".tmp") and not other.name.lstrip(".").startswith(f"{path.stem}."):
                with suppress(OSError):
                    other.unlink()
        self.generation, self.saved = generation, graph.covered

    def search(
        self,
        queries: Any,
        k: int,
        *,
        allowed: np.ndarray | None = None,
        labelled: bool = False,
        exclude: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """About the k nearest slots of every query; arguments and results as for `VectorIndex.search`."""
        now = self.exact.snapshot
        asked = check_request(now, queries, k, allowed, labelled, exclude)
        with self._walkers.entered() as entered:
            graph = self._graph if entered else None
            if graph is not None and allowed is None and (asked.lengths > 0).all():
                return self._search(graph, now, asked)
        return self.exact.answer(now, asked)

    def _search(self, graph: HnswGraph, now: Snapshot, asked: SearchRequest) -> tuple[np.ndarray, np.ndarray]:
        """Neighbours by the graph and the tail; queries that the graph has too few for are searched exactly."""
        candidates, short = _propose(graph, now, asked)
        first = graph.covered
        if first < now.count:
            allowed = None if asked.allowed is None else asked.allowed[first:]
            exclude = None if asked.exclude is None else np.maximum(asked.exclude - first, -1)
            tail = self.exact.answer(now.since(first), replace(asked, allowed=allowed, exclude=exclude))[1]
            candidates = np.concatenate([candidates, np.where(tail < 0, -1, tail + first)], axis=1)
        measure = partial(true_distances, self.exact.space, asked.queries, now.vectors)
        distances, slots = nearest(candidates, measure, asked.k)
        if len(short):
            exclude = None if asked.exclude is None else asked.exclude[short]
            some = replace(asked, queries=asked.queries[short], lengths=asked.lengths[short], exclude=exclude)
            distances[short], slots[short] = self.exact.answer(now, some)
        return distances, slots


def _propose(graph: HnswGraph, now: Snapshot, asked: SearchRequest) -> tuple[np.ndarray, np.ndarray]:
    """Slots (q, c) that the graph proposes, -1 for none, and the queries (r,) for which they are too few."""
    table = np.full((len(asked.queries), 0), -1, np.int64)
    rows, width = np.arange(len(table)), asked.k + asked.k // 4 + 16
    most = min(graph.covered, max(width, int(_WIDEST * graph.covered)))
    while len(rows):
        width = min(width, most)
        found = graph.walk(asked.queries[rows], width)
        usable = (found >= 0) & (found < now.count)
        if asked.allowed is not None:
            usable &= asked.allowed[np.where(usable, found, 0)]
        found[~usable] = -1
        asked.hide(found, rows)
        table = np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=-1)
        table[rows] = found
        rows = rows[(found >= 0).sum(axis=1) < asked.k]
        if width == most:
            break
        width *= _WIDER
    return table, rows


class _Walkers:
    """Who is in the graph: many who walk, or one who changes it. Nobody waits to walk."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextmanager
    def entered(self) -> Iterator[bool]:
        """Whether the graph may be walked within the block."""
        with self._change:
            entered = not self._closed
            self._inside += entered
        try:
            yield entered
        finally:
            with self._change:
                self._inside -= entered
                self._change.notify_all()

    @contextmanager
    def kept_out(self) -> Iterator[None]:
        """Nobody walks within the block, which begins when all have left."""
        with self._change:
            self._change.wait_for(lambda: not self._closed)
            self._closed = True
            self._change.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._change:
                self._closed = False
                self._change.notify_all()
