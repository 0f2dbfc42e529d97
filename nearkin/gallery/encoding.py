"""From an item to its vector, for galleries that are tied to a model."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import ModelError, suggestion
from nearkin.models import Embedder, ModelSection, build_embedder, list_backbones
from nearkin.models.engines import TORCH, make_encoder
from nearkin.models.items import Item, ItemLoader
from nearkin.models.prefetch import batches, stacked
from nearkin.search.blocks.workers import lone_threads

_MODEL_FILE = "model.safetensors"

_SHARE = 16
"""Samples that one thread takes at a time: with fewer a network is slower, with more threads wait longer at the end."""


class QueryEncoder:
    """A model made ready for many small questions; safe to call from several threads.

    Args:
        embedder: the model; later training does not reach this copy.
        engine: what runs it: "torch" or "onnx".
    """

    def __init__(self, embedder: Embedder, engine: str = TORCH) -> None:
        self.embedder = embedder
        self.engine = engine
        self.spec = embedder.spec
        self.dimension = embedder.dimension
        self._encoder = make_encoder(embedder, engine)
        self._load = ItemLoader(embedder.spec)
        # Two batches at once would fight over the cores and take longer than one after the other.
        self._network = Lock()
        self._threads: ThreadPoolExecutor | None = None

    def prepare(self, item: Item, name: str = "The query") -> Tensor:
        """Decode one item to the sample (C, H, W) that the network eats.

        Args:
            item: a path, the bytes of a file, an image, an array or a tensor.
            name: what errors call it.
        """
        return self._load(item, name)

    def run(self, samples: Sequence[Tensor]) -> np.ndarray:
        """Vectors float32 (n, d) of samples (C, H, W) each, in one pass of the network."""
        if not len(samples):
            return np.empty((0, self.dimension), np.float32)
        return self._through(stacked(list(samples)))

    def encode(self, items: Sequence[Item], *, batch_size: int = 32, workers: int = 2) -> np.ndarray:
        """Vectors float32 (n, d) of items, decoded ahead in threads."""
        if not len(items):
            return np.empty((0, self.dimension), np.float32)
        samples = batches(lambda index: self.prepare(items[index], f"Item {index}"), len(items), batch_size, workers)
        return np.concatenate([self._through(batch) for batch in samples])

    def _through(self, batch: Tensor) -> np.ndarray:
        """Vectors (B, d) of a batch, with torch a share of it in each of as many threads as torch has.

        Within one batch torch's threads wait for each other after every layer, and all of them for one whose core does
        something else meanwhile: decoding, or answering. Shares wait for each other once.
        """
        with self._network:
            count = torch.get_num_threads()
            if count == 1 or len(batch) < 2 * count or not self._encoder.divides:
                return self._encoder(batch).float().cpu().numpy()
            if self._threads is None:
                self._threads = lone_threads(count, "nearkin-encode")
            shares = batch.chunk(max(count, -(-len(batch) // _SHARE)))
            return np.concatenate([part.float().numpy() for part in self._threads.map(self._encoder, shares)])


def open_model(model: Any) -> Embedder:
    """A model from a model, the path of a run or of a model file, or the name of a pretrained backbone.

    Raises:
        ModelError: if it is none of these.
    """
    if isinstance(model, Embedder):
        return model
    if not isinstance(model, str | Path):
        raise ModelError(
            f"A gallery needs a model, the path of one, or the name of a backbone, not a {type(model).__name__}."
        )
    path = Path(model)
    if path.is_dir():
        return Embedder.load(path / _MODEL_FILE)
    if path.suffix == ".onnx":
        raise ModelError(
            f"A gallery keeps a model that can be loaded again, which {path} cannot: give the run or model file it was "
            "exported from, with the engine 'onnx'."
        )
    if path.exists():
        return Embedder.load(path)
    names = list_backbones()
    if str(model) in names:
        return pretrained(str(model))
    raise ModelError(f"There is no run, model file or backbone '{model}'.{suggestion(str(model), names)}")


def pretrained(backbone: str) -> Embedder:
    """A backbone as it comes, with pretrained weights and average pooling, on the sphere: a model nobody trained."""
    section = ModelSection(backbone=backbone, pretrained=True, pooling="gap", dimension=None, space="sphere")
    embedder = build_embedder(section)
    embedder.card = {"name": backbone, "note": "Pretrained features, not trained on any data of yours."}
    return embedder.eval()
