"""Vectors and codes in blocks of about a megabyte: written in place, read in one sweep.

One row of SQLite for each vector would take several times as long to read as the bytes themselves.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nearkin.gallery.rounding import SCALE_BYTES, halves, packed
from nearkin.gallery.store import ABSENT
from nearkin.gallery.values import Settings

_BYTES = 2**20
_MOST_ROWS = 2**14  # codes of a block are rewritten whole when one of them changes


@dataclass(frozen=True)
class Blocks:
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
    def of(cls, settings: Settings, version: int) -> Blocks:
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


def delete(connection: sqlite3.Connection, but: int) -> None:
    """Delete the blocks of all versions but one."""
    others = [key for (key,) in connection.execute("SELECT key FROM blocks WHERE version != ?", (but,))]
    for table in ("vectors", "blocks") if others else ():
        connection.executemany(f"DELETE FROM {table} WHERE key = ?", ((key,) for key in others))
