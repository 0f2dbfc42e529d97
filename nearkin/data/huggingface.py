"""Hugging Face data sets on disk, read with pyarrow alone: `save_to_disk` folders and the hub's Parquet shards."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from nearkin.data.dataset import Dataset, MediaKind
from nearkin.data.decode import AUDIO_SUFFIXES, IMAGE_SUFFIXES
from nearkin.data.manifest import SPLIT_NAMES, Manifest
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
        self._tables: dict[str, pa.ChunkedArray] = {}
        self._parquet: dict[str, tuple[pa.FileMetaData, np.ndarray]] = {}
        self._groups: dict[tuple[str, int], pa.ChunkedArray] = {}
        self._edges: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"ArrowStore({str(self.root)!r}, {self.column!r})"

    def __reduce__(self) -> tuple[type[ArrowStore], tuple[Path, str]]:
        return type(self), (self.root, self.column)  # what is mapped and kept stays in this process

    def read(self, path: str) -> bytes:
        """The embedded file of one row."""
        file, row = self._split(path)
        if _is_parquet(Path(file)):
            column, offset = self._parquet_rows(file, row)
        else:
            if file not in self._tables:
                self._tables[file] = open_table(self.root / file, [self.column])[self.column]
            column, offset = self._tables[file], row
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
        if file not in self._edges:
            self._edges[file] = _reading(self.root / file, lambda: _edge_signature(self.root / file))
        return f"{self._edges[file]}-{row:x}"

    def _split(self, path: str) -> tuple[str, int]:
        check_inside(path, self.root)
        file, _, name = path.rpartition("/")
        row = name.partition(".")[0]
        if not row.isdecimal():
            raise UnreadableError(path, "does not name a row of a shard")
        return file, int(row)

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


MARKERS = ("dataset_dict.json", "dataset_info.json", "state.json")
_NUMBER = re.compile(r"-\d+-of-\d+(-[0-9a-f]{6,})?$")
_HUB_NAME = re.compile(r".*-\d+-of-\d+(-[0-9a-f]+)?|\d{4,}")
_LABEL_NAMES = ("label", "labels", "fine_label", "class")
_MEDIA: dict[str, MediaKind] = {"Image": "image", "Audio": "audio"}


class Shard(NamedTuple):
    """One Arrow or Parquet file and the split its rows belong to, "" if it says none."""

    file: Path
    split: str


def is_shard(path: Path) -> bool:
    """Whether a Parquet file embeds its images or recordings instead of naming files."""
    schema = read_schema(path)
    return _media_column(schema, _features(schema)) is not None


def find_shards(folder: Path) -> list[Path]:
    """The Parquet shards of a hub layout: in the folder, in `data/`, or in one configuration's folder."""
    direct = sorted(folder.glob("*.parquet")) or sorted((folder / "data").glob("*.parquet"))
    if direct:
        return [path for path in direct if is_shard(path)]
    nested = [
        path
        for pattern in ("*/*.parquet", "*/*/*.parquet")
        for path in sorted(folder.glob(pattern))
        if _HUB_NAME.fullmatch(path.stem) and is_shard(path)
    ]
    splits = {path.parent for path in nested if path.stem.isdigit()}
    configurations = sorted({path.parent.parent if path.parent in splits else path.parent for path in nested})
    if len(configurations) > 1:
        names = ", ".join(str(place.relative_to(folder)) for place in configurations)
        raise DataError(f"{folder} holds several configurations ({names}): pass the folder of one.")
    return nested


def open_shards(folder: Path, files: list[Path]) -> Dataset:
    """Open the Parquet shards of a hub layout; split names come from file names, or folders of numbered files."""
    return _open(folder, [Shard(file, _hub_split(file)) for file in files], {})


def open_saved(folder: Path) -> Dataset:
    """Open a folder written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`."""
    if not (folder / "dataset_dict.json").is_file():
        return _open(folder, list(_saved_shards(folder, "")), _saved_features(folder))
    shards: list[Shard] = []
    features: dict[str, Any] = {}
    for split in _read_json(folder / "dataset_dict.json").get("splits", []):
        check_inside(str(split), folder)
        shards.extend(_saved_shards(folder / split, str(split)))
        features = features or _saved_features(folder / split)
    return _open(folder, shards, features)


def _saved_shards(folder: Path, split: str) -> Iterator[Shard]:
    if (folder / "state.json").is_file():
        state = _read_json(folder / "state.json")
        split = split or str(state.get("_split") or "")
        for entry in state.get("_data_files", []):
            check_inside(entry["filename"], folder)
            yield Shard(folder / entry["filename"], SPLIT_NAMES.get(split, split))
        return
    for file in sorted(folder.glob("*.arrow")):  # the library's own cache names files data-set-split.arrow
        if not file.name.startswith("cache-"):
            stem = _NUMBER.sub("", file.stem).rpartition("-")[2]
            yield Shard(file, SPLIT_NAMES.get(split or stem, split))


def _hub_split(file: Path) -> str:
    name = file.parent.name.removeprefix("partial-") if file.stem.isdigit() else _NUMBER.sub("", file.stem)
    return SPLIT_NAMES.get(name, "" if name == file.stem else name)


def _open(folder: Path, shards: list[Shard], features: dict[str, Any]) -> Dataset:
    if not shards:
        raise DataError(f"{folder} looks like a Hugging Face data set but holds no .arrow or .parquet files.")
    schema = read_schema(shards[0].file)
    features = features or _features(schema)
    media = _media_column(schema, features)
    if media is None:
        raise DataError(f"{folder} has no column of images or audio among {', '.join(schema.names)}.")
    column, kind = media
    label = _label_column(schema, features, folder)
    others = [name for name in schema.names if name not in (column, label, "path", "split", "label")]
    others = [name for name in others if _is_scalar(schema.field(name).type)]
    gathered: dict[str, list[np.ndarray]] = {name: [] for name in ("path", "label", "split", *others)}
    for file, split in shards:
        table = open_table(file, [label, *others])
        inside = file.relative_to(folder).as_posix()
        names = enumerate(embedded_names(file, column))
        gathered["path"].append(np.array([row_path(inside, row, _suffix(name, kind)) for row, name in names], object))
        gathered["label"].append(_names(table[label], features.get(label, {}), inside))
        gathered["split"].append(np.full(len(table), split, dtype=object))
        for name in others:
            gathered[name].append(_texts(table[name], features.get(name, {})))
    columns = {name: np.concatenate(parts) for name, parts in gathered.items()}
    if not any(columns["split"]):
        del columns["split"]
    if not len(columns["path"]):
        raise DataError(f"{folder} has no rows.")
    return Dataset(Manifest(columns), ArrowStore(folder, column), kind, folder.resolve().name)


def _suffix(name: str, kind: MediaKind) -> str:
    """The suffix that tells what an embedded file is once it is written out on its own."""
    suffix = os.path.splitext(name)[1].lower()
    if kind == "audio":
        return suffix if suffix in AUDIO_SUFFIXES else ".wav"
    return suffix if suffix in IMAGE_SUFFIXES else ""


def _features(schema: pa.Schema) -> dict[str, Any]:
    """The features that the library stores in a schema's metadata, by column."""
    try:
        return dict(json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"])
    except (KeyError, TypeError, ValueError):
        return {}


def _saved_features(folder: Path) -> dict[str, Any]:
    path = folder / "dataset_info.json"
    return dict(_read_json(path).get("features") or {}) if path.is_file() else {}


def _media_column(schema: pa.Schema, features: dict[str, Any]) -> tuple[str, MediaKind] | None:
    """The column that holds images or recordings: as its feature says, else the first struct with bytes."""
    import pyarrow as pa

    for name in schema.names:
        kind = _MEDIA.get(str(_feature_type(features.get(name))))
        if kind is not None:
            return name, kind
    for field in schema:
        nested = pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
        if nested or pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            return field.name, "audio" if "audio" in field.name.lower() else "image"
    return None


def _label_column(schema: pa.Schema, features: dict[str, Any], folder: Path) -> str:
    """The column of classes: a ClassLabel, by preference one with a usual name, else any scalar with one."""
    classed = [name for name in schema.names if _feature_type(features.get(name)) == "ClassLabel"]
    scalars = [name for name in schema.names if _is_scalar(schema.field(name).type)]
    usual = [[name for name in _LABEL_NAMES if name in known] for known in (classed, scalars)]
    for name in (*usual[0], *classed, *usual[1]):
        return name
    raise DataError(f"{folder} has no label column among {', '.join(schema.names)}: rename the class column 'label'.")


def _feature_type(feature: object) -> object:
    return feature.get("_type") if isinstance(feature, dict) else None


def _is_scalar(kind: pa.DataType) -> bool:
    from pyarrow.types import is_boolean, is_floating, is_integer, is_large_string, is_string

    return any(test(kind) for test in (is_string, is_large_string, is_integer, is_boolean, is_floating))


def _names(values: pa.ChunkedArray, feature: dict[str, Any], file: str) -> np.ndarray:
    """Labels as text, every one of them there."""
    texts = _texts(values, feature)
    for row, text in enumerate(texts):
        if not text or text.isspace():
            raise DataError(f"Row {row} of {file} has no label: remove the rows (or the split) without labels.")
    return texts


def _texts(values: pa.ChunkedArray, feature: dict[str, Any]) -> np.ndarray:
    """A column as text, class codes as class names; "" where there is none."""
    import pyarrow as pa

    if _feature_type(feature) == "ClassLabel" and feature.get("names") and pa.types.is_integer(values.type):
        names = feature["names"]
        codes = values.fill_null(-1).to_numpy().astype(np.int64)
        known = (codes >= 0) & (codes < len(names))
        return np.array([*map(str, names), ""], dtype=object)[np.where(known, codes, len(names))]
    texts = values.cast(pa.string()).fill_null("").to_numpy()
    return texts.astype(object)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not readable JSON ({error}): save or download the data set again.") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} should contain a JSON object: save or download the data set again.")
    return value
