"""Where a model with attention looks: its own weights, and what its last map does beside the earlier ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nearkin.models import Embedder, ModelSection, build_embedder
from nearkin.models.explanations import (
    contributions,
    grad_cam,
    position_weights,
    prototype_shares,
    stage_attention,
    usual_explanation,
)

FORMS = [
    {},
    {"score": "multiplicative"},
    {"score": "multi-dimensional", "matrices": 2, "hidden": 5},
    {"matrices": 2, "fusion": "sum"},
    {"append": False},
]
EVEN = {"score": "average"}


def model(pooling="gap", dimension: int | None = 6, spread=1.0, parameters=None, **attention) -> Embedder:
    """Four small stages on 32 x 32 pixels, of which two are attended to with random weights."""
    section = ModelSection(
        backbone="conv4",
        size=32,
        dimension=dimension,
        pooling=pooling,
        pooling_parameters=parameters or {},
        attention={"stages": ["block2", "block3"], **attention},
    )
    embedder = build_embedder(section).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in embedder.attention.parameters():
            parameter.normal_(0, spread / parameter.shape[1] ** 0.5, generator=generator)
    return embedder.double()


def images(batch=2, seed=0):
    return torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("form", FORMS)
def test_attention_is_that_of_the_models_own_maps_and_sums_to_one(form):
    embedder, x = model(**form), images()
    found = stage_attention(embedder, x)
    assert {stage: tuple(values.shape) for stage, values in found.items()} == {"block2": (2, 8, 8), "block3": (2, 4, 4)}
    with torch.no_grad():
        block2 = embedder.backbone(x, stop="block2")
        block3 = embedder.backbone.stages["block3"](block2)
        u = embedder.backbone.stages["block4"](block3).mean((2, 3))
        expected = embedder.attention.weights({"block2": block2, "block3": block3}, u)
    for stage, values in found.items():
        assert torch.allclose(values, expected[stage], atol=1e-12)
        assert torch.allclose(values.sum((1, 2)), torch.ones(2).double())
        assert values.std() > 0.01 / values[0].numel()


def _by_hand(embedder, x):
    """The gradient (B, C, h, w) of the embedding in its own direction, and the map, written out item by item."""
    slopes, locals_ = [], []
    for item in x.split(1):
        with torch.no_grad():
            local, attended = embedder.maps(item)
        local = local.clone().requires_grad_()
        raw = embedder.head(embedder.attention(attended, embedder.pooling(local)))[0]
        slopes.append(torch.autograd.grad(raw @ (raw / raw.norm()).detach(), local)[0])
        locals_.append(local.detach())
    return torch.cat(slopes), torch.cat(locals_)


@pytest.mark.parametrize("pooling", ["gap", "gmp", "gem", "gsp"])
@pytest.mark.parametrize("form", [*FORMS, EVEN])
def test_contributions_and_grad_cam_hold_the_earlier_maps_fixed(form, pooling):
    embedder, x = model(pooling, **form), images()
    slope, local = _by_hand(embedder, x)
    assert torch.allclose(contributions(embedder, x), (slope * local).sum(1), atol=1e-10)
    cam = torch.einsum("bc,bchw->bhw", slope.mean((2, 3)), local).clamp_min(0)
    assert torch.allclose(grad_cam(embedder, x), cam, atol=1e-10)
    assert contributions(embedder, x).any()


def test_contributions_of_even_attention_are_those_of_the_pooled_vector():
    embedder, x = model(spread=0.0), images()
    with torch.no_grad():
        raw, local = embedder(x), embedder.local_features(x)
        towards = (raw / raw.norm(dim=1, keepdim=True)) @ embedder.head.weight[:, -local.shape[1] :]
        expected = torch.einsum("bchw,bc->bhw", local, towards) / local[0, 0].numel()
    assert torch.allclose(contributions(embedder, x), expected, atol=1e-10)


@pytest.mark.parametrize("chunk", [1, 2**24])
def test_netvlad_leaves_positions_out_beside_attention(chunk, monkeypatch):
    monkeypatch.setattr("nearkin.models.explanations._MOST_VALUES", chunk)
    embedder, x = model("netvlad", parameters={"clusters": 3}), images()
    found = contributions(embedder, x)
    with torch.no_grad():
        local, attended = embedder.maps(x)
        raw = embedder(x)
        own_way = raw / raw.norm(dim=1, keepdim=True)
        for place in range(local[0, 0].numel()):
            kept = [other for other in range(local[0, 0].numel()) if other != place]
            u = embedder.pooling(local.flatten(2)[:, :, kept].unsqueeze(3))
            without = embedder.head(embedder.attention(attended, u))
            assert torch.allclose(found.flatten(1)[:, place], ((raw - without) * own_way).sum(1), atol=1e-9)


def test_the_only_position_of_netvlad_is_left_out_beside_attention():
    embedder = model("netvlad", parameters={"clusters": 3})
    embedder.backbone.stages["block4"] = nn.Sequential(embedder.backbone.stages["block4"], nn.AdaptiveAvgPool2d(1))
    x = images()
    with torch.no_grad():
        attended = embedder.maps(x)[1]
        nothing = torch.zeros(2, embedder.pooling.out_channels).double()
        raw, without = embedder(x), embedder.head(embedder.attention(attended, nothing))
        expected = ((raw - without) * raw / raw.norm(dim=1, keepdim=True)).sum(1)
    assert torch.allclose(contributions(embedder, x).flatten(), expected, atol=1e-9)


def test_the_weights_of_the_pooling_are_those_of_the_last_map():
    embedder, x = model("gsp", parameters={"prototypes": 5}), images()
    with torch.no_grad():
        expected = embedder.pooling.weights(embedder.local_features(x))
    assert torch.allclose(position_weights(embedder, x), expected)
    assert torch.allclose(prototype_shares(embedder, x).sum(1), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("pooling", "spread", "expected"),
    [("gap", 1.0, "attention"), ("gap", 0.0, "contribution"), ("gmp", 0.0, "contribution"), ("gsp", 0.0, "weights")],
)
def test_attention_is_shown_where_it_tells_something(pooling, spread, expected):
    parameters = {"budget": 0.2, "sharpness": 20} if pooling == "gsp" else {}
    assert usual_explanation(model(pooling, spread=spread, parameters=parameters), images()) == expected


def test_one_stage_that_differs_is_enough():
    embedder = model(spread=0.0)
    nn.init.normal_(embedder.attention.scores["block3"].score.weight)
    nn.init.normal_(embedder.attention.scores["block3"].inner.weight)
    assert usual_explanation(embedder, images()) == "attention"


@pytest.mark.parametrize("score", ["additive", "multiplicative", "average"])
def test_a_last_vector_that_only_asks_for_averages_adds_nothing(score):
    embedder = model(spread=0.0, append=False, score=score)
    assert not grad_cam(embedder, images()).any()
    assert not contributions(embedder, images()).any()


@pytest.mark.parametrize("kind", [contributions, grad_cam, stage_attention])
def test_the_model_is_left_as_it_was_even_in_inference_mode(kind):
    embedder, x = model(), images()
    expected = kind(embedder, x)
    embedder.train()
    embedder.backbone.stages["block2"].eval()
    before = [module.training for module in embedder.modules()]
    with torch.inference_mode():
        found = kind(embedder, x + 0)
    assert [module.training for module in embedder.modules()] == before
    assert all(parameter.grad is None for parameter in embedder.parameters())
    if isinstance(found, dict):
        assert all(torch.allclose(found[stage], values) for stage, values in expected.items())
    else:
        assert torch.allclose(found, expected)
