"""Conv4, the small network of few-shot learning: four times 3x3 convolution, batch norm, ReLU, max-pooling."""

from __future__ import annotations

from torch import nn

from nearkin.data.inputs import InputSpec
from nearkin.models.backbones.base import Backbone, initialise
from nearkin.models.backbones.layers import conv_norm
from nearkin.models.backbones.registry import BackboneEntry, backbones

_WIDTH = 64


def conv4(spec: InputSpec) -> Backbone:
    """Four blocks of 64 channels, each halving the map (Vinyals et al. 2016, Snell et al. 2017)."""
    stages: dict[str, nn.Module] = {}
    incoming = spec.channels
    for number in range(1, 5):
        conv = nn.Conv2d(incoming, _WIDTH, 3, padding=1, bias=False)
        stages[f"block{number}"] = nn.Sequential(*conv_norm(conv, nn.ReLU(inplace=True)), nn.MaxPool2d(2))
        incoming = _WIDTH
    backbone = Backbone(spec, stages, dict.fromkeys(stages, _WIDTH))
    initialise(backbone)
    return backbone


backbones.register("conv4")(BackboneEntry(conv4, size=84, smallest=16))
