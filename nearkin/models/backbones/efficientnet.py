"""EfficientNet-Lite 0 to 2: inverted residuals without squeeze-and-excitation, with ReLU6."""

from __future__ import annotations

import math
from functools import partial

from torch import Tensor, nn

from nearkin.data.inputs import InputSpec
from nearkin.models.backbones.base import Backbone, initialise
from nearkin.models.backbones.efficientnet_weights import load_imagenet_weights
from nearkin.models.backbones.layers import SameConv2d, conv_norm
from nearkin.models.backbones.registry import BackboneEntry, backbones

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


class InvertedResidual(nn.Module):
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
        return y.add_(x) if self.residual else y


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
    backbone = Backbone(spec, stages, widths)
    initialise(backbone)
    return backbone


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
