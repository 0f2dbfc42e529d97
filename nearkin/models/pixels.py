"""What a model sees of images: pixels of its input size, which attacks change and geometry compares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nearkin.data.dataset import Dataset
from nearkin.models.embedder import Embedder
from nearkin.models.items import open_items

_BATCH = 64


class PixelReader:
    """Gives items of a data set as a model eats them, before they are normalised.

    Args:
        embedder: the model.
        dataset: the images.
    """

    def __init__(self, embedder: Embedder, dataset: Dataset) -> None:
        self.embedder = embedder
        self.dataset = dataset

    def __call__(self, rows: Sequence[int] | np.ndarray) -> Tensor:
        """Pixels float32 (r, C, H, W) in [0, 1] of the items `rows` (r,)."""
        samples = open_items(self.dataset.select(np.asarray(rows)), self.embedder.spec)
        batches = [batch if batch.is_floating_point() else batch / 255.0 for batch in samples.batches(_BATCH, 1)]
        return torch.cat([batch.float() for batch in batches])
