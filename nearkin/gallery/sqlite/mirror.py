"""The vectors of a local gallery: in blocks on disk, mirrored in memory for search, with a graph where it pays."""

from __future__ import annotations

import importlib.util
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.errors import NearkinError, StorageError
from nearkin.gallery.dtypes import halves, packed, row_bytes
from nearkin.gallery.index import VectorIndex
from nearkin.gallery.index.hnsw import HnswIndex
from nearkin.gallery.model import is_learned, space_of
from nearkin.gallery.sqlite.database import GalleryState, read_settings, read_state
from nearkin.gallery.store import ABSENT
from nearkin.gallery.values import Settings

_BYTES = 2**20
_MOST_ROWS = 2**14  # codes of a block are rewritten whole when one of them changes


class VectorBlocks:
    """The blocks of one version of the vectors.

    Args:
        connection: to the database.
        settings: what the vectors are.
        version: which.

    Attributes:
        width: bytes of a vector.
        rows: how many vectors a block holds, a power of two.
    """

    def __init__(self, connection: sqlite3.Connection, settings: Settings, version: int) -> None:
        self.version = version
        self.width = row_bytes(settings.dtype, settings.dimension)
        self.rows = min(_MOST_ROWS, 2 ** max(0, (_BYTES // self.width).bit_length() - 1))
        self._connection = connection
        self._dtype = np.dtype(settings.dtype).newbyteorder("<")

    def stored(self, vectors: np.ndarray) -> np.ndarray:
        """Vectors (n, d) as they are stored, (n, columns): of int8 there are more columns, for the bytes of the scale.

        Raises:
            DataError: if a number is too large for that.
        """
        if self._dtype == np.int8:
            return packed(vectors)
        return np.ascontiguousarray(halves(vectors) if self._dtype.itemsize == 2 else vectors, self._dtype)

    def append(self, generation: int, first: int, points: np.ndarray, codes: np.ndarray) -> None:
        """Write stored points (n, columns) with codes (n,) to the rows from `first`, the end, on."""
        self._write(first, points)
        self.set_codes(generation, np.arange(first, first + len(points)), codes)

    def scatter(self, rows: np.ndarray, points: np.ndarray) -> None:
        """Write stored points (n, columns) to any rows (n,)."""
        order = np.argsort(rows, kind="stable")
        for run in np.split(order, np.flatnonzero(np.diff(rows[order]) != 1) + 1):
            if len(run):
                self._write(int(rows[run[0]]), points[run])

    def _write(self, first: int, points: np.ndarray) -> None:
        """Write stored points (n, columns) to the rows from `first` on, into blocks that are made if need be."""
        done = 0
        for number, start, n in self._pieces(first, first + len(points)):
            with self._connection.blobopen("vectors", "points", self.ensure(number)) as blob:
                blob.seek(start * self.width)
                blob.write(points[done : done + n].data.cast("B"))
            done += n

    def set_codes(self, generation: int, rows: np.ndarray, codes: np.ndarray) -> None:
        """Give rows (n,) other codes (n,)."""
        order = np.argsort(rows, kind="stable")
        numbers, begins = np.unique(rows[order] // self.rows, return_index=True)
        for number, some in zip(numbers.tolist(), np.split(order, begins[1:]), strict=False):
            marks = self.codes(number).copy()
            marks[rows[some] - number * self.rows] = codes[some]
            self._connection.execute(
                "UPDATE blocks SET codes = ?, generation = ? WHERE version = ? AND number = ?",
                (marks.data, generation, self.version, number),
            )

    def codes(self, number: int) -> np.ndarray:
        """Codes (rows,) of a block."""
        return self._as_codes(number, self._find("codes", number))

    def newer(self, generation: int) -> Iterator[tuple[int, np.ndarray]]:
        """Numbers and codes (rows,) of the blocks that changed after a generation."""
        found = self._connection.execute(
            "SELECT number, codes FROM blocks WHERE version = ? AND generation > ? ORDER BY number",
            (self.version, generation),
        )
        for number, codes in found:
            yield number, self._as_codes(number, codes)

    def points(self, first: int, end: int) -> Iterator[np.ndarray]:
        """The stored points of the rows from `first` up to `end`, (n, columns) of a block at a time."""
        for number, start, n in self._pieces(first, end):
            key = self._find("key", number)
            if key is None:
                raise sqlite3.DatabaseError(f"block {number} of the vectors is missing")
            with self._connection.blobopen("vectors", "points", key, readonly=True) as blob:
                if len(blob) != self.rows * self.width:
                    raise sqlite3.DatabaseError(f"block {number} of the vectors has the wrong size")
                blob.seek(start * self.width)
                read = blob.read(n * self.width)
            yield np.frombuffer(read, self._dtype).reshape(n, -1)

    def ensure(self, number: int) -> int:
        """The key of a block; one of zeros, without items, is made if there is none."""
        key = self._find("key", number)
        if key is None:
            key = self._connection.execute(
                "INSERT INTO blocks (version, number, generation, codes) VALUES (?, ?, 0, ?)",
                (self.version, number, np.full(self.rows, ABSENT, "<i4").data),
            ).lastrowid
            self._connection.execute("INSERT INTO vectors VALUES (?, zeroblob(?))", (key, self.rows * self.width))
        return int(key)

    def _pieces(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Where the rows from `first` up to `end` are: blocks, places in these, and how many follow there."""
        while first < end:
            number, start = divmod(first, self.rows)
            n = min(end - first, self.rows - start)
            yield number, start, n
            first += n

    def _find(self, column: str, number: int) -> Any:
        """What a block has in a column; None if there is no such block."""
        found = self._connection.execute(
            f"SELECT {column} FROM blocks WHERE version = ? AND number = ?", (self.version, number)
        ).fetchone()
        return found and found[0]

    def _as_codes(self, number: int, codes: bytes | None) -> np.ndarray:
        if codes is None or len(codes) != 4 * self.rows:
            raise sqlite3.DatabaseError(f"the codes of block {number} are missing or have the wrong size")
        return np.frombuffer(codes, "<i4")


def delete_blocks(connection: sqlite3.Connection, but: int) -> None:
    """Delete the blocks of all versions but one."""
    others = [key for (key,) in connection.execute("SELECT key FROM blocks WHERE version != ?", (but,))]
    for table in ("vectors", "blocks") if others else ():
        connection.executemany(f"DELETE FROM {table} WHERE key = ?", ((key,) for key in others))


@dataclass(frozen=True, eq=False)
class Mirror:
    """Vectors and codes as of one state of the database.

    Attributes:
        state: that state.
        settings: what the vectors are.
        index: the vectors by row, with the code of each.
        kept: slots int64 (m,) of the first m rows, in order; those of later rows follow at a fixed distance.
        classes: names by code.
    """

    state: GalleryState
    settings: Settings
    index: VectorIndex
    kept: np.ndarray
    classes: tuple[str, ...]

    def slots(self, rows: np.ndarray) -> np.ndarray:
        """Slots int64 of rows of any shape; -1 stays -1."""
        slots = rows + (self.state.slots - self.state.rows)
        early = (rows >= 0) & (rows < len(self.kept))
        slots[early] = self.kept[rows[early]]
        return np.where(rows < 0, -1, slots)

    def rows(self, slots: np.ndarray) -> np.ndarray:
        """Rows int64 (n,) of slots; -1 for a slot that has none."""
        shift = self.state.slots - self.state.rows
        rows = slots - shift
        late = (rows >= len(self.kept)) & (rows < self.state.rows)
        near = np.searchsorted(self.kept, slots)
        early = (near < len(self.kept)) & ~late
        early[early] = self.kept[near[early]] == slots[early]
        return np.where(late, rows, np.where(early, near, -1))


def refreshed(connection: sqlite3.Connection, mirror: Mirror | None, directory: Path) -> Mirror:
    """The mirror of the state that the open transaction sees; what did not change since is not read again."""
    state = read_state(connection)
    if mirror is None or mirror.state.version != state.version:
        settings = read_settings(connection)
        index = VectorIndex(space_of(settings, directory), settings.dimension, settings.dtype)
        found = connection.execute("SELECT slots FROM numbering").fetchone()
        kept = np.frombuffer(found[0] if found else b"", "<i8")
        mirror = Mirror(GalleryState(generation=-1), settings, index, kept, ())
    if mirror.state.generation == state.generation:
        return mirror
    # Classes first: no code may be seen before its name.
    newer = connection.execute("SELECT name FROM labels WHERE code >= ? ORDER BY code", (len(mirror.classes),))
    classes = mirror.classes + tuple(name for (name,) in newer)
    _follow(VectorBlocks(connection, mirror.settings, state.version), mirror, state)
    return replace(mirror, state=state, classes=classes)


def codes_of(rows: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Codes int32 of the rows that a search found, given all codes before and after it.

    Others may write while it runs: a row that was removed meanwhile has the code it was found with.
    """
    codes = np.full(rows.shape, ABSENT, np.int32)
    there = rows >= 0
    codes[there] = after[rows[there]]
    there &= rows < len(before)
    earlier = before[rows[there]]
    codes[there] = np.where(earlier == ABSENT, codes[there], earlier)
    return codes


def _follow(blocks: VectorBlocks, mirror: Mirror, state: GalleryState) -> None:
    """Bring the index of a mirror to a newer state, so that searches see all of the change at once."""
    index = mirror.index
    index.reserve(state.rows - index.count)
    for points in blocks.points(index.count, state.rows):
        index.append(points, np.full(len(points), ABSENT, np.int32))
    changed = list(blocks.newer(mirror.state.generation))
    if changed:
        rows = np.concatenate([number * blocks.rows + np.arange(blocks.rows) for number, _ in changed])
        codes = np.concatenate([codes for _, codes in changed])
        index.set_codes(rows[rows < state.rows], codes[rows < state.rows])


INDEX_KINDS = ("auto", "exact", "hnsw")
"""How a gallery may be searched; "auto" is by a graph where that pays and can be had, exactly else."""

_LOGGER = logging.getLogger("nearkin.gallery")
_MANY = 500_000
_GROWTH = 1.25


class StoredGraph:
    """The graph over the vectors of a mirror, if there is one. The caller sees to it that one thread writes.

    Args:
        directory: where it is kept.
        wanted: one of `INDEX_KINDS`.
    """

    def __init__(self, directory: Path, wanted: str) -> None:
        self._directory = directory
        self.wanted = wanted
        self._index: HnswIndex | None = None
        self._seen: tuple[int, int] | None = None
        self._warned = False

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
        if self._index is not None and self._index.exact is not mirror.index:
            self._index = None
        if self._index is not None and not self._index.due:
            return
        stamp = self._stamp(mirror)
        if stamp is None or stamp == self._seen:
            return
        self._seen = stamp
        with suppress(*self._forgiven()):
            found = HnswIndex.load(mirror.index, self._directory, mirror.state.version)
            if found is not None and (self._index is None or found.covered > self._index.covered):
                self._index = found

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
        if self._index is not None and self._index.covered >= _GROWTH * self._index.saved:
            self.save(mirror)

    def save(self, mirror: Mirror) -> None:
        """Write the graph to disk if it has grown at all since."""
        if self._index is None or self._index.exact is not mirror.index or self._index.covered == self._index.saved:
            return
        # A gallery is whole without its graph: what cannot be saved is built again.
        try:
            self._index.save(mirror.state.generation)
            self._seen = self._stamp(mirror)
        except StorageError as error:
            if not self._warned:
                _LOGGER.warning("The graph of %s was not saved, and is built again later. %s", self._directory, error)
            self._warned = True

    def of(self, mirror: Mirror) -> HnswIndex | None:
        """The graph over the vectors of this mirror."""
        graph = self._index
        return graph if graph is not None and graph.exact is mirror.index and graph.covered else None

    @property
    def unsaved(self) -> bool:
        """Whether there is something to save."""
        return self._index is not None and self._index.covered != self._index.saved

    def _stamp(self, mirror: Mirror) -> tuple[int, int] | None:
        """What tells one saved graph from another; None if there is none."""
        with suppress(OSError):
            file = (self._directory / f"hnsw-{mirror.state.version}.json").stat()
            return file.st_ino, file.st_mtime_ns
        return None

    def _wanted_for(self, mirror: Mirror) -> bool:
        if self.wanted != "auto":
            return self.wanted == "hnsw"
        if is_learned(mirror.settings.space):
            return False
        return mirror.state.items > _MANY and importlib.util.find_spec("faiss") is not None

    def _forgiven(self) -> tuple[type[NearkinError], ...]:
        """Only who asked for a graph is told that a space has none."""
        return (NearkinError,) if self.wanted == "auto" else ()
