"""torchvision's weight files are read whole; the network they make is compared with one written out layer by layer."""

from __future__ import annotations

import hashlib

import pytest
import torch
import torch.nn.functional as F

from nearkin.errors import MissingWeightsError, ModelError
from nearkin.models import make_backbone
from nearkin.models.backbones import published as published_files

DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}
FILES = {"resnet18": "resnet18-f37072fd.pth", "resnet50": "resnet50-0676ba61.pth"}


def published(name, younger):
    """Random weights under torchvision's names, classifier included."""
    generator = torch.Generator().manual_seed(3)
    wide = 4 if name == "resnet50" else 1
    weights = {}

    def layer(conv, norm, incoming, outgoing, kernel):
        spread = (2.0 / (incoming * kernel**2)) ** 0.5
        weights[f"{conv}.weight"] = spread * torch.randn(outgoing, incoming, kernel, kernel, generator=generator)
        for key in ("weight", "running_var"):
            weights[f"{norm}.{key}"] = torch.rand(outgoing, generator=generator) + 0.5
        for key in ("bias", "running_mean"):
            weights[f"{norm}.{key}"] = 0.2 * torch.randn(outgoing, generator=generator)
        if younger:
            weights[f"{norm}.num_batches_tracked"] = torch.tensor(7)

    layer("conv1", "bn1", 3, 64, 7)
    incoming = 64
    for stage, (width, depth) in enumerate(zip((64, 128, 256, 512), DEPTHS[name], strict=True), start=1):
        for block in range(depth):
            at = f"layer{stage}.{block}"
            kernels = (1, 3, 1) if wide == 4 else (3, 3)
            sizes = [incoming, *[width] * (len(kernels) - 1), width * wide]
            for place, kernel in enumerate(kernels):
                layer(f"{at}.conv{place + 1}", f"{at}.bn{place + 1}", sizes[place], sizes[place + 1], kernel)
            if block == 0 and (stage > 1 or wide == 4):
                layer(f"{at}.downsample.0", f"{at}.downsample.1", incoming, width * wide, 1)
            incoming = width * wide
    return weights | {"fc.weight": torch.zeros(1000, incoming), "fc.bias": torch.zeros(1000)}


def reference(weights, name, x):
    """The published network up to its last map; the 3x3 convolution carries the stride."""

    def unit(x, conv, norm, stride=1):
        weight = weights[f"{conv}.weight"]
        y = F.conv2d(x, weight, None, stride, weight.shape[-1] // 2)
        return F.batch_norm(y, *(weights[f"{norm}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")))

    x = F.max_pool2d(unit(x, "conv1", "bn1", 2).relu(), 3, 2, 1)
    for stage, depth in enumerate(DEPTHS[name], start=1):
        for block in range(depth):
            at, stride = f"layer{stage}.{block}", 2 if block == 0 and stage > 1 else 1
            last = 3 if name == "resnet50" else 2
            y = x
            for place in range(1, last + 1):
                y = unit(y, f"{at}.conv{place}", f"{at}.bn{place}", stride if place == last - 1 else 1)
                y = y.relu() if place < last else y
            if f"{at}.downsample.0.weight" in weights:
                x = unit(x, f"{at}.downsample.0", f"{at}.downsample.1", stride)
            x = (x + y).relu()
    return x


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Put weights where they are looked for, and let their checksum be the right one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "nearkin" / "weights"
    folder.mkdir(parents=True)

    def write(name, weights):
        torch.save(weights, folder / name)
        begins = hashlib.sha256((folder / name).read_bytes()).hexdigest()[:8]
        monkeypatch.setattr(published_files, "digits", lambda file: begins)

    return write


@pytest.mark.parametrize(("name", "younger"), [("resnet18", False), ("resnet50", True)])
def test_published_weights_give_the_published_features(put, name, younger):
    weights = published(name, younger)
    put(FILES[name], weights)
    backbone = make_backbone(name, pretrained=True, size=96).eval()
    x = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        torch.testing.assert_close(backbone(x), reference(weights, name, x), rtol=1e-3, atol=1e-3)
    assert backbone.spec.mean == (0.485, 0.456, 0.406)


def test_any_of_the_published_versions_will_do(put):
    put("resnet50-11ad3fa6.pth", published("resnet50", True))
    make_backbone("resnet50", pretrained=True)


def test_a_missing_file_is_told_with_address_checksum_and_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingWeightsError) as error:
        make_backbone("resnet50", pretrained=True)
    address = "https://download.pytorch.org/models/resnet50-0676ba61.pth"
    for told in (address, "sha256 0676ba61", "resnet50-11ad3fa6.pth", str(tmp_path / "nearkin" / "weights")):
        assert told in str(error.value)


def test_a_file_of_another_checksum_is_never_opened(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "nearkin" / "weights").mkdir(parents=True)
    torch.save({}, tmp_path / "nearkin" / "weights" / FILES["resnet50"])
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(ModelError, match=FILES["resnet50"]):
        make_backbone("resnet50", pretrained=True)


@pytest.mark.parametrize("change", [{"layer1.0.conv1.weight": None}, {"bn1.bias": torch.zeros(3)}])
def test_a_file_without_the_weights_is_refused(put, change):
    weights = published("resnet18", False) | change
    put(FILES["resnet18"], {name: value for name, value in weights.items() if value is not None})
    with pytest.raises(ModelError, match=FILES["resnet18"]):
        make_backbone("resnet18", pretrained=True)


def test_inputs_too_small_for_the_published_stem_are_refused(put):
    with pytest.raises(ModelError, match=r"model\.size"):
        make_backbone("resnet50", pretrained=True, size=32)
