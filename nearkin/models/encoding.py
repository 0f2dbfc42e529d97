"""From items to an array of vectors, whatever runs the network."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nearkin.data.inputs import InputSpec
from nearkin.errors import ModelError
from nearkin.models.items import Items, open_items
from nearkin.progress import Progress


class BatchEncoder(Protocol):
    """A model made ready to turn samples into vectors; what an engine gives.

    Attributes:
        spec: what the model eats.
    """

    spec: InputSpec

    @property
    def divides(self) -> bool:
        """Whether parts of a batch are best run by several threads of the caller, each with one of torch's."""
        ...

    @property
    def dimension(self) -> int:
        """Size of a vector."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    def __call__(self, batch: Tensor) -> Tensor:
        """Vectors (B, d) of samples (B, C, H, W) as loaded: uint8 or float in [0, 1], for audio log-mel values."""
        ...

    def encode(self, items: Items, *, batch_size: int = 32, progress: bool = True, workers: int = 2) -> np.ndarray:
        """Vectors float32 (n, d) of anything that `Embedder.encode` takes."""
        ...


def encode_items(
    encoder: BatchEncoder, items: Items, *, batch_size: int, progress: bool, workers: int, padded: bool = False
) -> np.ndarray:
    """What an encoder gives for items, float32 (n, ...), decoded ahead in threads.

    Args:
        encoder: what runs the network.
        items: anything that `Embedder.encode` takes.
        batch_size: samples that go through the network together.
        progress: show a bar.
        workers: threads that decode.
        padded: fill up a last, smaller batch, for a network that would be compiled anew for another shape.
    """
    if batch_size < 1 or workers < 0:
        raise ModelError(
            f"Encoding needs a batch size of at least 1 and workers of at least 0, not {batch_size}, {workers}."
        )
    samples = open_items(items, encoder.spec)
    rows = np.empty((len(samples), encoder.dimension), dtype=np.float32)
    done = 0
    with Progress("Encoding", len(samples), progress) as bar:
        for batch in samples.batches(batch_size, workers):
            count = len(batch)
            missing = batch_size - count if padded else 0
            whole = torch.cat([batch, batch[:1].expand(missing, -1, -1, -1)]) if missing else batch
            features = encoder(whole)[:count].float().cpu().numpy()
            if done == 0:
                rows = np.empty((len(samples), *features.shape[1:]), dtype=np.float32)
            rows[done : done + count] = features
            done += count
            bar.advance(count)
    return rows
