"""Where a model looks: by hand where that is possible, by what must hold where it is not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nearkin.data.inputs import InputSpec
from nearkin.errors import ModelError, UnknownNameError
from nearkin.models import Embedder, make_pooling
from nearkin.models.backbones import Backbone
from nearkin.models.explanations import (
    contributions,
    explanations,
    grad_cam,
    position_weights,
    prototype_shares,
    usual_explanation,
)
from nearkin.models.pooling import Pooling, list_poolings, poolings
from nearkin.spaces import Sphere

CHANNELS = 8


def model(pooling: str | Pooling, dimension: int | None = 5, stage: nn.Module | None = None, **parameters) -> Embedder:
    """A model whose map is its input, unless a stage is given."""
    spec = InputSpec(channels=3, size=6, mean=(0.0,) * 3, std=(1.0,) * 3)
    backbone = Backbone(spec, {"only": stage or nn.Identity()}, {"only": CHANNELS})
    torch.manual_seed(0)
    made = make_pooling(pooling, CHANNELS, **parameters) if isinstance(pooling, str) else pooling
    head = nn.Identity() if dimension is None else nn.Linear(made.out_channels, dimension)
    return Embedder(backbone, made, head, Sphere()).eval()


def positive_maps(batch=2, height=4, width=6, seed=0):
    return torch.rand(batch, CHANNELS, height, width, generator=torch.Generator().manual_seed(seed)) + 0.1


def test_contributions_of_average_pooling_are_those_computed_by_hand():
    embedder = model("gap", stage=nn.Conv2d(3, CHANNELS, 3, padding=1))
    x = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(1))
    found = contributions(embedder, x)
    with torch.no_grad():
        features, raw = embedder.local_features(x), embedder(x)
        own_way = raw / raw.norm(dim=1, keepdim=True)
        for item in range(2):
            for row in range(4):
                for column in range(6):
                    by_hand = embedder.head.weight @ features[item, :, row, column] @ own_way[item] / 24
                    assert found[item, row, column].item() == pytest.approx(by_hand.item(), abs=1e-6)


def test_the_maximum_is_due_to_where_it_is():
    embedder = model("gmp", dimension=None)
    x = torch.zeros(1, CHANNELS, 2, 2)
    x[0, 0, 0, 1], x[0, 1, 1, 0], x[0, 2, 1, 0] = 3.0, 4.0, 12.0
    found = contributions(embedder, x)[0]
    assert torch.allclose(found, torch.tensor([[0.0, 9.0], [160.0, 0.0]]) / 13)


@pytest.mark.parametrize("pooling", ["gap", "gmp", "gap+gmp", "gem"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), height=st.integers(1, 5), width=st.integers(1, 5))
def test_contributions_add_up_to_the_length_less_the_bias(pooling, seed, height, width):
    embedder = model(pooling).double()
    x = positive_maps(2, height, width, seed).double()
    raw = embedder(x).detach()
    own_way = raw / raw.norm(dim=1, keepdim=True)
    expected = raw.norm(dim=1) - own_way @ embedder.head.bias.detach()
    assert torch.allclose(contributions(embedder, x).sum((1, 2)), expected, atol=1e-9)


@pytest.mark.parametrize("pooling", [name for name in list_poolings() if not poolings.get(name).needs_map_size])
def test_every_pooling_can_be_explained_even_on_a_map_of_zeros(pooling):
    embedder = model(pooling)
    for x in (positive_maps(), torch.zeros(1, CHANNELS, 4, 4)):
        found = contributions(embedder, x)
        assert found.shape == (len(x), *x.shape[2:])
        assert torch.isfinite(found).all()
        assert usual_explanation(embedder, x) in ("weights", "contribution")


@pytest.mark.parametrize("pooling", ["gap", "gsp"])
def test_weights_sum_to_one(pooling):
    weights = position_weights(model(pooling), positive_maps())
    assert weights.shape == (2, 4, 6)
    assert torch.allclose(weights.sum((1, 2)), torch.ones(2), atol=1e-5)


def test_average_pooling_weighs_all_positions_alike():
    assert torch.allclose(position_weights(model("gap"), positive_maps()), torch.full((2, 4, 6), 1 / 24))


def test_the_shares_of_prototypes_are_the_weights_divided():
    embedder, x = model("gsp", prototypes=7), positive_maps()
    shares = prototype_shares(embedder, x)
    assert shares.shape == (2, 7, 4, 6)
    assert torch.allclose(shares.sum(1), position_weights(embedder, x), atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "parameters", "expected"),
    [
        ("gap", {}, "contribution"),
        ("gmp", {}, "contribution"),
        ("gsp", {"budget": 0.2}, "weights"),
        ("gsp", {"budget": 1.0}, "contribution"),
    ],
)
def test_weights_are_shown_where_they_tell_something(pooling, parameters, expected):
    assert usual_explanation(model(pooling, **parameters), positive_maps()) == expected


def test_a_pooling_without_weights_names_what_to_ask_for():
    with pytest.raises(ModelError, match="contribution"):
        position_weights(model("gmp"), positive_maps())
    with pytest.raises(ModelError, match="gsp"):
        prototype_shares(model("gap"), positive_maps())


def test_a_pooling_without_gradient_is_one_sentence():
    class Detached(Pooling):
        def forward(self, features):
            return features.detach().mean((2, 3))

    for dimension in (None, 5):
        for kind in (contributions, grad_cam):
            with pytest.raises(ModelError, match="Detached"):
                kind(model(Detached(CHANNELS), dimension=dimension), positive_maps())


@pytest.mark.parametrize("dimension", [5, None])
def test_a_map_of_netvlad_is_what_leaving_out_changes_and_no_rounding(dimension, monkeypatch):
    embedder, x = model("netvlad", dimension, clusters=3), positive_maps()
    single, double = contributions(embedder, x), contributions(embedder.double(), x.double())
    assert (double.abs().amax((1, 2)) > 1e-5).all()
    assert torch.allclose(single.double(), double, rtol=0.02, atol=1e-6)
    with torch.no_grad():
        raw = embedder(x.double())
        own_way = raw / raw.norm(dim=1, keepdim=True)
        for place in range(24):
            rest = torch.cat([x.flatten(2)[:, :, :place], x.flatten(2)[:, :, place + 1 :]], dim=2).double()
            without = embedder.head(embedder.pooling(rest.unsqueeze(3)))
            expected = ((raw - without) * own_way).sum(1)
            assert torch.allclose(double.flatten(1)[:, place], expected, atol=1e-9)
    monkeypatch.setattr("nearkin.models.explanations._MOST_VALUES", 2 * CHANNELS * 23 * 5)
    assert torch.allclose(contributions(embedder, x.double()), double, atol=1e-12)


def test_the_only_position_of_netvlad_has_the_whole_embedding():
    embedder, x = model("netvlad", clusters=3), positive_maps(2, 1, 1)
    with torch.no_grad():
        raw = embedder(x)
        expected = ((raw - embedder.head.bias) * raw / raw.norm(dim=1, keepdim=True)).sum(1)
    assert torch.allclose(contributions(embedder, x).flatten(), expected, atol=1e-6)


def test_rounding_is_no_contribution():
    class Directions(Pooling):
        def forward(self, features):
            return nn.functional.normalize(features, dim=1).mean((2, 3))

    x = positive_maps()
    assert not contributions(model(Directions(CHANNELS), dimension=None), x).any()
    same = x[:, :, :1, :1].expand(-1, -1, 4, 6)
    assert not contributions(model("netvlad", clusters=3, alpha=1.0), same).any()
    assert contributions(model("gap", dimension=None), x * 1e-6).any()


def test_every_part_gets_its_own_mode_back():
    embedder = model("gem", stage=nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1), nn.BatchNorm2d(CHANNELS)))
    embedder.train()
    embedder.pooling.eval()
    embedder.backbone.stages["only"][1].eval()
    before = [module.training for module in embedder.modules()]
    contributions(embedder, positive_maps())
    assert [module.training for module in embedder.modules()] == before


def test_a_model_is_left_as_it_was():
    embedder = model("gem", stage=nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1), nn.BatchNorm2d(CHANNELS)))
    x = positive_maps()
    expected = contributions(embedder, x)
    statistics = embedder.backbone.stages["only"][1].running_mean.clone()
    embedder.train()
    assert torch.allclose(contributions(embedder, x), expected)
    assert embedder.training
    assert torch.equal(embedder.backbone.stages["only"][1].running_mean, statistics)
    assert all(parameter.grad is None for parameter in embedder.parameters())


def test_contributions_can_be_asked_for_in_inference_mode_and_of_a_frozen_model():
    embedder, x = model("gap"), positive_maps()
    expected = contributions(embedder, x)
    embedder.requires_grad_(False)
    with torch.inference_mode():
        assert torch.allclose(contributions(embedder, x + 0), expected)


def test_kinds_are_found_by_name():
    assert explanations.names() == ["attention", "contribution", "grad-cam", "prototypes", "weights"]
    with pytest.raises(UnknownNameError, match="weights"):
        explanations.get("weight")


def test_grad_cam_of_average_pooling_is_the_positive_part_of_the_contribution():
    embedder = model("gap", stage=nn.Conv2d(3, CHANNELS, 3, padding=1))
    x = torch.randn(4, 3, 5, 6, generator=torch.Generator().manual_seed(2))
    found = grad_cam(embedder, x)
    with torch.no_grad():
        features, raw = embedder.local_features(x), embedder(x)
        directions = embedder.head.weight.T @ (raw / raw.norm(dim=1, keepdim=True)).T  # (C, B)
        expected = torch.einsum("bchw,cb->bhw", features, directions / 30).relu()
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(found, contributions(embedder, x).relu(), atol=1e-6)
    assert (found == 0).any()
    assert (found > 0).any()


@pytest.mark.parametrize("pooling", [name for name in list_poolings() if not poolings.get(name).needs_map_size])
def test_grad_cam_is_that_of_a_loop_over_items_and_channels(pooling):
    embedder = model(pooling).double()
    x = (positive_maps() + torch.rand(2, CHANNELS, 4, 6, generator=torch.Generator().manual_seed(3))).double()
    found = grad_cam(embedder, x)
    for item in range(2):
        features = x[item : item + 1].clone().requires_grad_()
        raw = embedder.head(embedder.pooling(features))[0]
        (raw @ (raw / raw.norm()).detach()).backward()
        by_hand = torch.zeros(4, 6, dtype=torch.float64)
        for channel in range(CHANNELS):
            by_hand += features.grad[0, channel].mean() * x[item, channel]
        assert torch.allclose(found[item], by_hand.clamp_min(0), atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), factor=st.floats(0.01, 100))
def test_grad_cam_grows_with_the_map_and_moves_with_its_positions(seed, factor):
    embedder = model("gap+gmp").double()
    nn.init.zeros_(embedder.head.bias)
    x = positive_maps(2, 3, 4, seed).double()
    found = grad_cam(embedder, x)
    assert torch.allclose(grad_cam(embedder, factor * x), factor * found, rtol=1e-6)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
    moved = x.flatten(2)[:, :, order].view_as(x)
    assert torch.allclose(grad_cam(embedder, moved), found.flatten(1)[:, order].view_as(found))
    assert torch.allclose(grad_cam(embedder, x[:1]), found[:1])  # no item depends on the others


@pytest.mark.parametrize("kind", [contributions, grad_cam])
def test_an_embedding_of_zero_is_due_to_nothing(kind):
    embedder = model("gap")
    with torch.no_grad():
        embedder.head.weight.zero_(), embedder.head.bias.zero_()
    assert not kind(embedder, positive_maps()).any()


def test_grad_cam_shows_channels_where_nothing_was_taken_and_contributions_do_not():
    embedder = model("gmp", dimension=None)
    x = torch.zeros(1, CHANNELS, 1, 3)
    x[0, 0] = torch.tensor([4.0, 3.0, 0.0])
    assert torch.allclose(contributions(embedder, x)[0, 0], torch.tensor([4.0, 0.0, 0.0]))
    assert torch.allclose(grad_cam(embedder, x)[0, 0], torch.tensor([4.0, 3.0, 0.0]) / 3)


def test_grad_cam_leaves_the_model_as_it_was_and_works_in_inference_mode():
    embedder, x = model("gem"), positive_maps()
    expected = grad_cam(embedder, x)
    embedder.train()
    embedder.requires_grad_(False)
    with torch.inference_mode():
        assert torch.allclose(grad_cam(embedder, x + 0), expected)
    assert embedder.training
    assert all(parameter.grad is None for parameter in embedder.parameters())


def test_a_model_without_attention_names_what_to_ask_for():
    with pytest.raises(ModelError, match=r"model\.attention"):
        explanations.get("attention")(model("gap"), positive_maps())
