"""A time-delay network: the frame layers of x-vectors, for log-mel audio."""

from __future__ import annotations

from torch import Tensor, nn

from nearkin.data.inputs import MEL_BANDS, InputSpec
from nearkin.models.backbones.base import Backbone, initialise
from nearkin.models.backbones.layers import conv_norm
from nearkin.models.backbones.registry import BackboneEntry, backbones

# Channels, kernel and dilation over time of each frame layer (Snyder et al. 2018, table 1).
_LAYERS = ((512, 5, 1), (512, 3, 2), (512, 3, 3), (512, 1, 1), (1500, 1, 1))


class _BandsAsChannels(nn.Module):
    """(B, 1, mels, T) to (B, mels, 1, T): every layer sees all bands at once and slides over time."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def tdnn(spec: InputSpec) -> Backbone:
    """Five frame layers; use with pooling "stats", which takes mean and deviation over time.

    Time is padded with zeros, so that clips of any length pass and the map (B, 1500, 1, T) keeps theirs.
    """
    stages: dict[str, nn.Module] = {}
    incoming = spec.size
    for number, (width, kernel, dilation) in enumerate(_LAYERS, start=1):
        padding = (0, dilation * (kernel - 1) // 2)
        conv = nn.Conv2d(incoming, width, (1, kernel), padding=padding, dilation=(1, dilation), bias=False)
        layer = conv_norm(conv, nn.ReLU(inplace=True))
        stages[f"frame{number}"] = nn.Sequential(_BandsAsChannels(), *layer) if number == 1 else layer
        incoming = width
    backbone = Backbone(spec, stages, {name: layer[0] for name, layer in zip(stages, _LAYERS, strict=True)})
    initialise(backbone)
    return backbone


backbones.register("tdnn")(BackboneEntry(tdnn, size=MEL_BANDS, smallest=1, kind="audio"))
