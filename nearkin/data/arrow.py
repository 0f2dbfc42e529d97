"""Rows of Arrow and Parquet files, and a store that reads images and recordings embedded in them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nearkin.data.stores import UnreadableError, check_inside
from nearkin.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_CACHE_BYTES = 1 << 30
_EDGE_BYTES = 1 << 16


def row_path(file: str, row: int, suffix: str = "") -> str:
    """How a manifest names one row of a shard: "data/train-00000-of-00001.parquet/000042.jpg"."""
    return f"{file}/{row:06d}{suffix}"


def read_schema(file: Path) -> pa.Schema:
    """The schema of an `.arrow` or `.parquet` file."""
    import pyarrow.parquet as pq

    return _reading(file, lambda: pq.read_schema(file) if _is_parquet(file) else _map_arrow(file).schema)


def open_table(file: Path, columns: list[str]) -> pa.Table:
    """Some columns of an `.arrow` (mapped, not copied) or `.parquet` file."""
    import pyarrow.parquet as pq

    def read() -> pa.Table:
        if _is_parquet(file):
            return pq.ParquetFile(file, memory_map=True).read(columns, use_threads=False)
        return _map_arrow(file).select(columns)

    return _reading(file, read)


def embedded_names(file: Path, column: str) -> list[str]:
    """The file name that goes with each embedded file of a shard, "" where there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = read_schema(file).field(column).type
    if not pa.types.is_struct(kind) or kind.get_field_index("path") < 0:
        return [""] * len(open_table(file, [column]))
    # Of a Parquet file, reading the names alone leaves the images on disk.
    table = open_table(file, [f"{column}.path" if _is_parquet(file) else column])
    return [name or "" for name in pc.struct_field(table[column], "path").to_pylist()]


class ArrowStore:
    """Encoded files held in a column of Arrow or Parquet shards.

    Arrow shards are memory-mapped. Of Parquet shards the row groups last read are kept, up to 1 GiB a process,
    so that shuffled reading of a small data set decompresses it once.

    Args:
        root: the folder that the shards' names are relative to.
        column: the column of binary values, or of structs with a field `bytes`.
    """

    def __init__(self, root: str | Path, column: str) -> None:
        self.root = Path(root)
        self.column = column
        self._forget()

    def __repr__(self) -> str:
        return f"ArrowStore({str(self.root)!r}, {self.column!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "column": self.column}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        self._tables: dict[str, pa.ChunkedArray] = {}
        self._parquet: dict[str, tuple[pa.FileMetaData, np.ndarray]] = {}
        self._groups: dict[tuple[str, int], pa.ChunkedArray] = {}
        self._edges: dict[str, str] = {}

    def read(self, path: str) -> bytes:
        """The embedded file of one row."""
        file, row = self._split(path)
        column, offset = self._parquet_rows(file, row) if _is_parquet(Path(file)) else (self._arrow_rows(file), row)
        if offset >= len(column):
            raise UnreadableError(path, f"is beyond the last row of {self.root / file}")
        value = column[offset].as_py()
        if isinstance(value, dict):
            value = value.get("bytes")
        if value is None:
            raise UnreadableError(path, "has no embedded file (save the data set with its files embedded)")
        return bytes(value)

    def signature(self, path: str) -> str:
        """Size and checksum of both ends of the shard, and the row: the same for a copy of the shard."""
        file, row = self._split(path)
        edges = self._edges.get(file)
        if edges is None:
            edges = self._edges[file] = _reading(self.root / file, lambda: _edge_signature(self.root / file))
        return f"{edges}-{row:x}"

    def _split(self, path: str) -> tuple[str, int]:
        check_inside(path, self.root)
        file, _, name = path.rpartition("/")
        row = name.partition(".")[0]
        if not row.isdecimal():
            raise UnreadableError(path, "does not name a row of a shard")
        return file, int(row)

    def _arrow_rows(self, file: str) -> pa.ChunkedArray:
        rows = self._tables.get(file)
        if rows is None:
            rows = self._tables[file] = open_table(self.root / file, [self.column])[self.column]
        return rows

    def _parquet_rows(self, file: str, row: int) -> tuple[pa.ChunkedArray, int]:
        """The row group that holds a row, and the row's place in it."""
        import pyarrow.parquet as pq

        place = self.root / file
        if file not in self._parquet:
            metadata = _reading(place, lambda: pq.read_metadata(place))
            sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
            self._parquet[file] = metadata, np.cumsum([0, *sizes])
        metadata, starts = self._parquet[file]
        group = min(int(np.searchsorted(starts, row, side="right")) - 1, metadata.num_row_groups - 1)
        rows = self._groups.get((file, group))
        if rows is None:
            # A reader of its own for each group: one reader must not serve several threads.
            rows = _reading(
                place,
                lambda: (
                    pq.ParquetFile(place, metadata=metadata, memory_map=True)
                    .read_row_group(group, [self.column], use_threads=False)
                    .column(self.column)
                ),
            )
            self._keep((file, group), rows)
        return rows, row - int(starts[group])

    def _keep(self, key: tuple[str, int], rows: pa.ChunkedArray) -> None:
        # Without a lock, which a fork could copy while held: a race only drops or reads a group once too often.
        self._groups[key] = rows
        kept = list(self._groups.items())
        total = sum(group.nbytes for _, group in kept)
        for oldest, group in kept[:-1]:
            if total <= _CACHE_BYTES:
                break
            self._groups.pop(oldest, None)
            total -= group.nbytes


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() == ".parquet"


def _map_arrow(file: Path) -> pa.Table:
    """A file in Arrow's stream format, as `save_to_disk` writes it, or in its file format."""
    import pyarrow as pa

    mapped = pa.memory_map(str(file))
    if mapped.read(6) == b"ARROW1":
        return pa.ipc.open_file(mapped).read_all()
    mapped.seek(0)
    return pa.ipc.open_stream(mapped).read_all()


def _edge_signature(file: Path) -> str:
    size = file.stat().st_size
    with file.open("rb") as handle:
        checksum = zlib.crc32(handle.read(_EDGE_BYTES))
        handle.seek(max(0, size - _EDGE_BYTES))
        return f"{zlib.crc32(handle.read(_EDGE_BYTES), checksum):08x}-{size:x}"


def _reading(file: Path, read: Callable[[], T]) -> T:
    import pyarrow as pa

    try:
        return read()
    except (pa.ArrowException, OSError, KeyError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"{file} cannot be read ({reason}): save or download it again.") from error
