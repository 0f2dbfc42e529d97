"""How a feature cache is filled: every view of every item through the frozen part, row by row into a file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
from torch import Tensor

from nearkin.data.augment import TrainTransform, Transform, transform_for
from nearkin.data.dataset import Dataset
from nearkin.data.inputs import InputSpec
from nearkin.errors import DataError, ModelError, StorageError
from nearkin.models.encoder import Encoder
from nearkin.models.prefetch import batches, stacked
from nearkin.models.section import CacheViews
from nearkin.progress import Progress
from nearkin.storage import replacing

_BATCH = 32
_WORKERS = max(1, (os.cpu_count() or 2) // 2)
"""Threads that decode: as many as cores would only stop the ones that compute."""

_PART_ITEMS = 2048
_PART_BYTES = 256 * 2**20

Layout = dict[str, tuple[int, ...]]
"""The shapes, (C,) or (H, W, C), of what a row holds by the places it comes from, in the order of the row."""


class ItemViews:
    """All views of an item, not normalised: (V, C, H, W)."""

    def __init__(self, dataset: Dataset, spec: InputSpec, views: CacheViews, seed: int) -> None:
        if dataset.kind != spec.kind:
            raise DataError(f"The model takes {spec.kind} and the data is {dataset.kind}: choose another of the two.")
        if spec.kind == "audio" and views.flip:
            raise ModelError("Audio cannot be mirrored: set model.cache_views.flip to false.")
        self.dataset = dataset
        self.views = views
        self.seed = seed
        self.plain = transform_for(spec, None, train=False)
        self.random: Transform = self.plain if spec.kind == "audio" else TrainTransform(spec, views.crop_scale)
        # A small crop of a large image needs the pixels that the hint would drop.
        self.hint = None if views.crops else self.plain.hint

    def __len__(self) -> int:
        return len(self.dataset)

    def __call__(self, index: int) -> Tensor:
        """The views (V, C, H, W) of an item."""
        try:
            sample = self.dataset.load(index, self.hint)
        except OSError as error:
            raise DataError(f"{self.dataset.manifest.paths[index]} could not be read ({error}).") from error
        shown = [self.plain(sample)]
        if self.views.flip:
            shown.append(shown[0].flip(-1))
        while len(shown) < self.views.count:
            rng = np.random.default_rng([self.seed, index, len(shown)])
            crop = self.random(sample, rng)
            shown.append(crop.flip(-1) if self.views.flip and rng.random() < 0.5 else crop)
        return stacked(shown)


class RowMaker:
    """What a frozen part gives at the places of a cache, as rows of it."""

    def __init__(self, encoder: Encoder, at: str, dtype: np.dtype) -> None:
        self.encoder = encoder
        self.at = at
        self.dtype = dtype

    def __call__(self, batch: Tensor) -> np.ndarray:
        """Rows (B, V, C'), (B, V, H, W, C') or, of several places, (B, V, values), of all views (B, V, C, H, W)."""
        parts = [self._cut(part) for part in batch.flatten(0, 1).split(_BATCH)]
        found = [np.concatenate([part[place] for part in parts]) for place in parts[0]]
        rows = found[0] if len(found) == 1 else np.concatenate([part.reshape(len(part), -1) for part in found], axis=1)
        if not np.isfinite(rows).all():
            raise ModelError(
                f"Some features are not finite in {self.dtype}: set model.cache_dtype to float32, or check the weights."
            )
        return rows.reshape(len(batch), -1, *rows.shape[1:])

    def layout(self, sample: Tensor) -> Layout:
        """The shapes of the places, of the views (V, C, H, W) of any item."""
        return {place: part.shape[1:] for place, part in self._cut(sample[:1]).items()}

    def _cut(self, samples: Tensor) -> dict[str, np.ndarray]:
        found = {}
        for place, features in self.encoder.cut(samples, self.at).items():
            last = features.float().cpu()
            last = last.permute(0, 2, 3, 1) if last.ndim == 4 else last
            with np.errstate(over="ignore"):  # said later, in words
                found[place] = np.ascontiguousarray(last.numpy(), dtype=self.dtype)
        return found


def write_rows(path: Path, rows: RowMaker, samples: ItemViews, progress: bool) -> tuple[list[int], Layout]:
    """Compute all features into a file, part by part, so that an interrupted build goes on where it was; its shape."""
    count = len(samples)
    if not count:
        raise DataError("There are no items to compute features of: give a data set that is not empty.")
    sample = samples(0)
    row = rows(sample[None])[0]
    _check_space(path, 2 * count * row.nbytes)
    length = max(_BATCH, min(_PART_ITEMS, _PART_BYTES // row.nbytes))
    folder = path.with_suffix(".parts")
    parts = [
        (folder / f"{first:09d}.npy", range(first, min(first + length, count))) for first in range(0, count, length)
    ]
    with Progress("Computing features", count, progress) as bar:
        for part, items in parts:
            # A part is there whole or not at all, and the key has decided its content: it can be trusted.
            if part.exists():
                bar.advance(len(items))
            else:
                _write_part(part, rows, samples, items, bar)
    shape = (count, *row.shape)
    # Plain writes: a full disk is an error here, but a crash of the process through a memory map.
    with replacing(path) as temporary, open(temporary, "wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for part, _ in parts:
            file.write(np.load(part, allow_pickle=False).data)
    shutil.rmtree(folder, ignore_errors=True)
    return list(shape), rows.layout(sample)


def _write_part(path: Path, rows: RowMaker, samples: ItemViews, items: range, bar: Progress) -> None:
    chunks = []
    per_batch = max(1, _BATCH // samples.views.count)
    for batch in batches(lambda index: samples(items[index]), len(items), per_batch, _WORKERS):
        chunks.append(rows(batch))
        bar.advance(len(batch))
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.save(file, np.concatenate(chunks))


def _check_space(path: Path, needed: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        raise StorageError(f"The cache directory {path.parent} cannot be used ({error}): choose another.") from error
    if free < needed:
        raise StorageError(
            f"The feature cache needs {needed / 2**30:.2f} GiB and {path.parent} has {free / 2**30:.2f} GiB free: make "
            "room, choose another directory, or set model.cache_dtype to float16."
        )
