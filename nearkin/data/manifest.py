"""Manifests: the one table every data set becomes, `path,label` and whatever else is known of each item."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.data.stores import file_name, redacted
from nearkin.errors import DataError, first_line, suggestion
from nearkin.storage import replacing

if TYPE_CHECKING:
    import pyarrow as pa


REQUIRED = ("path", "label")

SPLIT_NAMES = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "dev"), "val"
)
"""What data sets call the parts of their split."""


@dataclass(frozen=True, eq=False)
class Manifest:
    """A table of strings: `path` and `label` always, `split`, `domain`, `group`, ... when known.

    Args:
        columns: name to a column; all of one length, kept as object arrays of str.
    """

    columns: dict[str, np.ndarray]

    def __post_init__(self) -> None:
        for name in REQUIRED:
            if name not in self.columns:
                raise DataError(f"A manifest needs the column '{name}'; this one has {_listed(self.columns)}.")
        columns = {name: np.asarray(values, dtype=object) for name, values in self.columns.items()}
        sizes = {name: len(values) for name, values in columns.items()}
        if len(set(sizes.values())) > 1:
            raise DataError(f"The columns of a manifest must have one length, not {sizes}.")
        object.__setattr__(self, "columns", columns)

    @classmethod
    def from_rows(cls, paths: Sequence[Any], labels: Sequence[Any], **more: Sequence[Any]) -> Manifest:
        """Build a manifest from equally long sequences; every value becomes a str."""
        given = {"path": paths, "label": labels, **more}
        return cls({name: np.array([str(value) for value in values], dtype=object) for name, values in given.items()})

    def __len__(self) -> int:
        return len(self.columns["path"])

    @property
    def paths(self) -> np.ndarray:
        """Where each item is, (n,) str."""
        return self.columns["path"]

    @property
    def labels(self) -> np.ndarray:
        """The class of each item, (n,) str."""
        return self.columns["label"]

    @cached_property
    def _coded(self) -> tuple[np.ndarray, np.ndarray]:
        return np.unique(self.labels, return_inverse=True)

    @property
    def classes(self) -> list[str]:
        """The class names, sorted, each once."""
        return list(self._coded[0])

    def class_ids(self) -> np.ndarray:
        """Each item's class as an index into `classes`, (n,) int64."""
        return self._coded[1].reshape(-1).astype(np.int64)

    def has(self, name: str) -> bool:
        """Whether there is a column called `name`."""
        return name in self.columns

    def column(self, name: str) -> np.ndarray:
        """The column called `name`, (n,) str."""
        try:
            return self.columns[name]
        except KeyError:
            raise DataError(f"The data has no column '{name}'.{suggestion(name, self.columns)}") from None

    def select(self, rows: np.ndarray | Sequence[int] | Sequence[bool]) -> Manifest:
        """The rows given by indices, in that order, or by a boolean mask of the manifest's length."""
        chosen = np.asarray(rows)
        if chosen.dtype == bool and chosen.shape != (len(self),):
            raise DataError(f"A mask over {len(self)} rows must have that shape, not {chosen.shape}.")
        if chosen.dtype != bool:
            chosen = chosen.astype(np.int64)
        return Manifest({name: values[chosen] for name, values in self.columns.items()})

    def where(self, **equals: str) -> Manifest:
        """The rows whose columns equal the given values: `where(split="train")`."""
        return self.select(self.mask(**equals))

    def mask(self, **equals: str) -> np.ndarray:
        """Which rows have the given values, (n,) bool."""
        keep = np.ones(len(self), dtype=bool)
        for name, value in equals.items():
            keep &= self.column(name) == value
        return keep

    def with_column(self, name: str, values: Sequence[Any] | np.ndarray) -> Manifest:
        """A copy with one column added or replaced."""
        return Manifest({**self.columns, name: np.array([str(value) for value in values], dtype=object)})


def read_manifest(path: str | Path) -> Manifest:
    """Read a `.csv` (UTF-8, comma separated, with a header) or `.parquet` manifest, every column as str."""
    source = Path(path)
    try:
        raw = source.read_bytes()
    except OSError as error:
        raise DataError(f"The manifest {source} cannot be read: {error.strerror or error}.") from error
    return parse_manifest(raw, str(source))


def parse_manifest(raw: bytes, name: str) -> Manifest:
    """Read a manifest held in memory; `name` tells the format by its suffix and is used in messages."""
    suffix = Path(file_name(name)).suffix.lower()
    if suffix == ".csv":
        table = _parse_csv(raw, name)
    elif suffix == ".parquet":
        table = _parse_parquet(raw, name)
    else:
        raise DataError(f"A manifest is a .csv or .parquet file, not {name}.")
    return _checked(table, name)


def write_manifest(manifest: Manifest, path: str | Path) -> None:
    """Write a manifest as `.csv` or `.parquet`, by the suffix of `path`, whole or not at all."""
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise DataError(f"A manifest is written as .csv or .parquet, not as {target.name}.")
    raw = manifest_bytes(manifest) if suffix == ".csv" else _parquet_bytes(manifest)
    with replacing(target) as temporary:
        temporary.write_bytes(raw)


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest as a UTF-8 CSV file."""
    rows = [tuple(manifest.columns), *zip(*manifest.columns.values(), strict=True)]
    # Python before 3.13 leaves a lone carriage return unquoted, which a reader takes for the end of the row.
    returns = any("\r" in value for row in rows for value in row)
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL).writerows(rows)
    try:
        return text.getvalue().encode("utf-8")
    except UnicodeEncodeError as error:
        raise not_unicode(error) from error


def _parquet_bytes(manifest: Manifest) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    try:
        columns = {name: pa.array(values, pa.string()) for name, values in manifest.columns.items()}
    except UnicodeEncodeError as error:
        raise not_unicode(error) from error
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def not_unicode(error: UnicodeEncodeError) -> DataError:
    """What to say of a text that no file of text can hold."""
    around = error.object[max(0, error.start - 20) : error.end + 20]
    return DataError(f"A path or label is not valid Unicode (at {around!r}): rename that file or class.")


def _parse_csv(raw: bytes, name: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"The manifest {name} is not UTF-8 text (line {line}): save it as UTF-8.") from error
    header = next(csv.reader(io.StringIO(text, newline="")), [])
    _check_columns(header, name)
    try:
        return pacsv.read_csv(
            pa.py_buffer(raw),
            read_options=pacsv.ReadOptions(block_size=min(max(len(raw), 1 << 20), 2**31 - 1), use_threads=False),
            parse_options=pacsv.ParseOptions(newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(column_types={column: pa.string() for column in header}),
        )
    except pa.ArrowInvalid as error:
        raise DataError(f"The manifest {name} is not a well-formed CSV file: {first_line(error)}.") from error


def _parse_parquet(raw: bytes, name: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(raw), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"The manifest {name} is not a readable Parquet file: {first_line(error)}.") from error
    _check_columns(table.column_names, name)
    columns = {}
    for column in table.column_names:
        try:
            columns[column] = table[column].cast(pa.string())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(
                f"The column '{column}' of the manifest {name} holds {table[column].type} values, not text: remove it "
                f"or write it as text."
            ) from error
    return pa.table(columns)


def _check_columns(header: Sequence[str], name: str) -> None:
    for column in (*REQUIRED, *header):
        if column not in header:
            raise DataError(f"The manifest {name} has no column '{column}'; it has {_listed(header)}.")
        if header.count(column) > 1:
            raise DataError(f"The manifest {name} has the column '{column}' twice.")


def _checked(table: pa.Table, name: str) -> Manifest:
    """Turn a table of strings into a manifest, refusing rows without a path or label and repeated paths."""
    columns = {
        column: table[column].fill_null("").combine_chunks().to_numpy(zero_copy_only=False).astype(object)
        for column in table.column_names
    }
    if not table.num_rows:
        raise DataError(f"The manifest {name} has no rows.")
    for column in REQUIRED:
        row = next((row for row, value in enumerate(columns[column], start=2) if not value or value.isspace()), None)
        if row is not None:
            raise DataError(
                f"The manifest {name} has no {column} in row {row} (the header is row 1): fill it in or remove the row."
            )
    seen: dict[str, int] = {}
    for row, value in enumerate(columns["path"], start=2):
        if seen.setdefault(value, row) != row:
            raise DataError(
                f"The manifest {name} names {redacted(value)} twice, in rows {seen[value]} and {row} "
                "(the header is row 1)."
            )
    return Manifest(columns)


def _listed(names: Sequence[str] | dict[str, np.ndarray]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
