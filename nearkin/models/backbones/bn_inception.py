"""BN-Inception: Inception with batch normalisation (Ioffe and Szegedy 2015), long the standard of metric learning.

Layers and their names are those of the published ImageNet weights, which no package holds: the user puts their file
beside the caches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.data.inputs import InputSpec
from nearkin.models.backbones.base import Backbone, BackboneEntry, backbones, conv_norm, initialise
from nearkin.models.backbones.published import PublishedWeights

_FILE = ("http://data.lip6.fr/cadene/pretrainedmodels", ["bn_inception-52deb4733.pth"])
_FIRST = "stages.stem.conv1_7x7_s2.0.weight"


def load_published_weights(backbone: Backbone) -> None:
    """Put the published ImageNet weights into a backbone, without their classifier.

    Every layer is a convolution and a batch norm, `inception_3a_3x3` and `inception_3a_3x3_bn`. The network was trained
    on blue, green, red; its first convolution is turned round to take ours.
    """
    renamed = PublishedWeights("bn-inception", *_FILE).renamed(backbone, _published_name)
    renamed[_FIRST] = renamed[_FIRST].flip(1)
    backbone.load_state_dict(renamed)


def _published_name(ours: str) -> str:
    _, stage, *_, name, place = ours.split(".")
    return (name if stage == "stem" else f"{stage}_{name}") + ("_bn" if place == "1" else "")


_STEM = 192

# Channels of the 1x1 branch, of the 3x3 branch (reduced to, out), of the double 3x3 one (the same), of the pooled one.
_INCEPTIONS = {
    "inception_3a": (64, (64, 64), (64, 96), 32),
    "inception_3b": (64, (64, 96), (64, 96), 64),
    "inception_4a": (224, (64, 96), (96, 128), 128),
    "inception_4b": (192, (96, 128), (96, 128), 128),
    "inception_4c": (160, (128, 160), (128, 160), 128),
    "inception_4d": (96, (128, 192), (160, 192), 128),
    "inception_5a": (352, (192, 320), (160, 224), 128),
    "inception_5b": (352, (192, 320), (192, 224), 128),
}

# Those that halve the map have neither a 1x1 branch nor a convolution after the pooling.
_REDUCTIONS = {
    "inception_3c": ((128, 160), (64, 96)),
    "inception_4e": ((128, 192), (192, 256)),
}

# The weights were trained on pixels p - (128, 117, 104), red first.
_STATISTICS = ((128 / 255, 117 / 255, 104 / 255), (1 / 255,) * 3)


class _Branches(nn.ModuleDict):
    """Branches that see the same map; theirs are stacked in the order of the branches."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, sum of the branches' channels, H', W')."""
        return torch.cat([branch(x) for branch in self.values()], dim=1)


class _HalvingPool(nn.Module):
    """The maximum of 3x3 positions at stride 2, with ceil(H / 2) results a side like the convolutions beside it.

    Windows begin at the first position and the last may hang over. A side of odd length would give one result too few:
    it gets a zero at its end, which changes no maximum, for maps after a ReLU are never negative.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W), not negative, to (B, C, ceil(H / 2), ceil(W / 2))."""
        rows, columns = x.shape[2] % 2, x.shape[3] % 2
        if rows or columns:
            x = F.pad(x, (0, columns, 0, rows))
        return F.max_pool2d(x, 3, 2, ceil_mode=True)


def bn_inception(spec: InputSpec) -> Backbone:
    """A stem that divides the side by eight and ten inception modules, of which 3c and 4e halve the map."""
    stem = {
        "conv1_7x7_s2": _unit(spec.channels, 64, kernel=7, stride=2),
        "pool1_3x3_s2": nn.MaxPool2d(3, 2, ceil_mode=True),
        "conv2_3x3_reduce": _unit(64, 64),
        "conv2_3x3": _unit(64, _STEM, kernel=3),
        "pool2_3x3_s2": nn.MaxPool2d(3, 2, ceil_mode=True),
    }
    stages: dict[str, nn.Module] = {"stem": _chain(stem)}
    widths = {"stem": _STEM}
    incoming = _STEM
    for name in sorted(_INCEPTIONS | _REDUCTIONS):  # their names sort as they run
        if name in _REDUCTIONS:
            branches = _convolutions(incoming, *_REDUCTIONS[name], stride=2) | {"pool": _HalvingPool()}
            incoming += sum(outgoing for _, outgoing in _REDUCTIONS[name])
        else:
            point, single, double, pooled = _INCEPTIONS[name]
            # Only the last module takes the maximum of its neighbourhoods.
            pool = nn.MaxPool2d(3, 1, padding=1) if name == "inception_5b" else nn.AvgPool2d(3, 1, padding=1)
            branches = {
                "1x1": _chain({"1x1": _unit(incoming, point)}),
                **_convolutions(incoming, single, double, stride=1),
                "pool": _chain({"pool": pool, "pool_proj": _unit(incoming, pooled)}),
            }
            incoming = point + single[1] + double[1] + pooled
        stages[name], widths[name] = _Branches(branches), incoming
    return initialise(Backbone(spec, stages, widths))


def _chain(layers: Mapping[str, nn.Module]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def _convolutions(incoming: int, single: tuple[int, int], double: tuple[int, int], stride: int) -> dict[str, nn.Module]:
    """A 1x1 convolution to fewer channels, then a 3x3 one, or two, which see 5x5 positions."""
    twice = {
        "double_3x3_reduce": _unit(incoming, double[0]),
        "double_3x3_1": _unit(*double, kernel=3),
        "double_3x3_2": _unit(double[1], double[1], kernel=3, stride=stride),
    }
    once = {"3x3_reduce": _unit(incoming, single[0]), "3x3": _unit(*single, kernel=3, stride=stride)}
    return {"3x3": _chain(once), "double_3x3": _chain(twice)}


def _unit(incoming: int, outgoing: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    """Convolution with a bias, as published, batch norm, ReLU."""
    return conv_norm(nn.Conv2d(incoming, outgoing, kernel, stride, padding=kernel // 2), nn.ReLU(inplace=True))


backbones.register("bn-inception")(
    BackboneEntry(bn_inception, size=224, smallest=7, statistics=_STATISTICS, load_weights=load_published_weights)
)
