"""timm cannot be installed beside every build of torch, so a stand-in plays its part."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from nearkin.errors import CheckpointError, MissingExtraError, ModelError
from nearkin.models import Embedder, ModelSection, build_embedder, make_backbone


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
