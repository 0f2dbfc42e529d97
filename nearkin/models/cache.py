"""The feature cache: what the frozen part of a model gives for a data set, computed once and kept on disk.

One file holds an array (n, views, ...), read through a memory map, or from memory where it is small. Its name is a hash
of all that decides its content: data, frozen weights, transform, views and precision. If one changes, it is rebuilt.
Where a model attends to earlier stages, a row holds their maps too, one after the other.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nearkin.data.augment import TrainTransform, Transform, transform_for, with_size
from nearkin.data.dataset import Dataset
from nearkin.data.inputs import InputSpec
from nearkin.data.section import DataSection
from nearkin.errors import DataError, ModelError, StorageError
from nearkin.models.embedder import POOLING, SIZE, Embedder, Features, hash_tensors, to_device
from nearkin.models.engines import Encoder
from nearkin.models.items import batches, check_kind, stacked
from nearkin.models.section import CacheViews
from nearkin.models.speed import inference_copy
from nearkin.progress import Progress
from nearkin.storage import in_turn, replacing, write_json

_BATCH = 32
_WORKERS = max(1, (os.cpu_count() or 2) // 2)
"""Threads that decode: as many as cores would only stop the ones that compute."""

_PART_ITEMS = 2048
_PART_BYTES = 256 * 2**20

RowLayout = dict[str, tuple[int, ...]]
"""The shapes, (C,) or (H, W, C), of what a row holds by the places it comes from, in the order of the row."""


class ItemViews:
    """All views of an item, not normalised: (V, C, H, W)."""

    def __init__(self, dataset: Dataset, spec: InputSpec, views: CacheViews, seed: int) -> None:
        check_kind(dataset, spec)
        if spec.kind == "audio" and views.flip:
            raise ModelError("Audio cannot be mirrored: set model.cache_views.flip to false.")
        self.dataset = dataset
        self.views = views
        self.seed = seed
        self.plain = transform_for(spec, DataSection(), train=False)
        crops: Transform = (
            self.plain if spec.kind == "audio" else with_size(TrainTransform(spec, views.crop_scale), spec)
        )
        self.random = crops
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


@dataclass(frozen=True)
class RowMaker:
    """What a frozen part gives at the places of a cache, as rows of it."""

    encoder: Encoder
    at: str
    dtype: np.dtype

    def __call__(self, batch: Tensor) -> np.ndarray:
        """Rows (B, V, C'), (B, V, H, W, C') or, of several places, (B, V, values), of all views (B, V, C, H, W)."""
        parts = [self._cut(part) for part in batch.flatten(0, 1).split(_BATCH)]
        found = [np.concatenate([part[place] for part in parts]) for place in parts[0]]
        rows = found[0] if len(found) == 1 else np.concatenate([part.reshape(len(part), -1) for part in found], axis=1)
        if not np.isfinite(rows).all():
            # Half precision has no numbers as large as single precision; NaN is NaN in both.
            narrow = self.dtype != np.float32 and not np.isnan(rows).any()
            raise ModelError(
                f"Some features are not finite in {self.dtype}: "
                + ("set model.cache_dtype to float32, or " if narrow else "")
                + "check the weights of the backbone."
            )
        return rows.reshape(len(batch), -1, *rows.shape[1:])

    def layout(self, sample: Tensor) -> RowLayout:
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


def write_rows(path: Path, rows: RowMaker, samples: ItemViews, progress: bool) -> tuple[list[int], RowLayout]:
    """Compute all features into a file, part by part, so that an interrupted build goes on where it was; its shape."""
    count = len(samples)
    if not count:
        raise DataError("There are no items to compute features for: pass a data set that is not empty.")
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


_FORMAT = "nearkin.features"
_VERSION = 1
"""To be raised when transforms or backbones change what they compute."""

_IN_MEMORY = 2 * 2**30


class FeatureCache:
    """Features of a data set at one place in a model; made by `build`.

    Args:
        array: (n, views, C') pooled vectors or (n, views, H, W, C') maps; of several places (n, views, values).
        layout: what a row holds; the last place is where the model goes on.
        key: hash of all that decided the content.
        reused: whether it was found on disk.

    Attributes:
        at: the place where the model goes on: a stage of the backbone, or "pooling".
    """

    def __init__(self, array: np.ndarray, layout: RowLayout, key: str, reused: bool) -> None:
        self.at = list(layout)[-1]
        self.layout = layout
        self.key = key
        self.reused = reused
        self.views = array.shape[1]
        self._rows = array.reshape(-1, *array.shape[2:])

    def __len__(self) -> int:
        return len(self._rows) // self.views

    @classmethod
    def build(
        cls,
        embedder: Embedder,
        dataset: Dataset,
        *,
        at: str,
        directory: Path,
        views: CacheViews | None = None,
        dtype: Literal["float32", "float16"] = "float32",
        seed: int = 0,
        progress: bool = True,
    ) -> FeatureCache:
        """Compute the features of a data set, or find them on disk.

        View 0 is the evaluation view; then, as asked for, its mirror image, and random crops, each drawn from
        [seed, index, view]. An interrupted build leaves nothing that could be mistaken for a cache; the next
        one takes it up again.

        Args:
            embedder: frozen up to `at`.
            dataset: its items, in order, are the rows.
            at: the last frozen stage, or "pooling" if all stages are frozen and the pooling learns nothing.
            directory: where caches are kept.
            views: which views; None: the plain one only.
            dtype: precision on disk.
            seed: seed of the crops.
            progress: show a bar.
        """
        views = CacheViews() if views is None else views
        point = cache_point(embedder)
        if at != point and at not in embedder.frozen_stages:
            if at != POOLING:
                embedder.backbone.position(at)
            raise ModelError(
                f"The model learns before '{at}', so its features change there: cache at '{point}' or freeze more."
            )
        facts = _facts(embedder, dataset, at, views, dtype, seed)
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        path = Path(directory) / f"{key[:32]}.npy"
        widths = embedder.backbone.widths | {POOLING: embedder.pooling.out_channels, SIZE: 2}
        channels = {place: widths[place] for place in embedder.places(at)}
        if (found := _open(path, key, channels)) is not None:
            return cls(*found, key, reused=True)
        samples = ItemViews(dataset, embedder.spec, views, seed)
        with in_turn(path.with_suffix(".lock")):
            if (found := _open(path, key, channels)) is not None:  # another process made it meanwhile
                return cls(*found, key, reused=True)
            shape, layout = write_rows(path, RowMaker(Encoder(embedder), at, np.dtype(dtype)), samples, progress)
            made_of = {"key": key, "shape": shape, "dtype": dtype, "facts": facts}
            write_json(path.with_suffix(".json"), made_of | ({"layout": layout} if len(layout) > 1 else {}))
        if (found := _open(path, key, channels)) is None:
            raise StorageError(f"The feature cache {path} vanished or changed while it was written: run again.")
        return cls(*found, key, reused=False)

    def gather(self, indices: np.ndarray, views: np.ndarray | int = 0) -> Features:
        """Features of some items, float32: vectors (B, C') or maps (B, C', H, W) with the channels innermost.

        Of a model that attends to earlier stages: these by the names of their places.

        Args:
            indices: rows of the data set, (B,).
            views: the view of each, (B,), or one for all.
        """
        rows = torch.from_numpy(self._rows.take(np.asarray(indices) * self.views + views, axis=0))
        if len(self.layout) == 1:
            return _channels_second(rows.float())
        parts = rows.split([math.prod(shape) for shape in self.layout.values()], dim=1)
        return {
            place: _channels_second(part.unflatten(1, shape).contiguous().float())
            for (place, shape), part in zip(self.layout.items(), parts, strict=True)
        }

    def encode(self, embedder: Embedder, indices: np.ndarray, batch_size: int = 256) -> np.ndarray:
        """Embeddings of the plain view of some items, float32 (n, d): what `embedder.encode` gives, but faster."""
        rows = np.empty((len(indices), embedder.dimension), dtype=np.float32)
        # After the pooling often only the head is left to run: not worth a copy of the whole model.
        only_head = self.at == POOLING and len(self.layout) == 1 and embedder.attention is None
        tail = inference_copy(embedder.head if only_head else embedder)
        device = embedder.normalise.mean.device
        with torch.inference_mode():
            for first in range(0, len(indices), batch_size):
                features = to_device(self.gather(indices[first : first + batch_size]), device)
                raw = tail(features) if only_head else tail(features, start=self.at)
                rows[first : first + batch_size] = embedder.space.project(raw).cpu().numpy()
        return rows


def _channels_second(features: Tensor) -> Tensor:
    return features.permute(0, 3, 1, 2) if features.ndim == 4 else features


def cache_point(embedder: Embedder) -> str:
    """The last place in an embedder that training does not change: "pooling", or a stage."""
    frozen = embedder.frozen_stages
    if not frozen:
        raise ModelError("Nothing of the backbone is frozen, so there is nothing to cache: set model.freeze.")
    whole = len(frozen) == len(embedder.backbone.stages)
    learned = embedder.pooling.has_parameters or any(True for _ in embedder.local.parameters())
    return POOLING if whole and not learned else frozen[-1]


def _facts(embedder: Embedder, dataset: Dataset, at: str, views: CacheViews, dtype: str, seed: int) -> dict[str, Any]:
    """All that decides the content of a cache."""
    transform = transform_for(embedder.spec, DataSection(), train=False)
    drawn = {"crop_scale": list(views.crop_scale), "seed": seed} if views.crops else {}
    places = embedder.places(at)
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "data": dataset.fingerprint(),
        "at": at if len(places) == 1 else places,
        "trunk": _trunk_hash(embedder, at),
        "transform": {name: getattr(transform, name) for name in ("resize", "frames") if hasattr(transform, name)},
        "views": {"flip": views.flip, "crops": views.crops, **drawn},
        "dtype": dtype,
    }


def _trunk_hash(embedder: Embedder, at: str) -> str:
    """A sha256 of the input, the architecture and the weights of everything up to `at`."""
    architecture = embedder.architecture()
    facts = {"input": architecture["input"], "backbone": architecture["backbone"]["name"]}
    prefixes = [f"backbone.stages.{name}." for name in embedder.backbone.between(None, None if at == POOLING else at)]
    if at == POOLING:
        facts["pooling"] = architecture["pooling"]
        prefixes.append("pooling.")
    weights = {name: value for name, value in embedder.state_dict().items() if name.startswith(tuple(prefixes))}
    return hash_tensors(weights, facts)


def _open(path: Path, key: str, channels: dict[str, int]) -> tuple[np.ndarray, RowLayout] | None:
    """The array of a finished cache and what its rows hold, or None.

    Args:
        path: of the array; what it was made of is beside it.
        key: hash of all that decides the content.
        channels: of each of the places that a row holds, in their order.
    """
    try:
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        if facts["key"] != key or facts["shape"] != list(mapped.shape) or facts["dtype"] != str(mapped.dtype):
            return None
        only = next(iter(channels))
        layout = {only: mapped.shape[2:]} if len(channels) == 1 else _layout(facts["layout"], channels, mapped)
        return (np.array(mapped) if mapped.nbytes <= _IN_MEMORY else np.asarray(mapped)), layout
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _layout(said: dict[str, list[int]], channels: dict[str, int], rows: np.ndarray) -> RowLayout:
    """The shapes of the places as a file tells them, checked: wrong ones would cut a row at the wrong numbers."""
    layout = {place: tuple(said[place]) for place in channels}
    for place, shape in layout.items():
        whole = all(type(side) is int and side >= 1 for side in shape)
        if not whole or len(shape) != (1 if place in (POOLING, SIZE) else 3) or shape[-1] != channels[place]:
            raise ValueError(f"'{place}' cannot have the shape {shape}")
    if sum(math.prod(shape) for shape in layout.values()) != rows.shape[2]:
        raise ValueError("the shapes of the places do not fill a row")
    return layout
