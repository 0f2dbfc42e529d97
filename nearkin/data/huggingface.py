"""Hugging Face data sets on disk, read with pyarrow alone: `save_to_disk` folders and the hub's Parquet shards."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nearkin.data.arrow import ArrowStore, embedded_names, open_table, read_schema, row_path
from nearkin.data.dataset import Dataset, Kind
from nearkin.data.decode import AUDIO_SUFFIXES, IMAGE_SUFFIXES
from nearkin.data.manifest import Manifest
from nearkin.data.stores import check_inside
from nearkin.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_MARKERS = ("dataset_dict.json", "dataset_info.json", "state.json")
_NUMBER = re.compile(r"-\d+-of-\d+(-[0-9a-f]{6,})?$")
_HUB_NAME = re.compile(r".*-\d+-of-\d+(-[0-9a-f]+)?|\d{4,}")
_SPLITS = {"train": "train", "val": "val", "validation": "val", "valid": "val", "dev": "val", "test": "test"}
_LABEL_NAMES = ("label", "labels", "fine_label", "class")
_MEDIA: dict[str, Kind] = {"Image": "image", "Audio": "audio"}


class Shard(NamedTuple):
    """One Arrow or Parquet file and the split its rows belong to, "" if it says none."""

    file: Path
    split: str


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return any((folder / name).is_file() for name in _MARKERS)


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
        raise DataError(f"{folder} holds several configurations ({names}): give the folder of one.")
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
            yield Shard(folder / entry["filename"], _SPLITS.get(split, split))
        return
    for file in sorted(folder.glob("*.arrow")):  # the library's own cache names files data-set-split.arrow
        if not file.name.startswith("cache-"):
            stem = _NUMBER.sub("", file.stem).rpartition("-")[2]
            yield Shard(file, _SPLITS.get(split or stem, split))


def _hub_split(file: Path) -> str:
    if file.stem.isdigit():
        name = file.parent.name.removeprefix("partial-")
    elif _NUMBER.search(file.stem):
        name = _NUMBER.sub("", file.stem)
    else:
        return _SPLITS.get(file.stem, "")
    return _SPLITS.get(name, name)


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


def _suffix(name: str, kind: Kind) -> str:
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


def _media_column(schema: pa.Schema, features: dict[str, Any]) -> tuple[str, Kind] | None:
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
    for name in (*(name for name in _LABEL_NAMES if name in classed), *classed):
        return name
    for name in _LABEL_NAMES:
        if name in scalars:
            return name
    raise DataError(
        f"{folder} has no label column among {', '.join(schema.names)}: rename the column of classes to 'label'."
    )


def _feature_type(feature: object) -> object:
    return feature.get("_type") if isinstance(feature, dict) else None


def _is_scalar(kind: pa.DataType) -> bool:
    import pyarrow as pa

    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_floating,
    )
    return any(test(kind) for test in tests)


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
        raise DataError(f"{path} should hold a JSON object: save or download the data set again.")
    return value
