from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from nearkin.errors import ModelError, RecipeError, UnknownNameError
from nearkin.models import CacheViews, ModelSection, build_embedder, pretrained_baseline


def test_forward_is_backbone_pooling_head(make_embedder):
    embedder = make_embedder(pooling="gem").eval()
    x = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        raw = embedder(x)
        torch.testing.assert_close(raw, embedder.head(embedder.pooling(embedder.backbone(x))))
        for stage, found in embedder.backbone.maps(x).items():
            torch.testing.assert_close(embedder(found, start=stage), raw)
            torch.testing.assert_close(embedder.features(x, stage), found)
        torch.testing.assert_close(embedder(embedder.features(x, "pooling"), start="pooling"), raw)
        torch.testing.assert_close(embedder.embed(x).norm(dim=1), torch.ones(3), atol=1e-3, rtol=0)
    assert raw.shape == (3, embedder.dimension) == (3, 8)


def test_without_a_head_the_pooled_features_are_the_embedding(make_embedder):
    embedder = make_embedder(dimension=None, space="euclidean").eval()
    x = torch.randn(3, 3, 16, 16)
    assert embedder.dimension == 64
    torch.testing.assert_close(embedder.embed(x), embedder.features(x, "pooling"))


def test_the_seed_decides_the_weights(make_embedder):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = make_embedder(seed=1), make_embedder(seed=1), make_embedder(seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()


def test_freezing_part_of_the_backbone(make_embedder):
    embedder = make_embedder(freeze="block2").train()
    assert embedder.frozen_stages == ["block1", "block2"]
    assert embedder.frozen_prefixes() == ["backbone.stages.block1.", "backbone.stages.block2."]
    before = copy.deepcopy(embedder.state_dict())
    optimiser = torch.optim.SGD([p for p in embedder.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        embedder(torch.randn(4, 3, 16, 16)).square().sum().backward()
        optimiser.step()
        embedder.train()
    changed = {name for name, value in embedder.state_dict().items() if not torch.equal(value, before[name])}
    expected = {name for name in before if not name.startswith(tuple(embedder.frozen_prefixes()))}
    assert changed == expected


def test_frozen_batch_norm_keeps_statistics_and_trains_weights(make_embedder):
    embedder = make_embedder(frozen_batch_norm=True).train()
    before = copy.deepcopy(embedder.state_dict())
    optimiser = torch.optim.SGD(embedder.parameters(), lr=0.1)
    embedder(torch.randn(4, 3, 16, 16)).square().sum().backward()
    optimiser.step()
    same = {name for name, value in embedder.state_dict().items() if torch.equal(value, before[name])}
    assert same == {name for name in before if "running" in name or "num_batches" in name}


def test_freezing_all_and_thawing_again(make_embedder):
    embedder = make_embedder(freeze="all").train()
    assert not any(p.requires_grad for p in embedder.backbone.parameters())
    assert all(p.requires_grad for p in embedder.head.parameters())
    assert not any(module.training for module in embedder.backbone.stages.values())
    assert embedder.head.training
    embedder.freeze(None)
    assert all(p.requires_grad for p in embedder.parameters())
    assert all(module.training for module in embedder.modules())
    with pytest.raises(UnknownNameError, match="block7"):
        embedder.freeze("block7")


def test_the_pretrained_baseline_has_pretrained_weights_and_no_head():
    section = ModelSection(backbone="efficientnet-lite0", pretrained=True, dimension=4, size=64, pooling="gem")
    embedder = build_embedder(section)
    reference = copy.deepcopy(embedder.backbone.state_dict())
    nn.init.zeros_(embedder.backbone.stages["stem"][0].weight)
    baseline = pretrained_baseline(embedder)
    assert baseline.dimension == 1280
    assert embedder.pretrained
    assert embedder.backbone_name == "efficientnet-lite0"
    assert all(torch.equal(value, reference[name]) for name, value in baseline.backbone.state_dict().items())


def test_a_section_that_cannot_work_is_refused():
    with pytest.raises(UnknownNameError, match="conv4"):
        ModelSection(backbone="conv-4")
    with pytest.raises(UnknownNameError, match="mean"):
        ModelSection(pooling="mean")
    with pytest.raises(ModelError, match="power"):
        ModelSection(pooling="gem", pooling_parameters={"power": 3})
    with pytest.raises(UnknownNameError, match="ball"):
        ModelSection(space="ball")
    with pytest.raises(ModelError, match="curvature"):
        ModelSection(space="sphere", space_parameters={"curvature": 1.0})
    with pytest.raises(RecipeError, match=r"model\.freeze"):
        ModelSection(cache=True)
    with pytest.raises(ValueError, match="crop_scale"):
        CacheViews(crop_scale=(0.9, 0.1))
    with pytest.raises(ValueError, match=r"\bback\b"):
        ModelSection(back="conv4")
    assert CacheViews(flip=True, crops=3).count == 5


def test_parts_built_by_hand_work_but_are_not_saved(make_embedder, tmp_path):
    embedder = make_embedder()
    embedder.head = nn.Sequential(nn.Linear(64, 8))
    assert embedder(torch.randn(2, 3, 16, 16)).shape == (2, 8)
    with pytest.raises(ModelError, match="head"):
        embedder.save(tmp_path / "model.safetensors")
