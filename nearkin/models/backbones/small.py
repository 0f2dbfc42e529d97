"""Small networks: LeNet for digits, Conv4 for few shots, and the time-delay network of x-vectors for audio."""

from __future__ import annotations

from torch import Tensor, nn

from nearkin.data.inputs import MEL_BANDS, InputSpec
from nearkin.models.backbones.base import Backbone, BackboneEntry, backbones, conv_norm, initialise


def lenet(spec: InputSpec) -> Backbone:
    """Three 5x5 convolutions of 6, 16 and 120 channels (LeCun et al. 1998); a 28-pixel input ends as one position."""
    stages = {
        "conv1": nn.Sequential(nn.Conv2d(spec.channels, 6, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        "conv2": nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        "conv3": nn.Sequential(nn.Conv2d(16, 120, 5), nn.ReLU(inplace=True)),
    }
    return initialise(Backbone(spec, stages, {"conv1": 6, "conv2": 16, "conv3": 120}))


backbones.register("lenet")(BackboneEntry(lenet, size=28, smallest=28))


_WIDTH = 64


def conv4(spec: InputSpec) -> Backbone:
    """Four blocks of 64 channels, each halving the map (Vinyals et al. 2016, Snell et al. 2017)."""
    stages: dict[str, nn.Module] = {}
    incoming = spec.channels
    for number in range(1, 5):
        conv = nn.Conv2d(incoming, _WIDTH, 3, padding=1, bias=False)
        stages[f"block{number}"] = nn.Sequential(*conv_norm(conv, nn.ReLU(inplace=True)), nn.MaxPool2d(2))
        incoming = _WIDTH
    return initialise(Backbone(spec, stages, dict.fromkeys(stages, _WIDTH)))


backbones.register("conv4")(BackboneEntry(conv4, size=84, smallest=16))


# Kernel and dilation over time of each frame layer, and the channels of all but the last, and of the last.
_LAYERS = ((5, 1), (3, 2), (3, 3), (1, 1), (1, 1))
_X_VECTOR = (512, 1500)  # Snyder et al. 2018, table 1
_NARROW = (192, 600)


class _BandsAsChannels(nn.Module):
    """(B, 1, mels, T) to (B, mels, 1, T): every layer sees all bands at once and slides over time."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def tdnn(spec: InputSpec, widths: tuple[int, int] = _X_VECTOR) -> Backbone:
    """Five frame layers; use with pooling "stats", which takes mean and deviation over time.

    Time is padded with zeros, so that clips of any length pass and the map (B, 1500, 1, T) keeps theirs.

    Args:
        spec: the input.
        widths: channels of the first four layers, and of the last.
    """
    stages: dict[str, nn.Module] = {}
    channels: dict[str, int] = {}
    incoming = spec.size
    for number, (kernel, dilation) in enumerate(_LAYERS, start=1):
        width = widths[number == len(_LAYERS)]
        padding = (0, dilation * (kernel - 1) // 2)
        conv = nn.Conv2d(incoming, width, (1, kernel), padding=padding, dilation=(1, dilation), bias=False)
        layer = conv_norm(conv, nn.ReLU(inplace=True))
        stages[f"frame{number}"] = nn.Sequential(_BandsAsChannels(), *layer) if number == 1 else layer
        channels[f"frame{number}"] = incoming = width
    return initialise(Backbone(spec, stages, channels))


def tdnn_narrow(spec: InputSpec) -> Backbone:
    """The same five layers with 192 and 600 channels: a sixth of the work, for tens of speakers and a CPU."""
    return tdnn(spec, _NARROW)


for _name, _build in (("tdnn", tdnn), ("tdnn-narrow", tdnn_narrow)):
    backbones.register(_name)(BackboneEntry(_build, size=MEL_BANDS, smallest=1, kind="audio"))
