"""The vectors of a local gallery: in blocks on disk, mirrored in memory for search, with a graph where it pays."""

from __future__ import annotations

import importlib.util
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nearkin.errors import NearkinError, StorageError
from nearkin.gallery.dtypes import SCALE_BYTES, halves, packed
from nearkin.gallery.index import VectorIndex
from nearkin.gallery.index.hnsw import HnswIndex
from nearkin.gallery.model import is_learned, space_of
from nearkin.gallery.sqlite import rows as rows_of_items
from nearkin.gallery.sqlite.database import GalleryState, read_settings, read_state
from nearkin.gallery.store import ABSENT
from nearkin.gallery.values import Settings

_BYTES = 2**20
_MOST_ROWS = 2**14  # codes of a block are rewritten whole when one of them changes


@dataclass(frozen=True)
class VectorBlocks:
    """The blocks of one version of the vectors.

    Attributes:
        version: which.
        dimension: size of a vector.
        dtype: how a number is stored; of int8 there are some more in a row, which are the bytes of its scale.
    """

    version: int
    dimension: int
    dtype: np.dtype

    @classmethod
    def of(cls, settings: Settings, version: int) -> VectorBlocks:
        """The blocks that settings ask for."""
        return cls(version, settings.dimension, np.dtype(settings.dtype).newbyteorder("<"))

    @property
    def columns(self) -> int:
        """How many numbers a row holds."""
        return self.dimension + (SCALE_BYTES if self.dtype == np.int8 else 0)

    @property
    def width(self) -> int:
        """Bytes of a vector."""
        return self.columns * self.dtype.itemsize

    @property
    def rows(self) -> int:
        """How many vectors a block holds, a power of two."""
        return min(_MOST_ROWS, 2 ** max(0, (_BYTES // self.width).bit_length() - 1))

    def stored(self, vectors: np.ndarray) -> np.ndarray:
        """Vectors (n, d) as they are stored, (n, columns).

        Raises:
            DataError: if a number is too large for that.
        """
        if self.dtype == np.int8:
            return packed(vectors)
        return np.ascontiguousarray(halves(vectors) if self.dtype.itemsize == 2 else vectors, self.dtype)

    def append(
        self, connection: sqlite3.Connection, generation: int, first: int, points: np.ndarray, codes: np.ndarray
    ) -> None:
        """Write stored points (n, columns) with codes (n,) to the rows from `first`, the end, on."""
        done = 0
        while done < len(points):
            number, start = divmod(first + done, self.rows)
            part = slice(done, done + self.rows - start)
            if start:
                self._fill(connection, generation, number, start, points[part], codes[part])
            else:
                self._insert(connection, generation, number, points[part], codes[part])
            done = part.stop

    def _insert(
        self, connection: sqlite3.Connection, generation: int, number: int, points: np.ndarray, codes: np.ndarray
    ) -> None:
        """A new block that begins with these points and has room for the rest."""
        whole, marks = points, np.full(self.rows, ABSENT, "<i4")
        marks[: len(codes)] = codes
        if len(points) < self.rows:
            whole = np.zeros((self.rows, self.columns), self.dtype)
            whole[: len(points)] = points
        key = self._insert_codes(connection, generation, number, marks)
        connection.execute("INSERT INTO vectors VALUES (?, ?)", (key, whole.data))

    def _fill(
        self,
        connection: sqlite3.Connection,
        generation: int,
        number: int,
        start: int,
        points: np.ndarray,
        codes: np.ndarray,
    ) -> None:
        """Points in the room that a block has left."""
        self.set_codes(connection, generation, number * self.rows + start + np.arange(len(codes)), codes)
        with connection.blobopen("vectors", "points", self._key(connection, number)) as blob:
            blob.seek(start * self.width)
            blob.write(points.data.cast("B"))

    def set_codes(self, connection: sqlite3.Connection, generation: int, rows: np.ndarray, codes: np.ndarray) -> None:
        """Give rows (n,) other codes (n,)."""
        order = np.argsort(rows, kind="stable")
        rows, codes = rows[order], codes[order]
        numbers, begins = np.unique(rows // self.rows, return_index=True)
        ends = np.append(begins[1:], len(rows))[: len(begins)]
        for number, begin, end in zip(numbers.tolist(), begins, ends, strict=True):
            marks = self.codes(connection, number).copy()
            marks[rows[begin:end] - number * self.rows] = codes[begin:end]
            connection.execute(
                "UPDATE blocks SET codes = ?, generation = ? WHERE version = ? AND number = ?",
                (marks.data, generation, self.version, number),
            )

    def codes(self, connection: sqlite3.Connection, number: int) -> np.ndarray:
        """Codes (rows,) of a block."""
        found = connection.execute(
            "SELECT codes FROM blocks WHERE version = ? AND number = ?", (self.version, number)
        ).fetchone()
        return self._as_codes(number, found and found[0])

    def newer(self, connection: sqlite3.Connection, generation: int) -> Iterator[tuple[int, np.ndarray]]:
        """Numbers and codes (rows,) of the blocks that changed after a generation."""
        found = connection.execute(
            "SELECT number, codes FROM blocks WHERE version = ? AND generation > ? ORDER BY number",
            (self.version, generation),
        )
        for number, codes in found:
            yield number, self._as_codes(number, codes)

    def points(self, connection: sqlite3.Connection, first: int, end: int) -> Iterator[np.ndarray]:
        """The stored points of the rows from `first` up to `end`, (n, columns) of a block at a time."""
        while first < end:
            number, start = divmod(first, self.rows)
            n = min(end - first, self.rows - start)
            with connection.blobopen("vectors", "points", self._key(connection, number), readonly=True) as blob:
                if len(blob) != self.rows * self.width:
                    raise sqlite3.DatabaseError(f"block {number} of the vectors has the wrong size")
                blob.seek(start * self.width)
                read = blob.read(n * self.width)
            yield np.frombuffer(read, self.dtype).reshape(n, self.columns)
            first += n

    def scatter(self, connection: sqlite3.Connection, rows: np.ndarray, points: np.ndarray) -> None:
        """Write stored points (n, columns) to any rows (n,); blocks that are not there yet are made, without items."""
        order = np.argsort(rows, kind="stable")
        rows, points = rows[order], np.ascontiguousarray(points[order])
        begins = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(rows)], strict=True):
            while begin < end:
                number, start = divmod(int(rows[begin]), self.rows)
                part = slice(begin, min(end, begin + self.rows - start))
                self.ensure(connection, number)
                with connection.blobopen("vectors", "points", self._key(connection, number)) as blob:
                    blob.seek(start * self.width)
                    blob.write(points[part].data.cast("B"))
                begin = part.stop

    def ensure(self, connection: sqlite3.Connection, number: int) -> None:
        """Make a block of zeros if it is not there."""
        known = "SELECT 1 FROM blocks WHERE version = ? AND number = ?"
        if connection.execute(known, (self.version, number)).fetchone() is None:
            key = self._insert_codes(connection, 0, number, np.full(self.rows, ABSENT, "<i4"))
            connection.execute("INSERT INTO vectors VALUES (?, zeroblob(?))", (key, self.rows * self.width))

    def _insert_codes(self, connection: sqlite3.Connection, generation: int, number: int, codes: np.ndarray) -> int:
        """The key of a new block with these codes (rows,)."""
        made = connection.execute(
            "INSERT INTO blocks (version, number, generation, codes) VALUES (?, ?, ?, ?)",
            (self.version, number, generation, codes.data),
        )
        assert made.lastrowid is not None
        return made.lastrowid

    def _key(self, connection: sqlite3.Connection, number: int) -> int:
        """Where the vectors of a block are."""
        found = connection.execute(
            "SELECT key FROM blocks WHERE version = ? AND number = ?", (self.version, number)
        ).fetchone()
        if found is None:
            raise sqlite3.DatabaseError(f"block {number} of the vectors is missing")
        return int(found[0])

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
        return _loaded(connection, state, directory)
    if mirror.state.generation == state.generation:
        return mirror
    # Classes first: no code may be seen before its name.
    classes = mirror.classes + tuple(rows_of_items.classes_from(connection, len(mirror.classes)))
    _follow(connection, VectorBlocks.of(mirror.settings, state.version), mirror, state)
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


def _loaded(connection: sqlite3.Connection, state: GalleryState, directory: Path) -> Mirror:
    """A mirror read from the first row on."""
    settings = read_settings(connection)
    blocks = VectorBlocks.of(settings, state.version)
    index = VectorIndex(space_of(settings, directory), settings.dimension, settings.dtype)
    index.reserve(state.rows)
    codes = dict(blocks.newer(connection, -1))
    for number, points in enumerate(blocks.points(connection, 0, state.rows)):
        if number not in codes:
            raise sqlite3.DatabaseError(f"the codes of block {number} are missing")
        index.append(points, codes[number][: len(points)])
    found = connection.execute("SELECT slots FROM numbering").fetchone()
    kept = np.frombuffer(found[0] if found else b"", "<i8")
    return Mirror(state, settings, index, kept, tuple(rows_of_items.classes_from(connection, 0)))


def _follow(connection: sqlite3.Connection, blocks: VectorBlocks, mirror: Mirror, state: GalleryState) -> None:
    """Bring the index of a mirror to a newer state, so that searches see all of the change at once."""
    index = mirror.index
    index.reserve(state.rows - index.count)
    for points in blocks.points(connection, index.count, state.rows):
        index.append(points, np.full(len(points), ABSENT, np.int32))
    changed = list(blocks.newer(connection, mirror.state.generation))
    if not changed:
        return
    rows = np.concatenate([number * blocks.rows + np.arange(blocks.rows) for number, _ in changed])
    codes = np.concatenate([codes for _, codes in changed])
    there = rows < state.rows
    index.set_codes(rows[there], codes[there])


INDEX_KINDS = ("auto", "exact", "hnsw")
"""How a gallery may be searched; "auto" is by a graph where that pays and can be had, exactly else."""

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
