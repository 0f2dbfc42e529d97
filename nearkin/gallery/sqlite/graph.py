"""When a local gallery is searched by a graph, and when that graph is extended and saved."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path

from nearkin.errors import NearkinError, StorageError
from nearkin.gallery.index import VectorIndex
from nearkin.gallery.index.hnsw import HnswIndex
from nearkin.gallery.kept_similarity import is_learned, space_of
from nearkin.gallery.sqlite.mirror import Mirror
from nearkin.gallery.values import Settings

KINDS = ("auto", "exact", "hnsw")
"""How a gallery may be searched; "auto" is by a graph where that pays and can be had, exactly else."""

_MANY = 500_000
_GROWTH = 1.25


class Graph:
    """The graph over the vectors of a mirror, if there is one. The caller sees to it that one thread writes.

    Args:
        directory: where it is kept.
        wanted: one of `KINDS`.
    """

    def __init__(self, directory: Path, wanted: str) -> None:
        self._directory = directory
        self.wanted = wanted
        self._index: HnswIndex | None = None
        self._tried: VectorIndex | None = None
        self._saved = 0
        self._seen: tuple[int, int] | None = None

    def check(self, settings: Settings) -> None:
        """Refuse vectors that no graph can be made of, if one is wanted in any case.

        Raises:
            DataError: if their space has none.
            MissingExtraError: if faiss is not installed.
        """
        if self.wanted == "hnsw":
            HnswIndex(VectorIndex(space_of(settings), settings.dimension), None, 0)

    def follow(self, mirror: Mirror) -> None:
        """Take up the graph that was saved of these vectors, if they, or the file, are others than before."""
        if not self._wanted_for(mirror):
            return
        if mirror.index is not self._tried:
            self._tried, self._index, self._saved = mirror.index, None, 0
        elif self._index is not None and not self._index.due:
            return
        stamp = self._stamp(mirror)
        if stamp is None or stamp == self._seen:
            return
        self._seen = stamp
        with suppress(*self._forgiven()):
            found = HnswIndex.load(mirror.index, self._directory, mirror.state.version)
            if found is not None and (self._index is None or found.covered > self._index.covered):
                self._index, self._saved = found, found.covered

    def extend(self, mirror: Mirror) -> None:
        """Add the vectors that the graph lacks, if they are many; save it if it has grown much."""
        if not self._wanted_for(mirror) or not mirror.index.count:
            return
        self.follow(mirror)
        with suppress(*self._forgiven()):
            graph = self._index or HnswIndex(mirror.index, self._directory, mirror.state.version)
            if graph.due:
                graph.extend()
            self._index = graph
        if self._index is not None and self._index.covered >= _GROWTH * self._saved:
            self.save(mirror)

    def save(self, mirror: Mirror) -> None:
        """Write the graph to disk if it has grown at all since."""
        if self._index is None or self._index.exact is not mirror.index or self._index.covered == self._saved:
            return
        # A gallery is whole without its graph: what cannot be saved is built again.
        with suppress(StorageError):
            self._index.save(mirror.state.generation)
            self._saved = self._index.covered
            self._seen = self._stamp(mirror)

    def of(self, mirror: Mirror) -> HnswIndex | None:
        """The graph over the vectors of this mirror."""
        graph = self._index
        return graph if graph is not None and graph.exact is mirror.index and graph.covered else None

    def unsaved(self) -> bool:
        """Whether there is something to save."""
        return self._index is not None and self._index.covered != self._saved

    def _stamp(self, mirror: Mirror) -> tuple[int, int] | None:
        """What tells one saved graph from another; None if there is none."""
        try:
            file = (self._directory / f"hnsw-{mirror.state.version}.json").stat()
        except OSError:
            return None
        return file.st_ino, file.st_mtime_ns

    def _wanted_for(self, mirror: Mirror) -> bool:
        if self.wanted != "auto":
            return self.wanted == "hnsw"
        if is_learned(mirror.settings.space):
            return False
        return mirror.state.items > _MANY and importlib.util.find_spec("faiss") is not None

    def _forgiven(self) -> tuple[type[NearkinError], ...]:
        """Only who asked for a graph is told that a space has none."""
        return (NearkinError,) if self.wanted == "auto" else ()
