"""Engines: what runs a network to make vectors of items, torch or ONNX Runtime, under one contract."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from nearkin.data.augment import statistics_of
from nearkin.data.inputs import InputSpec
from nearkin.errors import ModelError
from nearkin.models.items import Items, open_items
from nearkin.models.recordings import embed_recordings
from nearkin.models.speed import as_channels_last, compiled, inference_copy
from nearkin.progress import Progress
from nearkin.registry import Registry

if TYPE_CHECKING:
    from nearkin.models.embedder import Embedder


class BatchEncoder(Protocol):
    """A model made ready to turn samples into vectors; what an engine gives.

    Attributes:
        spec: what the model takes.
        dimension: size of a vector.
        device: where it computes.
        divides: whether parts of a batch are best run by several threads of the caller, each with one of torch's.
        fills: whether a last, smaller batch is filled up: the network would be compiled again for another shape.
    """

    spec: InputSpec
    dimension: int
    device: torch.device
    divides: bool
    fills: bool = False

    def __call__(self, batch: Tensor) -> Tensor:
        """Vectors (B, d) of samples (B, C, H, W) as loaded: uint8 or float in [0, 1], for audio log-mel values."""
        ...

    def encode(self, items: Items, *, batch_size: int = 32, progress: bool = True, workers: int = 2) -> np.ndarray:
        """Vectors float32 (n, d) of anything that `Embedder.encode` takes; maps (n, C, H, W) of an encoder of a stage.

        Args:
            items: what to encode, decoded ahead in threads.
            batch_size: samples that go through the network together.
            progress: show a bar.
            workers: threads that decode.
        """
        if batch_size < 1 or workers < 0:
            raise ModelError(
                f"Encoding needs a batch size of at least 1 and workers of at least 0, not {batch_size}, {workers}."
            )
        samples = open_items(items, self.spec)
        rows = np.empty((len(samples), self.dimension), dtype=np.float32)
        done = 0
        with Progress("Encoding", len(samples), progress) as bar:
            for batch in samples.batches(batch_size, workers):
                count = len(batch)
                missing = batch_size - count if self.fills else 0
                whole = torch.cat([batch, batch[:1].expand(missing, -1, -1, -1)]) if missing else batch
                features = self(whole)[:count].float().cpu().numpy()
                if done == 0:
                    rows = np.empty((len(samples), *features.shape[1:]), dtype=np.float32)
                rows[done : done + count] = features
                done += count
                bar.advance(count)
        return rows


class Encoder(BatchEncoder):
    """The embedder as it is now, copied for speed: later training does not reach the copy, nor the copy the embedder.

    `Embedder.encode` makes one for each call; keep one to answer many small queries.

    Args:
        embedder: what to copy.
        at: where to stop: a stage of the backbone, "pooling", or None for embeddings projected into the space.
        compile: use `torch.compile`.
    """

    def __init__(self, embedder: Embedder, *, at: str | None = None, compile: bool = False) -> None:
        self.spec, self.dimension, self.device = embedder.spec, embedder.dimension, embedder.normalise.mean.device
        self.divides = self.device.type == "cpu"  # within one batch torch's threads wait for each other
        self.fills = compile
        self.embedder = inference_copy(embedder)
        self.at = at
        # (x - mean) / std is x * scale + shift: (1, C, 1, 1), or, which is faster, one value where all channels agree.
        mean, std = (values.to(self.device) for values in statistics_of(self.spec))
        if len(set(self.spec.mean)) == len(set(self.spec.std)) == 1:
            mean, std = mean.flatten()[:1].view(1, 1, 1, 1), std.flatten()[:1].view(1, 1, 1, 1)
        self._scale, self._shift = 1.0 / std, -mean / std
        self._run: Callable[[Tensor], Tensor] = compiled(self._features) if compile else self._features

    @torch.inference_mode()
    def __call__(self, batch: Tensor) -> Tensor:
        """Features of samples (B, C, H, W) as loaded: uint8 or float in [0, 1], for audio log-mel values."""
        batch = batch.to(self.device)
        return embed_recordings(batch, self._run, self._mean) if self.spec.kind == "audio" else self._run(batch)

    @property
    def _mean(self) -> Callable[[Tensor], Tensor] | None:
        """The mean (d,) of the vectors (n, d) of one recording; None of maps."""
        if self.at is None:
            return self.embedder.space.mean
        return partial(torch.mean, dim=0) if self.at == "pooling" else None

    @torch.inference_mode()
    def cut(self, batch: Tensor, at: str) -> dict[str, Tensor]:
        """All that `Embedder.forward` needs to go on from `at`, by name, for samples as of a call."""
        return self.embedder.cut(self._normalised(batch.to(self.device)), at)

    def _features(self, batch: Tensor) -> Tensor:
        x = self._normalised(batch)
        return self.embedder.embed(x) if self.at is None else self.embedder.features(x, self.at)

    def _normalised(self, batch: Tensor) -> Tensor:
        if batch.ndim == 4 and batch.shape[1] > self.spec.channels:  # what is beyond them is a size
            pixels = self._normalised(batch[:, : self.spec.channels])
            return torch.cat([pixels, batch[:, self.spec.channels :]], dim=1)
        scale = self._scale / 255.0 if batch.dtype == torch.uint8 else self._scale
        return as_channels_last(batch).to(torch.float32, copy=True).mul_(scale).add_(self._shift)


TORCH = "torch"

engines: Registry[Callable[[Embedder], BatchEncoder]] = Registry("engine")


def make_encoder(embedder: Embedder, engine: str = TORCH) -> BatchEncoder:
    """A model made ready by an engine; later training does not reach it.

    Args:
        embedder: the model.
        engine: "torch", or "onnx", which translates the model at its first use and keeps the translation.

    Raises:
        UnknownNameError: there is no such engine.
    """
    return engines.get(engine)(embedder)


def check_engine(engine: str) -> None:
    """Refuse a name that no engine has.

    Raises:
        UnknownNameError: there is no such engine.
    """
    engines.get(engine)


def list_engines() -> list[str]:
    """Names of the engines, sorted."""
    return engines.names()


engines.register(TORCH)(Encoder)


@engines.register("onnx")
def _onnx(embedder: Embedder) -> BatchEncoder:
    from nearkin.models.onnx.file import cached_encoder

    return cached_encoder(embedder)
