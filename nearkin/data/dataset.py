"""Data sets: a manifest, the store its items are in, and how to decode them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Literal

import numpy as np
from PIL import Image

from nearkin.data.decode import decode_audio, decode_image
from nearkin.data.manifest import Manifest
from nearkin.data.stores import Store, signatures
from nearkin.errors import DataError

Kind = Literal["image", "audio"]
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

    def __init__(self, manifest: Manifest, store: Store, kind: Kind = "image", name: str = "") -> None:
        if kind not in ("image", "audio"):
            raise DataError(f"A data set holds items of kind 'image' or 'audio', not {kind!r}.")
        self.manifest = manifest
        self.store = store
        self.kind: Kind = kind
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
            return decode_image(raw, path, hint)
        if isinstance(raw, np.ndarray):
            raise DataError(f"{path} is an array, but audio items must be encoded files.")
        return decode_audio(raw, path, SAMPLE_RATE)

    def image(self, index: int) -> Image.Image:
        """Decode one item of an image data set, at full size."""
        sample = self.load(index)
        if not isinstance(sample, Image.Image):
            raise DataError(f"The data set '{self.name}' holds {self.kind}, which has no picture.")
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
