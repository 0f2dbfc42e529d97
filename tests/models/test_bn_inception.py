from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nearkin.data import Normalise
from nearkin.errors import MissingWeightsError, ModelError
from nearkin.models import FeatureCache, ModelSection, build_embedder, cache_point, inference_copy, make_backbone
from nearkin.models.backbones import published as published_files
from nearkin.models.backbones.bn_inception import _HalvingPool

FILE = "bn_inception-52deb4733.pth"

# The layers of the published network: incoming and outgoing channels, side of the kernel, stride.
LAYERS = {
    "conv1_7x7_s2": (3, 64, 7, 2),
    "conv2_3x3_reduce": (64, 64, 1, 1),
    "conv2_3x3": (64, 192, 3, 1),
    "inception_3a_1x1": (192, 64, 1, 1),
    "inception_3a_3x3_reduce": (192, 64, 1, 1),
    "inception_3a_3x3": (64, 64, 3, 1),
    "inception_3a_double_3x3_reduce": (192, 64, 1, 1),
    "inception_3a_double_3x3_1": (64, 96, 3, 1),
    "inception_3a_double_3x3_2": (96, 96, 3, 1),
    "inception_3a_pool_proj": (192, 32, 1, 1),
    "inception_3b_1x1": (256, 64, 1, 1),
    "inception_3b_3x3_reduce": (256, 64, 1, 1),
    "inception_3b_3x3": (64, 96, 3, 1),
    "inception_3b_double_3x3_reduce": (256, 64, 1, 1),
    "inception_3b_double_3x3_1": (64, 96, 3, 1),
    "inception_3b_double_3x3_2": (96, 96, 3, 1),
    "inception_3b_pool_proj": (256, 64, 1, 1),
    "inception_3c_3x3_reduce": (320, 128, 1, 1),
    "inception_3c_3x3": (128, 160, 3, 2),
    "inception_3c_double_3x3_reduce": (320, 64, 1, 1),
    "inception_3c_double_3x3_1": (64, 96, 3, 1),
    "inception_3c_double_3x3_2": (96, 96, 3, 2),
    "inception_4a_1x1": (576, 224, 1, 1),
    "inception_4a_3x3_reduce": (576, 64, 1, 1),
    "inception_4a_3x3": (64, 96, 3, 1),
    "inception_4a_double_3x3_reduce": (576, 96, 1, 1),
    "inception_4a_double_3x3_1": (96, 128, 3, 1),
    "inception_4a_double_3x3_2": (128, 128, 3, 1),
    "inception_4a_pool_proj": (576, 128, 1, 1),
    "inception_4b_1x1": (576, 192, 1, 1),
    "inception_4b_3x3_reduce": (576, 96, 1, 1),
    "inception_4b_3x3": (96, 128, 3, 1),
    "inception_4b_double_3x3_reduce": (576, 96, 1, 1),
    "inception_4b_double_3x3_1": (96, 128, 3, 1),
    "inception_4b_double_3x3_2": (128, 128, 3, 1),
    "inception_4b_pool_proj": (576, 128, 1, 1),
    "inception_4c_1x1": (576, 160, 1, 1),
    "inception_4c_3x3_reduce": (576, 128, 1, 1),
    "inception_4c_3x3": (128, 160, 3, 1),
    "inception_4c_double_3x3_reduce": (576, 128, 1, 1),
    "inception_4c_double_3x3_1": (128, 160, 3, 1),
    "inception_4c_double_3x3_2": (160, 160, 3, 1),
    "inception_4c_pool_proj": (576, 128, 1, 1),
    "inception_4d_1x1": (608, 96, 1, 1),
    "inception_4d_3x3_reduce": (608, 128, 1, 1),
    "inception_4d_3x3": (128, 192, 3, 1),
    "inception_4d_double_3x3_reduce": (608, 160, 1, 1),
    "inception_4d_double_3x3_1": (160, 192, 3, 1),
    "inception_4d_double_3x3_2": (192, 192, 3, 1),
    "inception_4d_pool_proj": (608, 128, 1, 1),
    "inception_4e_3x3_reduce": (608, 128, 1, 1),
    "inception_4e_3x3": (128, 192, 3, 2),
    "inception_4e_double_3x3_reduce": (608, 192, 1, 1),
    "inception_4e_double_3x3_1": (192, 256, 3, 1),
    "inception_4e_double_3x3_2": (256, 256, 3, 2),
    "inception_5a_1x1": (1056, 352, 1, 1),
    "inception_5a_3x3_reduce": (1056, 192, 1, 1),
    "inception_5a_3x3": (192, 320, 3, 1),
    "inception_5a_double_3x3_reduce": (1056, 160, 1, 1),
    "inception_5a_double_3x3_1": (160, 224, 3, 1),
    "inception_5a_double_3x3_2": (224, 224, 3, 1),
    "inception_5a_pool_proj": (1056, 128, 1, 1),
    "inception_5b_1x1": (1024, 352, 1, 1),
    "inception_5b_3x3_reduce": (1024, 192, 1, 1),
    "inception_5b_3x3": (192, 320, 3, 1),
    "inception_5b_double_3x3_reduce": (1024, 192, 1, 1),
    "inception_5b_double_3x3_1": (192, 224, 3, 1),
    "inception_5b_double_3x3_2": (224, 224, 3, 1),
    "inception_5b_pool_proj": (1024, 128, 1, 1),
}

# Channels of each stage, and how often the side of the input has been halved.
STAGES = {
    "stem": (192, 3),
    "inception_3a": (256, 3),
    "inception_3b": (320, 3),
    "inception_3c": (576, 4),
    "inception_4a": (576, 4),
    "inception_4b": (576, 4),
    "inception_4c": (608, 4),
    "inception_4d": (608, 4),
    "inception_4e": (1056, 5),
    "inception_5a": (1024, 5),
    "inception_5b": (1024, 5),
}


@pytest.fixture(scope="module")
def published():
    """Random weights under the public names; the vectors of batch norms are rows, as in the file."""
    generator = torch.Generator().manual_seed(5)
    weights = {}
    for name, (incoming, outgoing, kernel, _) in LAYERS.items():
        spread = math.sqrt(1.5 / (incoming * kernel**2)) / (70 if name == "conv1_7x7_s2" else 1)
        weights[f"{name}.weight"] = spread * torch.randn(outgoing, incoming, kernel, kernel, generator=generator)
        weights[f"{name}.bias"] = 0.1 * torch.randn(outgoing, generator=generator)
        weights[f"{name}_bn.weight"] = torch.rand(1, outgoing, generator=generator) + 0.5
        weights[f"{name}_bn.bias"] = 0.2 * torch.randn(1, outgoing, generator=generator)
        weights[f"{name}_bn.running_mean"] = 0.2 * torch.randn(1, outgoing, generator=generator)
        weights[f"{name}_bn.running_var"] = torch.rand(1, outgoing, generator=generator) + 0.5
    return weights | {"last_linear.weight": torch.zeros(1000, 1024), "last_linear.bias": torch.zeros(1000)}


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Put an object where the weight file is looked for, and let its checksum be the right one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "nearkin" / "weights"
    folder.mkdir(parents=True)

    def write(content):
        path = folder / FILE
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:  # the format of the time of the published file
            torch.save(content, path, _use_new_zipfile_serialization=False)
        begins = hashlib.sha256(path.read_bytes()).hexdigest()[:9]
        monkeypatch.setattr(published_files, "digits", lambda file: begins)
        return path

    return write


DIGITS = published_files.digits


def reference(weights, x):
    """The published network, layer by layer, on blue, green and red values in 0..255; maps by module."""

    def unit(name, x):
        kernel, stride = LAYERS[name][2:]
        y = F.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], stride, kernel // 2)
        mean, var, scale, shift = (
            weights[f"{name}_bn.{key}"].view(1, -1, 1, 1) for key in ("running_mean", "running_var", "weight", "bias")
        )
        return ((y - mean) / torch.sqrt(var + 1e-5) * scale + shift).clamp(min=0)

    def chain(x, *names):
        for name in names:
            x = unit(name, x)
        return x

    x = x - torch.tensor([104.0, 117.0, 128.0]).view(1, 3, 1, 1)
    x = F.max_pool2d(unit("conv1_7x7_s2", x), 3, 2, ceil_mode=True)
    x = F.max_pool2d(chain(x, "conv2_3x3_reduce", "conv2_3x3"), 3, 2, ceil_mode=True)
    maps = {"stem": x}
    for module in list(STAGES)[1:]:
        parts = [chain(x, f"{module}_1x1")] if f"{module}_1x1" in LAYERS else []
        parts.append(chain(x, f"{module}_3x3_reduce", f"{module}_3x3"))
        parts.append(chain(x, *(f"{module}_double_3x3_{part}" for part in ("reduce", "1", "2"))))
        if module in ("inception_3c", "inception_4e"):
            parts.append(F.max_pool2d(x, 3, 2, ceil_mode=True))
        else:
            pooled = F.max_pool2d(x, 3, 1, 1) if module == "inception_5b" else F.avg_pool2d(x, 3, 1, 1)
            parts.append(chain(pooled, f"{module}_pool_proj"))
        x = maps[module] = torch.cat(parts, dim=1)
    return maps


@pytest.mark.parametrize(("size", "channels"), [(224, 3), (64, 3), (32, 1)])
def test_stages_have_the_published_shapes(size, channels):
    backbone = make_backbone("bn-inception", channels=channels, size=size).eval()
    x = torch.randn(2, channels, size, size)
    with torch.no_grad():
        maps = backbone.maps(x)
        torch.testing.assert_close(
            backbone(maps["inception_4d"], start="inception_4d"), maps["inception_5b"], rtol=0, atol=0
        )
    expected = {name: (2, width, size >> halved, size >> halved) for name, (width, halved) in STAGES.items()}
    assert {name: tuple(found.shape) for name, found in maps.items()} == expected
    assert list(maps) == backbone.stage_names == list(STAGES)
    assert backbone.widths == {name: width for name, (width, _) in STAGES.items()}
    assert backbone.channels == 1024


def test_it_has_the_published_number_of_weights():
    # Kernel, bias, and scale and shift of the batch norm; 11,295,240 with the classifier of 1000 classes.
    expected = sum(outgoing * (incoming * kernel**2 + 3) for incoming, outgoing, kernel, _ in LAYERS.values())
    assert expected == 11_295_240 - 1000 * (1024 + 1)
    backbone = make_backbone("bn-inception")
    assert sum(p.numel() for p in backbone.parameters()) == expected
    norms = [layer for layer in backbone.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert len(norms) == len(LAYERS)
    assert {norm.eps for norm in norms} == {1e-5}


@pytest.mark.parametrize("size", [7, 13, 30, 84])
def test_any_size_from_the_smallest_passes(size):
    backbone = make_backbone("bn-inception", size=size)
    assert backbone.train()(torch.randn(2, 3, size, size)).shape[:2] == (2, 1024)
    with torch.no_grad():
        assert backbone.eval()(torch.randn(1, 3, size, size + 21)).isfinite().all()


def test_smaller_than_the_smallest_is_refused():
    with pytest.raises(ModelError, match=r"model\.size"):
        make_backbone("bn-inception", size=6)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (5, 8), (7, 7), (14, 28)])
def test_the_halving_pool_is_the_maximum_of_its_windows(shape):
    x = torch.rand(2, 3, *shape)
    found = _HalvingPool()(x)
    assert found.shape[2:] == tuple(-(-side // 2) for side in shape)
    for row in range(found.shape[2]):
        for column in range(found.shape[3]):
            window = x[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            torch.testing.assert_close(found[:, :, row, column], window.amax(dim=(2, 3)))
    if not (shape[0] % 2 or shape[1] % 2):
        torch.testing.assert_close(found, F.max_pool2d(x, 3, 2, ceil_mode=True), rtol=0, atol=0)


def test_every_kernel_gets_a_gradient():
    backbone = make_backbone("bn-inception", size=64).train()
    backbone(torch.randn(4, 3, 64, 64)).square().mean().backward()
    for layer in backbone.modules():
        if isinstance(layer, nn.Conv2d | nn.BatchNorm2d):
            assert torch.isfinite(layer.weight.grad).all()
            assert layer.weight.grad.abs().max() > 0


@pytest.mark.parametrize("size", [64, 96])
def test_published_weights_give_the_published_features(published, put, size):
    put(published)
    backbone = make_backbone("bn-inception", pretrained=True, size=size).eval()
    rgb = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))
    expected = reference(published, rgb[:, [2, 1, 0]].float())
    with torch.no_grad():
        found = backbone.maps(Normalise(backbone.spec)(rgb))
        wrong = backbone.maps(Normalise(backbone.spec)(rgb[:, [2, 1, 0]]))
    for name, map_ in expected.items():
        assert map_.std() > 0.1
        torch.testing.assert_close(found[name], map_, rtol=1e-4, atol=1e-4)
    assert (wrong["inception_5b"] - expected["inception_5b"]).abs().max() > 0.1


def test_the_inference_copy_folds_every_batch_norm(published, put):
    put(published)
    backbone = make_backbone("bn-inception", pretrained=True, size=64).eval()
    twin = inference_copy(backbone)
    x = 50 * torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(twin(x), backbone(x), rtol=1e-4, atol=1e-4)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in twin.modules())


def test_a_missing_file_is_named_with_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingWeightsError) as error:
        make_backbone("bn-inception", pretrained=True)
    for told in (
        str(tmp_path / "nearkin" / "weights"),
        f"http://data.lip6.fr/cadene/pretrainedmodels/{FILE}",
        "sha256",
    ):
        assert told in str(error.value)


def test_a_file_of_another_checksum_is_never_opened(published, put, monkeypatch):
    put(published)
    monkeypatch.setattr(published_files, "digits", lambda file: "52deb4733")
    assert DIGITS(FILE) == "52deb4733"
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(ModelError, match=FILE):
        make_backbone("bn-inception", pretrained=True)


@pytest.mark.parametrize("content", [b"", b"nothing torch wrote", [1, 2], {}, {"conv1_7x7_s2.weight": 3}])
def test_a_file_without_the_weights_is_refused(put, content):
    put(content)
    with pytest.raises(ModelError, match=FILE):
        make_backbone("bn-inception", pretrained=True)


@pytest.mark.parametrize("shape", [(64, 64, 3, 3), (64, 192, 1, 3), (192, 64, 1, 1)])
def test_a_tensor_of_another_shape_is_refused(published, put, shape):
    put(published | {"inception_3a_3x3_reduce.weight": torch.zeros(shape)})
    with pytest.raises(ModelError, match=FILE):
        make_backbone("bn-inception", pretrained=True)


def test_a_frozen_part_can_be_cached(make_embedder, make_images, tmp_path):
    embedder = make_embedder(backbone="bn-inception", size=32, freeze="inception_4e").eval()
    assert embedder.frozen_stages == list(STAGES)[:9]
    dataset = make_images(6)
    at = cache_point(embedder)
    assert at == "inception_4e"
    cache = FeatureCache.build(embedder, dataset, at=at, directory=tmp_path, progress=False)
    assert cache.gather(np.arange(6)).shape == (6, 1056, 1, 1)
    expected = embedder.encode(dataset, progress=False)
    np.testing.assert_allclose(cache.encode(embedder, np.arange(6)), expected, atol=1e-5)


def test_a_saved_model_needs_no_weight_file(published, put, tmp_path):
    path = put(published)
    settings = ModelSection(backbone="bn-inception", pretrained=True, size=32, dimension=4)
    embedder = build_embedder(settings).eval()
    embedder.save(tmp_path / "model.safetensors")
    path.unlink()
    loaded = type(embedder).load(tmp_path / "model.safetensors")
    assert loaded.spec == embedder.spec
    assert loaded.fingerprint() == embedder.fingerprint()
