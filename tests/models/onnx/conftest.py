"""Exporting takes a second a model: what several tests look at is made once."""

from __future__ import annotations

import pytest
import torch

from nearkin.models import Embedder, ModelSection, build_embedder
from nearkin.models.onnx.file import serialised

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test leaves anything in the user's cache, nor finds anything there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "nearkin" / "onnx"


@pytest.fixture(scope="session")
def shaken(shake):
    """Makes a fresh model like a trained one: its batch norms matter, and nothing that starts at zero is zero."""

    def make(embedder: Embedder, seed: int = 0) -> Embedder:
        shake(embedder, seed)
        generator = torch.Generator().manual_seed(seed)
        for parameter in embedder.parameters():
            if not parameter.data.any():
                parameter.data.normal_(0.0, 0.1, generator=generator)
        return embedder.eval()

    return make


@pytest.fixture(scope="session")
def small(shaken) -> Embedder:
    """Conv4 with GSP at 24 pixels, on the sphere."""
    return shaken(
        build_embedder(ModelSection(backbone="conv4", size=24, pooling="gsp", dimension=8, local_dimension=16))
    )


@pytest.fixture(scope="session")
def small_file(small):
    """Content and description of its file."""
    return serialised(small)
