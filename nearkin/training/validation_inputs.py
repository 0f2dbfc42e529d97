"""Validation items as a model takes them, decoded once: every validation looks at the same pixels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nearkin.data.dataset import Dataset
from nearkin.data.inputs import InputSpec
from nearkin.models import Embedder
from nearkin.models.items import ItemLoader, open_items

_MOST_BYTES = 512 * 2**20
_BATCH, _WORKERS = 32, 2


class ValidationInputs:
    """Plain views of a data set, kept in memory after the first use if they are not too large for it.

    Args:
        dataset: the validation items.
        spec: what the model eats.
        most: bytes that may be kept; larger data is decoded anew each time.
    """

    def __init__(self, dataset: Dataset, spec: InputSpec, most: int = _MOST_BYTES) -> None:
        self.dataset = dataset
        self.spec = spec
        self.most = most
        self._items = open_items(dataset, spec)
        self._samples: Tensor | None = None
        self._tried = False

    def encode(self, embedder: Embedder) -> np.ndarray:
        """Points of the space (n, d), the same bits that `embedder.encode` gives for the data set.

        Args:
            embedder: a model that eats what `spec` says, with the weights of the moment.
        """
        if not self._tried:
            self._tried = True  # what is too large once is so always
            self._samples = self._decoded() if self._fits() else None
        return embedder.encode(self.dataset if self._samples is None else self._samples, progress=False)

    def _fits(self) -> bool:
        if not len(self.dataset):
            return False
        # All views have one size, for an image as for a recording.
        return len(self.dataset) * ItemLoader(self.spec).of_dataset(self.dataset, 0).nbytes <= self.most

    def _decoded(self) -> Tensor:
        """All samples (n, C, H, W), uint8 or log-mel values, the channels innermost in memory as batches have them."""
        samples, done = torch.empty(0), 0
        for batch in self._items.batches(_BATCH, _WORKERS):
            inner = batch.movedim(1, -1)
            if not done:
                samples = inner.new_empty(len(self.dataset), *inner.shape[1:])
            samples[done : done + len(inner)] = inner
            done += len(inner)
        return samples.movedim(-1, 1)
