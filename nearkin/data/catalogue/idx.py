"""The idx format of MNIST and its kin: a magic number, the dimensions, then the bytes."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError

PARTS = {"train": "train", "test": "t10k"}
"""Split to the beginning of its files' names."""

FILES = tuple(f"{part}-{what}-ubyte" for part in PARTS.values() for what in ("images-idx3", "labels-idx1"))
"""The four files of a data set in this format, without '.gz'."""

_UNSIGNED_BYTE = 8
_MOST_BYTES = 1 << 30


def find_file(folder: Path, name: str) -> Path | None:
    """A file of a folder as published (`.gz`), unpacked, or renamed by a common unpacker (`.idx` for `-idx`)."""
    variants = (name, name.replace("-idx", ".idx"))
    return next(
        (folder / f"{v}{end}" for v in variants for end in (".gz", "") if (folder / f"{v}{end}").is_file()), None
    )


def read_content(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzipped."""
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else open(path, "rb") as handle:
            content = handle.read(_MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} could not be read ({error}): get it again.") from error
    if len(content) > _MOST_BYTES:
        raise DataError(f"{path} holds more than {_MOST_BYTES:,} bytes, which no idx file here does: get it again.")
    return content


def parse_idx(content: bytes, path: Path) -> np.ndarray:
    """The uint8 array, (n,) or (n, H, W), that an idx file holds."""
    dimensions = content[3] if len(content) >= 4 else 0
    start = 4 + 4 * dimensions
    if content[:3] != bytes((0, 0, _UNSIGNED_BYTE)) or not dimensions or len(content) < start:
        raise DataError(f"{path} is not an idx file of bytes: get it again.")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4))
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{path} is truncated: it holds {len(content) - start:,} bytes for the shape {shape}; get it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def dataset_of(contents: dict[str, tuple[bytes, Path]], classes: Sequence[str], name: str) -> Dataset:
    """The data set of the four files, given by name with content and path; items are 'train/00000', ..."""
    images: list[np.ndarray] = []
    paths: list[str] = []
    labels: list[str] = []
    splits: list[str] = []
    for split, part in PARTS.items():
        pixels = parse_idx(*contents[f"{part}-images-idx3-ubyte"])
        codes = parse_idx(*contents[f"{part}-labels-idx1-ubyte"])
        source = contents[f"{part}-labels-idx1-ubyte"][1]
        if pixels.ndim != 3 or codes.ndim != 1 or len(pixels) != len(codes):
            raise DataError(f"{source} has the shape {codes.shape} for images of shape {pixels.shape}: get both again.")
        if codes.size and codes.max() >= len(classes):
            raise DataError(f"{source} has a label {codes.max()} where there are {len(classes)} classes: get it again.")
        images.append(pixels)
        paths.extend(f"{split}/{index:05d}" for index in range(len(codes)))
        labels.extend(classes[code] for code in codes)
        splits.extend([split] * len(codes))
    if images[0].shape[1:] != images[1].shape[1:]:
        raise DataError(
            f"The images of {name} have two sizes, {images[0].shape[1:]} and {images[1].shape[1:]}: get them again."
        )
    store = ArrayStore(np.concatenate(images), paths)
    return Dataset(Manifest.from_rows(paths, labels, split=splits), store, name=name)
