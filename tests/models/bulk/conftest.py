"""A small model, and shards of small chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nearkin.models import Encoder
from nearkin.models.bulk import embed_shards


class Counting:
    """An encoder that counts the items it is given, and may stop after some calls."""

    def __init__(self, model, calls: int = 10**9) -> None:
        self.encoder, self.calls, self.items = Encoder(model), calls, 0

    def encode(self, items, **options) -> np.ndarray:
        if not self.calls:
            raise RuntimeError("stopped")
        self.calls -= 1
        self.items += len(items)
        return self.encoder.encode(items, **options)


@pytest.fixture
def model(make_embedder):
    return make_embedder()


@pytest.fixture
def counting() -> type[Counting]:
    return Counting


@pytest.fixture
def embed():
    """`embed_shards` with batches of 4 items and chunks of 8."""

    def run(model, dataset, out, **options):
        return embed_shards(model, dataset, out, **{"batch_size": 4, "chunk": 8, "progress": False, **options})

    return run


@pytest.fixture
def tree():
    """The files of a folder and what is in them."""

    def read(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}

    return read
