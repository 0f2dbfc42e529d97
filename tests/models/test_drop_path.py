"""Stochastic depth: which blocks, which samples, and by what the draws are decided."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from nearkin.errors import ModelError, RecipeError
from nearkin.models import Embedder, build_embedder
from nearkin.models.backbones.drop_path import DropPath, PathDraws, ResidualBlock, set_drop_path
from nearkin.models.section import ModelSection


class Doubled(ResidualBlock):
    """x + x, where nothing is dropped."""

    def forward(self, x):
        return self.dropped(x) + x


def chain(blocks: int, rate: float) -> tuple[nn.Sequential, PathDraws]:
    network = nn.Sequential(*(Doubled() for _ in range(blocks)))
    return network.train(), set_drop_path(network, rate, "chain")


def test_rates_rise_from_the_first_block_to_the_last():
    network, _ = chain(5, 0.4)
    rates = [0.0 if block.drop_path is None else block.drop_path.rate for block in network]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert chain(1, 0.4)[0][0].drop_path.rate == 0.4


def test_a_share_of_the_samples_is_dropped_and_the_mean_stays():
    draws = PathDraws()
    drop, counts = DropPath(0.25, 3, draws), []
    for step in range(400):
        draws.begin(0, step, 0, 32)
        found = drop(torch.ones(32, 1, 1, 1)).flatten()
        torch.testing.assert_close(found[found != 0], torch.full((int((found != 0).sum()),), 4 / 3))
        counts.append(int((found == 0).sum()))
    assert np.mean(counts) / 32 == pytest.approx(0.25, abs=0.02)


def test_seed_step_and_block_decide():
    def found(seed=1, step=1, block=1):
        draws = PathDraws()
        draws.begin(seed, step, 0, 64)
        return DropPath(0.5, block, draws)(torch.ones(64, 1, 1, 1)).flatten().tolist()

    torch.manual_seed(0)
    first = found()
    torch.manual_seed(1)
    assert first == found()
    assert first not in (found(seed=2), found(step=2), found(block=2))


@pytest.mark.parametrize("size", [1, 5, 12])
def test_parts_processes_and_views_drop_what_the_whole_batch_does(size):
    network, draws = chain(4, 0.7)
    batch = torch.rand(12, 2, 1, 1)
    draws.begin(3, 7, 0, 12)
    wanted = network(batch)
    assert not torch.equal(wanted, network.eval()(batch))
    network.train()
    parts = []
    for first in range(0, 12, size):
        draws.first = first
        parts.append(network(batch[first : first + size]))
    assert torch.equal(torch.cat(parts), wanted)
    halves = []
    for rank in (0, 1):
        draws.begin(3, 7, 6 * rank, 6)
        halves.append(network(batch[6 * rank : 6 * rank + 6]))
    assert torch.equal(torch.cat(halves), wanted)
    draws.begin(3, 7, 0, 12)
    assert torch.equal(network(torch.cat([batch, batch])), torch.cat([wanted, wanted]))


@pytest.mark.parametrize(("name", "blocks"), [("resnet20", 9), ("resnet18", 8), ("efficientnet-lite0", 9)])
def test_the_networks_have_residual_blocks_and_eval_is_as_without(name, blocks):
    section = ModelSection(backbone=name, size=32, dimension=4, drop_path=0.5)
    embedder = build_embedder(section)
    plain = build_embedder(section.model_copy(update={"drop_path": 0.0}))
    found = [block for block in embedder.modules() if isinstance(block, ResidualBlock) and block.residual]
    assert len(found) == blocks
    assert found[0].drop_path is None
    assert embedder.fingerprint() == plain.fingerprint()
    images = torch.rand(6, 3, 32, 32)
    assert torch.equal(embedder.eval()(images), plain.eval()(images))
    embedder.freeze(None, frozen_batch_norm=True)
    embedder.train()
    embedder.backbone.path_draws.begin(0, 1, 0, 6)
    dropped = embedder(images)
    assert not torch.allclose(dropped, plain(images))
    dropped.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in embedder.parameters() if p.grad is not None)


def test_a_dropped_block_is_its_shortcut():
    embedder = build_embedder(ModelSection(backbone="efficientnet-lite0", size=32, dimension=4, drop_path=0.9))
    embedder.freeze(None, frozen_batch_norm=True)
    embedder.train()
    block = [one for one in embedder.modules() if isinstance(one, ResidualBlock) and one.residual][-1]
    channels = block.project[0].out_channels
    x = torch.rand(16, channels, 2, 2)
    embedder.backbone.path_draws.begin(0, 1, 0, 16)
    found, whole = block(x), block.eval()(x)
    kept = np.array([not torch.equal(one, other) for one, other in zip(found, x, strict=True)])
    assert 0 < kept.sum() < 16
    torch.testing.assert_close(found[kept], x[kept] + (whole - x)[kept] / 0.1, rtol=1e-3, atol=1e-4)


def test_frozen_blocks_drop_nothing():
    embedder = build_embedder(ModelSection(backbone="resnet20", size=16, dimension=4, drop_path=0.9, freeze="stage3"))
    embedder.train()
    assert torch.equal(embedder(torch.ones(4, 3, 16, 16)), embedder.eval()(torch.ones(4, 3, 16, 16)))


def test_it_is_not_saved(tmp_path):
    embedder = build_embedder(ModelSection(backbone="resnet20", size=16, dimension=4, drop_path=0.5))
    embedder.save(tmp_path / "model.safetensors")
    assert Embedder.load(tmp_path / "model.safetensors").backbone.path_draws is None


def test_what_has_no_blocks_or_learns_nothing_is_refused():
    with pytest.raises(ModelError, match="conv4"):
        build_embedder(ModelSection(backbone="conv4", size=16, drop_path=0.1))
    with pytest.raises(RecipeError, match="drop_path"):
        ModelSection(backbone="resnet20", drop_path=0.1, freeze="all")
