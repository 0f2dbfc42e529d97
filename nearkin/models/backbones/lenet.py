"""LeNet-5's convolutions, with ReLU and max-pooling."""

from __future__ import annotations

from torch import nn

from nearkin.data.inputs import InputSpec
from nearkin.models.backbones.base import Backbone, initialise
from nearkin.models.backbones.registry import BackboneEntry, backbones


def lenet(spec: InputSpec) -> Backbone:
    """Three 5x5 convolutions of 6, 16 and 120 channels (LeCun et al. 1998); a 28-pixel input ends as one position."""
    stages: dict[str, nn.Module] = {
        "conv1": nn.Sequential(nn.Conv2d(spec.channels, 6, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        "conv2": nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        "conv3": nn.Sequential(nn.Conv2d(16, 120, 5), nn.ReLU(inplace=True)),
    }
    backbone = Backbone(spec, stages, {"conv1": 6, "conv2": 16, "conv3": 120})
    initialise(backbone)
    return backbone


backbones.register("lenet")(BackboneEntry(lenet, size=28, smallest=28))
