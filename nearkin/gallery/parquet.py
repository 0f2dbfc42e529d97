"""Galleries as Parquet files: written for moving and keeping, read from ours and from tables of vectors you bring."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError
from nearkin.gallery.checks import check_ids, check_label, check_metadata, vector_rows
from nearkin.gallery.store import GalleryStore, Record
from nearkin.gallery.values import Item, Settings
from nearkin.models.bulk import parts
from nearkin.storage import replacing

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

FORMAT = 1
_SETTINGS_KEY = b"nearkin.gallery"
_FORMAT_KEY = b"nearkin.gallery.format"
_ROWS = 1024
_GROUP_BYTES = 64 << 20
_VECTOR_NAMES = ("vector", "embedding")
_SOURCE_NAMES = ("source", "path")
_OWN = ("id", "label", "metadata", "added", "thumbnail", "original", *_VECTOR_NAMES, *_SOURCE_NAMES)
_JPEG = b"\xff\xd8\xff"


def export_items(store: GalleryStore, path: str | Path) -> int:
    """Write all items of a store into one file, whole or not at all; how many there were.

    Columns: id, label, metadata (a JSON object as text), source, added, thumbnail, original (bytes) and vector
    (d float32 values). What the gallery is tied to stands in the file's own metadata.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [(name, pa.string()) for name in ("id", "label", "metadata", "source", "added")]
    blobs = [("thumbnail", pa.binary()), ("original", pa.binary())]
    vector = ("vector", pa.list_(pa.float32(), store.settings.dimension))
    told = {_SETTINGS_KEY: json.dumps(store.settings.to_dict()).encode(), _FORMAT_KEY: str(FORMAT).encode()}
    schema = pa.schema([*texts, *blobs, vector]).with_metadata(told)
    count = 0
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for rows, vectors in _groups(store):
            writer.write_batch(_batch(rows, vectors, schema), row_group_size=_ROWS)
            count += len(rows)
    return count


def read_items(path: str | Path) -> tuple[Settings | None, Iterator[tuple[list[Record], np.ndarray]]]:
    """What a file's vectors are, if it says so, and its items with vectors float32 (n, d), some at a time."""
    table = open_table(path)
    return table.settings, table.read()


def open_table(path: str | Path, id_column: str | None = None) -> ParquetTable:
    """Look into a file; nothing of its rows is read yet.

    A file need not be ours: it must have a column vector or embedding, as `nearkin embed` writes it; id, label, source
    or path, metadata (JSON), added, thumbnail and original are taken as in ours if they are there, and every other
    column of texts, numbers, truth values or times becomes metadata. Without ids, items get ones that stay the same if
    the file is read again.

    Args:
        path: the file.
        id_column: which column names the items, instead of id; a text that cannot be an id, such as a path, stands for
            its digest.

    Raises:
        DataError: it is not such a file, now or while reading.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a readable Parquet file ({_first_line(error)}).") from error
    names, told = schema.names, schema.metadata or {}
    if len(set(names)) < len(names):
        raise DataError(f"{path} has two columns of one name: rename one.")
    vector = next((name for name in _VECTOR_NAMES if name in names), None)
    if vector is None:
        raise DataError(f"{path} has no column 'vector' or 'embedding'; it has {', '.join(names) or 'none'}.")
    kind = schema.field(vector).type
    fixed = pa.types.is_fixed_size_list(kind)
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or fixed
    if not lists or not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        raise DataError(f"The column '{vector}' of {path} holds {kind}: it must hold lists of numbers.")
    scalars = {name for name in names if _is_scalar(schema.field(name).type)}
    if id_column is not None and id_column not in scalars:
        raise DataError(f"{path} has no column '{id_column}' of texts or whole numbers to name the items by.")
    settings, width = _settings(told, path), kind.list_size if fixed else None
    return ParquetTable(
        path=Path(path),
        settings=settings,
        rows=rows,
        model=_model(told, path),
        dimension=width if settings is None else settings.dimension,
        vector=vector,
        source=next((name for name in _SOURCE_NAMES if name in names), None),
        own=frozenset({"id", "label", "metadata", "added", "thumbnail", "original"} & set(names)),
        facts=tuple(n for n in names if n in scalars and n not in _OWN and not n.startswith("__index_level_")),
        id_column=None if id_column == "id" else id_column,
    )


_Row = tuple[Item, bytes | None, bytes | None]


def _groups(store: GalleryStore) -> Iterator[tuple[list[_Row], np.ndarray]]:
    """Items with thumbnail and original, and their vectors: few enough at a time to be held in memory."""
    for items, vectors in store.batches(_ROWS):
        rows: list[_Row] = []
        start = size = 0
        for index, item in enumerate(items):
            small, original = store.thumbnail(item.id), store.original(item.id)
            rows.append((item, small, original))
            size += len(small or b"") + len(original or b"")
            if size > _GROUP_BYTES:
                yield rows, vectors[start : index + 1]
                rows, start, size = [], index + 1, 0
        if rows:
            yield rows, vectors[start:]


def _batch(rows: list[_Row], vectors: np.ndarray, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    plain = [
        {
            **{name: getattr(item, name) for name in ("id", "label", "source", "added")},
            "metadata": json.dumps(item.metadata, ensure_ascii=False),
            "thumbnail": small,
            "original": original,
        }
        for item, small, original in rows
    ]
    columns = pa.RecordBatch.from_pylist(plain, schema=pa.schema(list(schema)[:-1])).columns
    flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1))
    wide = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    return pa.RecordBatch.from_arrays([*columns, wide], schema=schema)


def _settings(told: dict[bytes, bytes], path: str | Path) -> Settings | None:
    if _SETTINGS_KEY not in told:
        return None
    try:
        version = int(told.get(_FORMAT_KEY, b"0"))
        settings = Settings.from_dict(json.loads(told[_SETTINGS_KEY]))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} has damaged gallery settings: export it again.") from error
    if version > FORMAT:
        raise DataError(f"{path} is of a newer format ({version}) than this nearkin reads ({FORMAT}): update nearkin.")
    return settings


def _model(told: dict[bytes, bytes], path: str | Path) -> str | None:
    """The fingerprint of the model that `nearkin embed --shards` made the vectors with; None where no one says."""
    if parts.KEY not in told:
        return None
    try:
        return parts.Facts.decoded(told[parts.KEY]).model
    except parts.DamagedError as error:
        raise DataError(f"{path} is a shard of nearkin embed, but {error}: embed it again.") from error


@dataclass(frozen=True)
class ParquetTable:
    """A file of items that was looked into.

    Attributes:
        path: where it is.
        settings: what its vectors are, if it says so.
        rows: how many it has.
        model: the fingerprint of the model that made its vectors, if it is a shard of embeddings.
        dimension: size of its vectors, if that is known without reading them.
        vector: the column of vectors.
        source: the column that says where an item was read from.
        own: its columns that mean what they mean in files of ours.
        facts: its columns that become metadata.
        id_column: the column that was chosen to name the items.
    """

    path: Path
    settings: Settings | None
    rows: int
    model: str | None
    dimension: int | None
    vector: str
    source: str | None
    own: frozenset[str]
    facts: tuple[str, ...]
    id_column: str | None

    @property
    def named(self) -> bool:
        """Whether a column names the items."""
        return self.id_column is not None or "id" in self.own

    def read(self, first: int = 0) -> Iterator[tuple[list[Record], np.ndarray]]:
        """Items from a row on with vectors float32 (n, d), some at a time.

        Raises:
            DataError: the file is damaged, or a row cannot be an item.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        dimension, done = self.dimension, 0
        named = [name for name in (self.source, self.id_column) if name is not None]
        columns = list(dict.fromkeys([self.vector, *named, *self.own, *self.facts]))
        try:
            with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                groups, done = _groups_from(file, first)
                for whole in file.iter_batches(batch_size=_ROWS, columns=columns, row_groups=groups):
                    batch = whole.slice(max(0, first - done))
                    start, done = done + whole.num_rows - batch.num_rows, done + whole.num_rows
                    if batch.num_rows:
                        vectors = _vectors(batch.column(self.vector), dimension, start, self.path)
                        dimension = vectors.shape[1]
                        yield self._records(batch, vectors, start), vectors
        except (OSError, pa.ArrowException) as error:
            told = _first_line(error)
            raise DataError(f"{self.path} is damaged after row {done} ({told}): create it again.") from error

    def _records(self, batch: pa.RecordBatch, vectors: np.ndarray, first: int) -> list[Record]:
        """The records of one batch."""
        values = {name: batch.column(name).to_pylist() for name in batch.schema.names if name != self.vector}
        found = []
        for row in range(batch.num_rows):
            own = {name: values[name][row] for name in self.own}
            source = None if self.source is None else values[self.source][row]
            source = None if source is None else str(source)
            label, added = own.get("label"), own.get("added")
            try:
                if self.id_column is not None:
                    id = _named_id(values[self.id_column][row])
                else:
                    # Without ids they depend on nothing but the file: reading it again replaces items and doubles none.
                    told = f"{first + row}\n{source or ''}\n".encode("utf-8", "replace")
                    id = _id(own["id"]) if "id" in own else _digest(told + vectors[row].tobytes())
                facts = {name: _plain(values[name][row]) for name in self.facts}
                record = Record(
                    id=id,
                    label=None if label is None or label != label else check_label(label),
                    metadata=check_metadata({**_told(own.get("metadata")), **facts}),
                    source=source,
                    added="" if added is None else str(_plain(added)),
                    thumbnail=_blob(own.get("thumbnail"), "thumbnail", _JPEG),
                    original=_blob(own.get("original"), "original", b""),
                )
            except DataError as error:
                raise DataError(f"{self.path}, row {first + row}: {error}") from error
            found.append(record)
        return found


def _groups_from(file: pq.ParquetFile, first: int) -> tuple[list[int], int]:
    """The row groups that hold the rows from one on, and the first row of them."""
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    ends = np.cumsum(sizes)
    skipped = int(np.searchsorted(ends, first, side="right"))
    return list(range(skipped, len(sizes))), int(ends[skipped - 1]) if skipped else 0


def _is_scalar(kind: pa.DataType) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):
        kind = kind.value_type
    tests = (types.is_string, types.is_large_string, types.is_boolean, types.is_integer, types.is_floating)
    return any(test(kind) for test in (*tests, types.is_temporal, types.is_decimal)) and not types.is_duration(kind)


def _vectors(column: pa.Array, dimension: int | None, first: int, path: str | Path) -> np.ndarray:
    """The vectors of one batch, float32 (n, d)."""
    if column.null_count:
        row = first + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(f"{path} has no vector in row {row}: remove the row.")
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    wanted = int(lengths[0]) if dimension is None else dimension
    if not wanted or (lengths != wanted).any():
        row = int(np.argmax(lengths != wanted))
        raise DataError(
            f"The vector in row {first + row} of {path} has {lengths[row]} values and others {wanted}: "
            "all must have one length, not 0."
        )
    values = column.flatten()
    if values.null_count:
        row = first + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))) // wanted
        raise DataError(f"The vector in row {row} of {path} has a missing value: remove the row.")
    try:
        return vector_rows(values.to_numpy(zero_copy_only=False).reshape(-1, wanted), wanted)
    except DataError as error:
        raise DataError(f"{path}, rows from {first}: {error}") from error


def _id(value: Any) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return check_ids([str(value) if whole else value], 1)[0]


def _named_id(value: Any) -> str:
    """An id from what a column says: itself if it can be one, a digest of it else, as of a path."""
    if value is None or value == "":
        raise DataError("The column that names the items is empty here: fill it, or name another one.")
    try:
        return _id(value)
    except DataError:
        return _digest(str(value).encode("utf-8", "replace"))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def _told(text: Any) -> dict[str, Any]:
    """Facts from a JSON object."""
    facts: Any = None
    with suppress(ValueError, TypeError, RecursionError):
        facts = {} if text is None else json.loads(text)
    if not isinstance(facts, dict):
        raise DataError("The column 'metadata' must hold JSON objects as text.")
    return facts


def _plain(value: Any) -> Any:
    """A value of a table as one of metadata: times become ISO texts, NaN is missing."""
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    return None if isinstance(value, float) and value != value else value


def _blob(value: Any, name: str, start: bytes) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, bytes) or not value.startswith(start):
        raise DataError(f"The column '{name}' must hold {'JPEG files' if start else 'bytes'}.")
    return value


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
