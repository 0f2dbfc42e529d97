"""Flattening: its order by hand, its size from the model's input, and everything behind a pooling that must go on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.data import ArrayStore, Dataset, Manifest
from nearkin.errors import ModelError
from nearkin.models import Embedder, ModelSection, build_embedder, make_pooling
from nearkin.models.cache import FeatureCache, cache_point
from nearkin.models.explanations import contributions, grad_cam, position_weights, usual_explanation
from nearkin.models.section import AttentionSection


def flat(**settings_):
    chosen = {"backbone": "conv4", "size": 32, "pooling": "flatten", "dimension": None, "space": "euclidean"}
    return build_embedder(ModelSection(**chosen | settings_), seed=3)


def images(count=4, size=40):
    pixels = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    names = [f"{number}.png" for number in range(count)]
    return Dataset(Manifest.from_rows(names, ["one", "other"] * (count // 2)), ArrayStore(pixels, names))


@settings(max_examples=25, deadline=None)
@given(batch=st.integers(1, 3), channels=st.integers(1, 4), height=st.integers(1, 4), width=st.integers(1, 4))
def test_channel_by_channel_row_by_row_whatever_the_memory_format(batch, channels, height, width):
    pooling = make_pooling("flatten", channels)
    pooling.set_map_size(height, width)
    x = torch.rand(batch, channels, height, width)
    by_hand = [
        [x[b, c, h, w] for c in range(channels) for h in range(height) for w in range(width)] for b in range(batch)
    ]
    expected = torch.tensor(by_hand)
    assert pooling.out_channels == channels * height * width
    assert torch.equal(pooling(x), expected)
    assert torch.equal(pooling(x.contiguous(memory_format=torch.channels_last)), expected)


@pytest.mark.parametrize(("size", "values"), [(84, 1600), (28, 64), (33, 256)])
def test_the_size_is_that_of_prototypical_networks(size, values):
    embedder = flat(size=size)
    assert (embedder.dimension, embedder.feature_size) == (values, values)
    assert embedder(torch.rand(2, 3, size, size)).shape == (2, values)
    assert embedder.training
    assert embedder.backbone.training


def test_finding_the_size_leaves_weights_and_statistics_as_they_are():
    flattened, averaged = flat().backbone.state_dict(), flat(pooling="gap").backbone.state_dict()
    assert all(torch.equal(flattened[name], averaged[name]) for name in averaged)


def test_the_embedding_is_the_last_map():
    embedder = flat().eval()
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(embedder(x), embedder.backbone(x).flatten(1))
        assert embedder.local_features(x).shape == (2, 64, 2, 2)


@pytest.mark.parametrize("dimension", [None, 7])
def test_it_is_saved_and_loaded(dimension, tmp_path):
    embedder = flat(dimension=dimension).eval()
    embedder.save(tmp_path / "model.safetensors")
    loaded = Embedder.load(tmp_path / "model.safetensors")
    assert loaded.dimension == (256 if dimension is None else dimension)
    assert loaded.fingerprint() == embedder.fingerprint()
    np.testing.assert_array_equal(loaded.encode(images(), progress=False), embedder.encode(images(), progress=False))


def test_a_convolution_before_it_decides_the_channels():
    assert flat(local_dimension=5).dimension == 5 * 4


@pytest.mark.parametrize("score", ["additive", "multiplicative", "average"])
def test_earlier_stages_attend_to_the_flat_vector(score):
    embedder = flat(attention=AttentionSection(score=score)).eval()
    assert embedder.feature_size == 3 * 64 + 256
    assert embedder(torch.rand(2, 3, 32, 32)).shape == (2, 3 * 64 + 256)


@pytest.mark.parametrize("attention", [None, AttentionSection()])
def test_it_is_cached_as_a_vector(attention, tmp_path):
    embedder = flat(freeze="all", dimension=6, attention=attention).eval()
    assert cache_point(embedder) == "pooling"
    cache = FeatureCache.build(embedder, images(), at="pooling", directory=tmp_path, progress=False)
    assert tuple(cache.layout["pooling"]) == (256,)
    found = cache.encode(embedder, np.arange(4))
    np.testing.assert_allclose(found, embedder.encode(images(), progress=False), rtol=1e-4, atol=1e-5)


def test_contributions_are_the_squares_that_make_the_length():
    embedder = flat().eval()
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        local, raw = embedder.local_features(x), embedder(x)
    found = contributions(embedder, x)
    assert torch.allclose(found, local.square().sum(1) / raw.norm(dim=1)[:, None, None], atol=1e-5)
    assert torch.allclose(found.sum((1, 2)), raw.norm(dim=1), atol=1e-4)
    assert grad_cam(embedder, x).shape == (2, 2, 2)
    assert usual_explanation(embedder, x) == "contribution"
    with pytest.raises(ModelError, match="contribution"):
        position_weights(embedder, x)


def test_maps_of_another_size_are_refused():
    with pytest.raises(ModelError, match="64 x 3 x 2"):
        flat()(torch.rand(1, 3, 48, 32))
    with pytest.raises(ModelError, match="3 x 1 x 1"):
        make_pooling("flatten", 3)(torch.rand(1, 3, 2, 2))


def test_audio_is_refused():
    with pytest.raises(ModelError, match=r"model\.pooling"):
        build_embedder(ModelSection(backbone="tdnn", pooling="flatten"))


def test_it_takes_no_parameters():
    with pytest.raises(ModelError, match="side"):
        ModelSection(pooling="flatten", pooling_parameters={"side": 3})
