"""Residual networks: ResNet-20 as for CIFAR, plain and with pre-activation, ResNet-18 and ResNet-50 as for ImageNet.

Reference: He, Zhang, Ren, Sun 2016: Deep residual learning; Identity mappings in deep residual networks.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from torch import Tensor, nn

from nearkin.data.inputs import InputSpec
from nearkin.errors import ModelError
from nearkin.models.backbones.base import Backbone, BackboneEntry, backbones, conv_norm, initialise
from nearkin.models.backbones.drop_path import ResidualBlock
from nearkin.models.backbones.published import PublishedWeights

# Up to this side a stem that divides it by four would leave too few positions.
_SMALL = 64


class _Block(ResidualBlock):
    """relu(body(x) + shortcut(x)); the shortcut is a 1x1 convolution where the shape changes."""

    expansion: ClassVar[int] = 1

    def __init__(self, incoming: int, width: int, stride: int) -> None:
        super().__init__()
        outgoing = width * self.expansion
        self.body = self._body(incoming, width, stride)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or incoming != outgoing:
            self.shortcut = conv_norm(nn.Conv2d(incoming, outgoing, 1, stride, bias=False))
        self.activation = nn.ReLU(inplace=True)

    def _body(self, incoming: int, width: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            conv_norm(nn.Conv2d(incoming, width, 3, stride, padding=1, bias=False), nn.ReLU(inplace=True)),
            conv_norm(nn.Conv2d(width, width, 3, padding=1, bias=False)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.dropped(self.body(x)) + self.shortcut(x))


class _Bottleneck(_Block):
    """The block of ResNet-50: 1x1 down, 3x3 (which carries the stride), 1x1 up to four times the width."""

    expansion: ClassVar[int] = 4

    def _body(self, incoming: int, width: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            conv_norm(nn.Conv2d(incoming, width, 1, bias=False), nn.ReLU(inplace=True)),
            conv_norm(nn.Conv2d(width, width, 3, stride, padding=1, bias=False), nn.ReLU(inplace=True)),
            conv_norm(nn.Conv2d(width, width * self.expansion, 1, bias=False)),
        )


class _PreactivationBlock(ResidualBlock):
    """shortcut(x) + conv(relu(norm(conv(relu(norm(x)))))).

    Where the shape changes, the shortcut is a 1x1 convolution of the first relu(norm(x)), as in the authors' code.
    """

    def __init__(self, incoming: int, width: int, stride: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.BatchNorm2d(incoming), nn.ReLU(inplace=True))
        self.body = nn.Sequential(
            conv_norm(nn.Conv2d(incoming, width, 3, stride, padding=1, bias=False), nn.ReLU(inplace=True)),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
        )
        self.shortcut: nn.Module | None = None
        if stride != 1 or incoming != width:
            self.shortcut = nn.Conv2d(incoming, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.before(x)
        kept: Tensor = x if self.shortcut is None else self.shortcut(active)
        return kept + self.dropped(self.body(active))


def preact_resnet20(spec: InputSpec) -> Backbone:
    """ResNet-20 with norm and activation before each convolution ("ResNetV2"), and once more after the last block."""
    stages: dict[str, nn.Module] = {"stem": nn.Conv2d(spec.channels, 16, 3, padding=1, bias=False)}
    incoming, widths = 16, (16, 32, 64)
    for number, width in enumerate(widths, start=1):
        blocks: list[nn.Module] = []
        for place in range(3):
            blocks.append(_PreactivationBlock(incoming, width, stride=2 if place == 0 and number > 1 else 1))
            incoming = width
        if number == len(widths):
            blocks += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        stages[f"stage{number}"] = nn.Sequential(*blocks)
    channels = {"stem": 16, **{f"stage{number}": width for number, width in enumerate(widths, start=1)}}
    return initialise(Backbone(spec, stages, channels))


def resnet20(spec: InputSpec) -> Backbone:
    """Nine blocks of 16, 32 and 64 channels at full, half and quarter resolution."""
    stem = conv_norm(nn.Conv2d(spec.channels, 16, 3, padding=1, bias=False), nn.ReLU(inplace=True))
    return _chain(spec, stem, _Block, widths=(16, 32, 64), depths=(3, 3, 3))


def imagenet_resnet(spec: InputSpec, block: type[_Block], depths: tuple[int, ...]) -> Backbone:
    """Four stages of 64 to 512 channels (times four for bottlenecks).

    Inputs of at most 64 pixels get a 3x3 stem that keeps their resolution; the usual 7x7 one divides it by four.
    """
    if spec.size <= _SMALL:
        stem = conv_norm(nn.Conv2d(spec.channels, 64, 3, padding=1, bias=False), nn.ReLU(inplace=True))
    else:
        conv = nn.Conv2d(spec.channels, 64, 7, 2, padding=3, bias=False)
        stem = nn.Sequential(*conv_norm(conv, nn.ReLU(inplace=True)), nn.MaxPool2d(3, 2, padding=1))
    return _chain(spec, stem, block, widths=(64, 128, 256, 512), depths=depths)


def _chain(
    spec: InputSpec, stem: nn.Module, block: type[_Block], widths: tuple[int, ...], depths: tuple[int, ...]
) -> Backbone:
    """The stem, then one stage a width; every stage but the first halves the map."""
    stages: dict[str, nn.Module] = {"stem": stem}
    channels = {"stem": widths[0]}
    incoming = widths[0]
    for number, (width, depth) in enumerate(zip(widths, depths, strict=True), start=1):
        blocks: list[nn.Module] = []
        for place in range(depth):
            blocks.append(block(incoming, width, stride=2 if place == 0 and number > 1 else 1))
            incoming = width * block.expansion
        stages[f"stage{number}"] = nn.Sequential(*blocks)
        channels[f"stage{number}"] = incoming
    return initialise(Backbone(spec, stages, channels))


_TORCHVISION = "https://download.pytorch.org/models"
_FILES = {
    "resnet18": ("resnet18-f37072fd.pth",),
    "resnet50": ("resnet50-0676ba61.pth", "resnet50-19c8e357.pth", "resnet50-11ad3fa6.pth"),
}
"""Of torchvision: of ResNet-50 the first version of the weights, the same as it was saved before, and the second."""


def load_torchvision_weights(backbone: Backbone, name: str) -> None:
    """Put torchvision's ImageNet weights into a backbone, without their classifier."""
    if backbone.spec.size <= _SMALL:
        raise ModelError(
            f"The published weights of {name} are for inputs of more than {_SMALL} pixels, whose stem divides them by "
            f"four: raise model.size ({backbone.spec.size}), or set model.pretrained to false."
        )
    published = PublishedWeights(name, _TORCHVISION, _FILES[name])
    backbone.load_state_dict(published.renamed(backbone, _published_name), strict=False)


def _published_name(ours: str) -> str:
    """`layer1.0.conv2` for `stages.stage1.0.body.1.0`; a layer is a convolution and a batch norm."""
    _, stage, *inside = ours.split(".")
    norm = inside[-1] == "1"
    if stage == "stem":
        return "bn1" if norm else "conv1"
    block, part = inside[:2]
    place = f"layer{stage.removeprefix('stage')}.{block}"
    if part == "shortcut":
        return f"{place}.downsample.{inside[-1]}"
    return f"{place}.{'bn' if norm else 'conv'}{int(inside[2]) + 1}"


_resnet18 = partial(imagenet_resnet, block=_Block, depths=(2, 2, 2, 2))
_resnet50 = partial(imagenet_resnet, block=_Bottleneck, depths=(3, 4, 6, 3))

backbones.register("resnet20")(BackboneEntry(resnet20, size=32, smallest=8))
backbones.register("preact-resnet20")(BackboneEntry(preact_resnet20, size=32, smallest=8))
for _name, _build in (("resnet18", _resnet18), ("resnet50", _resnet50)):
    backbones.register(_name)(
        BackboneEntry(_build, size=224, smallest=8, load_weights=partial(load_torchvision_weights, name=_name))
    )
