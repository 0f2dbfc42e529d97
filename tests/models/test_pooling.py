from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.data import ArrayStore, Dataset, Manifest
from nearkin.errors import ModelError, UnknownNameError
from nearkin.models import Embedder, ModelSection, build_embedder, list_poolings, make_pooling
from nearkin.models.cache import FeatureCache, cache_point
from nearkin.models.explanations import contributions, grad_cam, position_weights, usual_explanation
from nearkin.models.pooling import GeneralisedMeanPooling
from nearkin.models.section import AttentionSection


def random_map(seed: int = 0, shape=(3, 5, 4, 6), positive: bool = True) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.abs() + 0.01 if positive else x


@pytest.mark.parametrize("name", ["gap", "gmp", "gap+gmp", "gem", "stats"])
def test_shapes_and_gradients(name):
    pooling = make_pooling(name, 5).double()
    x = random_map()
    assert pooling(x).shape == (3, pooling.out_channels)
    assert pooling.has_parameters == (name == "gem")
    assert torch.autograd.gradcheck(pooling, x.requires_grad_())


@pytest.mark.parametrize(
    ("name", "naive"),
    [
        ("gap", lambda v: [v.mean()]),
        ("gmp", lambda v: [v.max()]),
        ("gap+gmp", lambda v: [v.mean() + v.max()]),
        ("gem", lambda v: [np.maximum(v, 1e-6).__pow__(3).mean() ** (1 / 3)]),
        ("stats", lambda v: [v.mean(), np.sqrt(v.var() + 1e-6)]),
    ],
)
def test_against_loops(name, naive):
    x = random_map(positive=False)
    found = make_pooling(name, 5).double()(x).detach().numpy()
    for image in range(3):
        parts = np.array([naive(x[image, channel].numpy().ravel()) for channel in range(5)])
        np.testing.assert_allclose(found[image], parts.T.ravel(), rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_gem_lies_between_average_and_maximum(seed):
    x = random_map(seed)
    average, maximum = make_pooling("gap", 5)(x), make_pooling("gmp", 5)(x)
    torch.testing.assert_close(make_pooling("gem", 5, p=1.0).double()(x), average)
    torch.testing.assert_close(make_pooling("gem", 5, p=2000.0).double()(x), maximum, rtol=5e-3, atol=0)
    middle = make_pooling("gem", 5, p=3.0).double()(x)
    assert ((average <= middle) & (middle <= maximum)).all()


def test_gem_survives_what_powers_would_overflow():
    pooling = make_pooling("gem", 1, p=50.0)
    x = torch.tensor([1e3, 1.0, 1e-5, 0.0]).view(1, 1, 2, 2).requires_grad_()
    pooled = pooling(x)
    pooled.sum().backward()
    torch.testing.assert_close(pooled, torch.tensor([[1e3 * 0.25 ** (1 / 50)]]))
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(pooling.p.grad)


def test_gem_exponent_learns_only_if_asked():
    assert make_pooling("gem", 5).has_parameters
    fixed = make_pooling("gem", 5, learn_p=False, p=4.0)
    assert not fixed.has_parameters
    assert fixed.state_dict()["p"] == 4.0


def test_what_cannot_be_built_says_why():
    with pytest.raises(UnknownNameError, match="gep"):
        make_pooling("gep", 4)
    with pytest.raises(ModelError, match=r"\bq\b"):
        make_pooling("gem", 4, q=2)
    with pytest.raises(ModelError, match=r"\bp\b"):
        make_pooling("gem", 4, p=0.0)
    for wrong in ({"p": 0.0}, {"p": float("nan")}, {"eps": float("inf")}):
        with pytest.raises(ModelError, match=next(iter(wrong))):
            GeneralisedMeanPooling(4, **wrong)
    assert {"gap", "gap+gmp", "gem", "gmp", "gsp", "gsp+gmp", "stats"} <= set(list_poolings())


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
