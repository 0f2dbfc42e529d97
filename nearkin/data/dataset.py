"""Data sets: a manifest, the store its items are in, how to decode them, and which of them cannot be read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from nearkin._moved import renamed
from nearkin.data.decode import decode_audio, decode_image
from nearkin.data.manifest import Manifest
from nearkin.data.stores import RemoteStore, Store, UnreadableError, redacted, signatures
from nearkin.errors import DataError
from nearkin.progress import track
from nearkin.storage import write_text

MediaKind = Literal["image", "audio"]
ROW = "manifest_row"
"""Under which the `info` of an image of a data set has the manifest and its row."""
SAMPLE_RATE = 16000
"""Samples a second of every waveform a data set gives."""


class Dataset:
    """Labelled items that can be loaded one by one.

    Cheap to make and to pickle: nothing is read before `load` or `fingerprint`.

    Args:
        manifest: the items, one a row.
        store: where their bytes are.
        kind: "image" or "audio".
        name: shown to people; never used to find the data.
    """

    def __init__(self, manifest: Manifest, store: Store, kind: MediaKind = "image", name: str = "") -> None:
        if kind not in ("image", "audio"):
            raise DataError(f"A data set holds items of kind 'image' or 'audio', not {kind!r}.")
        self.manifest = manifest
        self.store = store
        self.kind: MediaKind = kind
        self.name = name

    def __len__(self) -> int:
        return len(self.manifest)

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {len(self)} {self.kind} items, {len(self.classes)} classes)"

    @property
    def labels(self) -> np.ndarray:
        """The class of each item, (n,) str."""
        return self.manifest.labels

    @property
    def classes(self) -> list[str]:
        """The class names, sorted."""
        return self.manifest.classes

    def class_ids(self) -> np.ndarray:
        """Each item's class as an index into `classes`, (n,) int64."""
        return self.manifest.class_ids()

    def load(self, index: int, hint: int | None = None) -> Image.Image | np.ndarray:
        """Decode one item: an image of mode RGB or L, or a float32 waveform (n,) at 16 kHz.

        Args:
            index: the row.
            hint: the short side needed; a much larger JPEG is then decoded faster, at a size not below it.
        """
        path = self.manifest.paths[index]
        raw = self.store.read(path)
        if self.kind == "image":
            image = decode_image(raw, path, hint)
            image.info[ROW] = (self.manifest, index)  # for transforms that look up a column
            return image
        if isinstance(raw, np.ndarray):
            raise DataError(f"{path} is an array, but audio items must be encoded files.")
        return decode_audio(raw, path, SAMPLE_RATE)

    def image(self, index: int) -> Image.Image:
        """Decode one item of an image data set, at full size."""
        sample = self.load(index)
        if not isinstance(sample, Image.Image):
            raise DataError(f"The data set '{self.name}' holds {self.kind}, which has no pictures.")
        return sample

    def select(self, rows: np.ndarray | Sequence[int] | Sequence[bool]) -> Dataset:
        """The items given by indices, in that order, or by a boolean mask."""
        return Dataset(self.manifest.select(rows), self.store, self.kind, self.name)

    def where(self, **equals: str) -> Dataset:
        """The items whose columns equal the given values: `where(split="train")`."""
        return Dataset(self.manifest.where(**equals), self.store, self.kind, self.name)

    def fingerprint(self) -> str:
        """A sha256, in hex, of every row's path, label and content signature; row order counts."""
        paths = self.manifest.paths.tolist()
        rows = list(zip(paths, self.manifest.labels, signatures(self.store, paths), strict=True))
        return hashlib.sha256(json.dumps(rows).encode("ascii")).hexdigest()


_NAMED = 5


@dataclass(frozen=True)
class BadFile:
    """An item that cannot be used.

    Args:
        path: as the manifest names it.
        reason: what is wrong, to be read after the path.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{redacted(self.path)} {self.reason}"


def find_bad(dataset: Dataset, progress: bool = True, workers: int | None = None) -> list[BadFile]:
    """Decode every item in a pool of threads and return those that cannot be, in the manifest's order.

    Args:
        dataset: what to check.
        progress: show a bar.
        workers: threads; None: two, and more where they mostly wait for items that are far away.
    """
    if workers is None:
        workers = 16 if isinstance(dataset.store, RemoteStore) else 2

    def check(index: int) -> BadFile | None:
        try:
            dataset.load(index, hint=1)  # the smallest JPEG scale: all bytes are still read, fewer pixels made
        except UnreadableError as error:
            return BadFile(error.path, error.reason)
        return None

    with ThreadPoolExecutor(max(workers, 1)) as pool:
        found = pool.map(check, range(len(dataset)))
        return [bad for bad in track(found, "Checking files", len(dataset), progress) if bad is not None]


def drop_bad(
    dataset: Dataset, skip_bad: bool, progress: bool = True, memory: Path | None = None
) -> tuple[Dataset, list[BadFile]]:
    """Return the data set without the items that cannot be read, and those items.

    Args:
        dataset: what to check.
        skip_bad: leave such items out instead of raising.
        progress: show a bar.
        memory: a folder that remembers which data sets, by fingerprint, were found to be whole.

    Raises:
        DataError: there are such items and `skip_bad` is False, or nothing would be left.
    """
    try:
        whole = memory / dataset.fingerprint() if memory is not None else None
    except UnreadableError:  # an item is missing, and the check names it
        whole = None
    if whole is not None and whole.exists():
        return dataset, []
    bad = find_bad(dataset, progress)
    if not bad:
        if whole is not None:
            write_text(whole, "")
        return dataset, []
    if not skip_bad:
        named = "; ".join(str(item) for item in bad[:_NAMED])
        more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        raise DataError(
            f"{len(bad)} of {len(dataset)} files cannot be used: {named}{more}. "
            "Repair or remove them, or leave them out with --skip-bad."
        )
    if len(bad) == len(dataset):
        raise DataError(f"None of the {len(dataset)} files can be used: {bad[0]}, for one.")
    dropped = {item.path for item in bad}
    return dataset.select(np.array([path not in dropped for path in dataset.manifest.paths])), bad


__getattr__ = renamed(__name__, Kind="MediaKind")
