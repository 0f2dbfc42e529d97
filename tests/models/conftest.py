"""Small models and data for the tests of this folder."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.data import ArrayStore, Dataset, Manifest
from nearkin.models import Embedder, ModelSection, build_embedder


@pytest.fixture
def make_embedder():
    """A small Conv4 embedder; keyword arguments go into the section."""

    def make(seed: int = 0, **changes) -> Embedder:
        settings = {"backbone": "conv4", "size": 16, "dimension": 8} | changes
        embedder = build_embedder(ModelSection(**settings), seed=seed)
        shake_batch_norm(embedder, seed)
        return embedder

    return make


@pytest.fixture(scope="session")
def shake():
    """Gives the batch norms of a network statistics and weights that matter."""
    return shake_batch_norm


@pytest.fixture
def make_images():
    """A data set of random colour images of different sizes."""

    def make(count: int = 10, seed: int = 0, sides: tuple[int, int] = (18, 30)) -> Dataset:
        rng = np.random.default_rng(seed)
        names = [f"{i}.png" for i in range(count)]
        pixels = {name: rng.integers(0, 256, (*rng.integers(*sides, 2), 3), dtype=np.uint8) for name in names}
        manifest = Manifest.from_rows(names, [f"class {i % 3}" for i in range(count)])
        return Dataset(manifest, ArrayStore(pixels), name="random")

    return make


def shake_batch_norm(module: torch.nn.Module, seed: int = 0) -> None:
    """Give batch norms statistics and weights that matter, as after training."""
    generator = torch.Generator().manual_seed(seed)
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.normal_(0.0, 0.2, generator=generator)
            layer.running_var.uniform_(0.5, 2.0, generator=generator)
            layer.weight.data.uniform_(0.5, 1.5, generator=generator)
            layer.bias.data.normal_(0.0, 0.2, generator=generator)
