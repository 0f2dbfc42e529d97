"""Approximate search by a graph, for galleries where comparing everything takes too long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.errors import StorageError, require
from nearkin.gallery.index.asked import Asked, checked
from nearkin.gallery.index.exact import search_exactly
from nearkin.gallery.index.forms import form_of
from nearkin.gallery.index.graph import Frame, Graph, check_space
from nearkin.gallery.index.graph_file import read_graph, write_graph
from nearkin.gallery.index.nearest import nearest
from nearkin.gallery.index.snapshot import Snapshot
from nearkin.gallery.index.vectors import VectorIndex
from nearkin.progress import Progress

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
    """

    def __init__(self, vectors: VectorIndex, directory: Path | None, version: int) -> None:
        require("faiss", "faiss")
        check_space(vectors.space)
        self.exact = vectors
        self.directory = directory
        self.version = version
        self.generation = 0
        self._form = form_of(vectors.space)
        self._graph: Graph | None = None
        self._walkers = _Walkers()

    @classmethod
    def load(cls, vectors: VectorIndex, directory: Path, version: int) -> HnswIndex | None:
        """The index that was saved; None if there is none, it is damaged, or it is not of these vectors."""
        index = cls(vectors, directory, version)
        found = read_graph(Path(directory), version, vectors.space, vectors.snapshot)
        if found is None:
            return None
        index._graph, index.generation = found
        return index

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
                graph = Graph(Frame.of(self.exact.space, sample))
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
        now = self.exact.snapshot
        write_graph(Path(self.directory), self.version, self._graph, self.exact.space, now, generation)
        self.generation = generation

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
        asked = checked(now, queries, k, allowed, labelled, exclude)
        with self._walkers.entered() as entered:
            graph = self._graph if entered else None
            if graph is not None and allowed is None and (asked.lengths > 0).all():
                return self._search(graph, now, asked)
        return search_exactly(self.exact.space, self._form, now, asked)

    def _search(self, graph: Graph, now: Snapshot, asked: Asked) -> tuple[np.ndarray, np.ndarray]:
        """Neighbours by the graph and the tail; queries that the graph has too few for are searched exactly."""
        candidates, short = _propose(graph, now, asked)
        if graph.covered < now.count:
            candidates = np.concatenate([candidates, self._of_tail(now, asked, graph.covered)], axis=1)
        distances, slots = nearest(self.exact.space, asked.queries, now.vectors, candidates, asked.k)
        if len(short):
            exclude = None if asked.exclude is None else asked.exclude[short]
            some = replace(asked, queries=asked.queries[short], lengths=asked.lengths[short], exclude=exclude)
            distances[short], slots[short] = search_exactly(self.exact.space, self._form, now, some)
        return distances, slots

    def _of_tail(self, now: Snapshot, asked: Asked, first: int) -> np.ndarray:
        """The nearest slots (q, k) from a slot on, -1 for none."""
        tail = replace(
            asked,
            allowed=None if asked.allowed is None else asked.allowed[first:],
            exclude=None if asked.exclude is None else np.maximum(asked.exclude - first, -1),
        )
        slots = search_exactly(self.exact.space, self._form, now.since(first), tail)[1]
        return np.where(slots < 0, -1, slots + first)


def _propose(graph: Graph, now: Snapshot, asked: Asked) -> tuple[np.ndarray, np.ndarray]:
    """Slots (q, c) that the graph proposes, -1 for none, and the queries (r,) for which they are too few."""
    table = np.full((len(asked.queries), 0), -1, np.int64)
    rows, width = np.arange(len(table)), asked.k + asked.k // 4 + 16
    most = min(graph.covered, max(width, int(_WIDEST * graph.covered)))
    while len(rows):
        width = min(width, most)
        found = graph.walk(asked.queries[rows], width)
        found[~_usable(found, now, asked, rows)] = -1
        table = np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=-1)
        table[rows] = found
        rows = rows[(found >= 0).sum(axis=1) < asked.k]
        if width == most:
            break
        width *= _WIDER
    return table, rows


def _usable(found: np.ndarray, now: Snapshot, asked: Asked, rows: np.ndarray) -> np.ndarray:
    """Which (r, c) of the slots found for the queries `rows` are there at this moment and may be found."""
    usable = (found >= 0) & (found < now.count)
    if asked.allowed is not None:
        usable &= asked.allowed[np.where(usable, found, 0)]
    if asked.exclude is not None:
        usable &= found != asked.exclude[rows, None]
    return usable


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
