"""Embeddings of corrupted images, kept on disk: a long audit that is stopped goes on where it was."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from nearkin.data.corruptions import CorruptedDataset
from nearkin.data.dataset import Dataset
from nearkin.models import Embedder, Encoder
from nearkin.storage import replacing

_SIDE = 224
"""Pixels of the short side that the severities are made for: larger images are reduced to it first."""

_FORMAT = "nearkin.corrupted 1"


class CorruptedEncoder:
    """A model on corrupted images of one data set.

    Args:
        embedder: the model.
        dataset: the images.
        directory: where embeddings are kept; their name is a hash of model, images and corruption.
    """

    def __init__(self, embedder: Embedder, dataset: Dataset, directory: Path) -> None:
        self.embedder = embedder
        self.dataset = dataset
        self.directory = directory
        self._encoder: Encoder | None = None
        self._fingerprint = ""

    def __call__(self, name: str, severity: int, rows: np.ndarray) -> np.ndarray:
        """Embeddings (r, d) of the items `rows` (r,), corrupted by `name` at a severity from 1 to 5."""
        if self._encoder is None:
            self._encoder, self._fingerprint = Encoder(self.embedder), self.embedder.fingerprint()
        side = max(_SIDE, self.embedder.spec.size)
        part = CorruptedDataset(self.dataset.select(rows), name, severity, side=side)
        key = hashlib.sha256(f"{_FORMAT} {self._fingerprint} {part.fingerprint()}".encode()).hexdigest()
        path = self.directory / f"{key[:32]}.npy"
        if not path.exists():
            found = self._encoder.encode(part, progress=False)
            with replacing(path) as temporary, open(temporary, "wb") as handle:
                np.save(handle, found)
        return np.load(path)
