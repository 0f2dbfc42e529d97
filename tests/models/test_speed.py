from __future__ import annotations

import ctypes
import platform

import pytest
import torch
from torch import nn

from nearkin.errors import ModelError
from nearkin.models import fold_batch_norm, inference_copy, speed, tune_allocator


@pytest.mark.parametrize(
    ("backbone", "size"), [("conv4", 16), ("resnet20", 16), ("resnet50", 32), ("efficientnet-lite0", 32)]
)
def test_the_inference_copy_computes_the_same(make_embedder, backbone, size):
    embedder = make_embedder(backbone=backbone, size=size).eval()
    twin = inference_copy(embedder)
    x = torch.randn(3, 3, size, size)
    with torch.no_grad():
        expected = embedder(x)
        scale = float(expected.abs().max())
        torch.testing.assert_close(twin(x) / scale, expected / scale, rtol=0, atol=1e-5)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in twin.modules())


def test_the_original_is_not_touched(make_embedder):
    embedder = make_embedder(freeze="block1").train()
    before = embedder.fingerprint()
    twin = inference_copy(embedder)
    assert embedder.training
    assert not twin.training
    assert embedder.fingerprint() == before
    assert any(isinstance(module, nn.BatchNorm2d) for module in embedder.modules())
    assert embedder.head.weight.requires_grad
    assert not any(parameter.requires_grad for parameter in twin.parameters())


def test_folding_is_for_eval_mode_and_for_direct_neighbours():
    lonely = nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU(), nn.BatchNorm2d(2)).eval()
    fold_batch_norm(lonely)
    assert isinstance(lonely[2], nn.BatchNorm2d)
    without_statistics = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2, track_running_stats=False)).eval()
    fold_batch_norm(without_statistics)
    assert isinstance(without_statistics[1], nn.BatchNorm2d)
    with pytest.raises(ModelError, match=r"\.eval\(\)"):
        fold_batch_norm(nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)))


def test_maps_stay_channels_last(make_embedder):
    embedder = make_embedder(backbone="efficientnet-lite0", size=32)
    twin = inference_copy(embedder)
    x = speed.as_channels_last(torch.randn(2, 3, 32, 32))
    for found in twin.backbone.maps(x).values():
        assert found.is_contiguous(memory_format=torch.channels_last)
    assert speed.as_channels_last(torch.zeros(2, 5)).shape == (2, 5)


def test_tuning_the_allocator_can_be_repeated():
    expected = platform.system() == "Linux" and platform.libc_ver()[0] == "glibc"
    assert tune_allocator() == tune_allocator() == expected


@pytest.mark.parametrize("system", ["Darwin", "Windows", "Linux"])
def test_elsewhere_the_allocator_is_left_alone(monkeypatch, system):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: pytest.fail("not glibc"))
    assert tune_allocator.__wrapped__() is False


def test_a_missing_library_is_no_error(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))

    def missing(_):
        raise OSError("no libc.so.6")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert tune_allocator.__wrapped__() is False
