"""The feature cache: what the frozen part of a model gives for a data set, computed once and kept on disk.

One file holds an array (n, views, ...), read through a memory map, or from memory where it is small. Its name is a hash
of all that decides its content: data, frozen weights, transform, views and precision. If one changes, it is made anew.
Where a model attends to earlier stages, a row holds their maps too, one after the other.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nearkin.data.augment import transform_for
from nearkin.data.dataset import Dataset
from nearkin.errors import ModelError, StorageError
from nearkin.models.cache_rows import ItemViews, Layout, RowMaker, write_rows
from nearkin.models.checkpoint import hash_tensors
from nearkin.models.embedder import POOLING, Embedder
from nearkin.models.encoder import Encoder
from nearkin.models.features import Features, to_device
from nearkin.models.section import CacheViews
from nearkin.models.tuning import inference_copy
from nearkin.storage import write_json

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

    def __init__(self, array: np.ndarray, layout: Layout, key: str, reused: bool) -> None:
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
        _check_frozen(embedder, at)
        facts = _facts(embedder, dataset, at, views, dtype, seed)
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        path = Path(directory) / f"{key[:32]}.npy"
        channels = _channels(embedder, at)
        found = _open(path, key, channels)
        if found is not None:
            return cls(*found, key, reused=True)
        samples = ItemViews(dataset, embedder.spec, views, seed)
        shape, layout = write_rows(path, RowMaker(Encoder(embedder), at, np.dtype(dtype)), samples, progress)
        made_of = {"key": key, "shape": shape, "dtype": dtype, "facts": facts}
        write_json(path.with_suffix(".json"), made_of | ({"layout": layout} if len(layout) > 1 else {}))
        made = _open(path, key, channels)
        if made is None:
            raise StorageError(f"The feature cache {path} vanished or changed while it was written: run again.")
        return cls(*made, key, reused=False)

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


def _check_frozen(embedder: Embedder, at: str) -> None:
    """Refuse a place that training would change: the cache would go stale."""
    point = cache_point(embedder)
    if at == point or at in embedder.frozen_stages:
        return
    if at != POOLING:
        embedder.backbone.position(at)
    raise ModelError(
        f"The model learns before '{at}', so its features change there: cache at '{point}' or freeze more."
    )


def _facts(embedder: Embedder, dataset: Dataset, at: str, views: CacheViews, dtype: str, seed: int) -> dict[str, Any]:
    """All that decides the content of a cache."""
    transform = transform_for(embedder.spec, None, train=False)
    places = embedder.places(at)
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "data": dataset.fingerprint(),
        "at": at if len(places) == 1 else places,
        "trunk": _trunk_hash(embedder, at),
        "transform": {name: getattr(transform, name) for name in ("resize", "frames") if hasattr(transform, name)},
        "views": {"flip": views.flip, "crops": views.crops, **(_crop_facts(views, seed) if views.crops else {})},
        "dtype": dtype,
    }


def _crop_facts(views: CacheViews, seed: int) -> dict[str, Any]:
    return {"crop_scale": list(views.crop_scale), "seed": seed}


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


def _channels(embedder: Embedder, at: str) -> dict[str, int]:
    """How many channels each of the places of a row has, in their order."""
    widths = embedder.backbone.widths | {POOLING: embedder.pooling.out_channels}
    return {place: widths[place] for place in embedder.places(at)}


def _open(path: Path, key: str, channels: dict[str, int]) -> tuple[np.ndarray, Layout] | None:
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


def _layout(said: dict[str, list[int]], channels: dict[str, int], rows: np.ndarray) -> Layout:
    """The shapes of the places as a file tells them, checked: wrong ones would cut a row at the wrong numbers."""
    layout = {place: tuple(said[place]) for place in channels}
    for place, shape in layout.items():
        whole = all(type(side) is int and side >= 1 for side in shape)
        if not whole or len(shape) != (1 if place == POOLING else 3) or shape[-1] != channels[place]:
            raise ValueError(f"'{place}' cannot have the shape {shape}")
    if sum(math.prod(shape) for shape in layout.values()) != rows.shape[2]:
        raise ValueError("the shapes of the places do not fill a row")
    return layout
