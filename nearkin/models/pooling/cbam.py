"""Convolutional block attention: which channels, then which positions, then the average.

`x' = x sigmoid(MLP(mean x) + MLP(max x))`, mean and max over positions; `y = mean(x' sigmoid(conv[mean x', max
x']))`, the inner mean and max over channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.models.pooling.base import Pooling, poolings
from nearkin.registry import Count, OddCount


@poolings.register("cbam")
class BlockAttentionPooling(Pooling):
    """The average of a map that channel attention and spatial attention have re-weighted.

    Both attentions start at one half everywhere: training begins with a quarter of average pooling.

    Reference: Woo et al. 2018.
    Needs: training; a position's weight depends on its neighbours, so maps should not be smaller than the kernel.
    Use when: what matters stands out by strength and lies in connected regions.

    Args:
        channels: channels of the map.
        reduction: how many times fewer hidden units than channels the shared network has.
        kernel: side of the convolution over positions, odd.
    """

    def __init__(self, channels: int, reduction: Count = 16, kernel: OddCount = 7) -> None:
        super().__init__(channels)
        self._check(reduction=reduction, kernel=kernel)
        hidden = max(1, channels // reduction)
        self.channel = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, channels))
        self.spatial = nn.Conv2d(2, 1, kernel, padding=kernel // 2)
        for layer in (self.channel[2], self.spatial):
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C)."""
        gated = self._gate_channels(features)
        return (gated * self._spatial_logits(gated).sigmoid()).mean(dim=(2, 3)).to(features.dtype)

    def weights(self, features: Tensor) -> Tensor:
        """The share (B, H, W) that the spatial attention gives each position, the same for all channels."""
        logits = self._spatial_logits(self._gate_channels(features))[:, 0]
        # Through logarithms: sigmoids that all underflow would be 0 / 0.
        return F.logsigmoid(logits).flatten(1).softmax(dim=1).view_as(logits)

    def _gate_channels(self, features: Tensor) -> Tensor:
        """The map (B, C, H, W) times the attention of its channels."""
        logits = self.channel(features.mean(dim=(2, 3))) + self.channel(features.amax(dim=(2, 3)))
        return features * logits.sigmoid()[:, :, None, None]

    def _spatial_logits(self, features: Tensor) -> Tensor:
        """How much each position of a map (B, C, H, W) matters, (B, 1, H, W), before the sigmoid."""
        return self.spatial(torch.cat([features.mean(dim=1, keepdim=True), features.amax(dim=1, keepdim=True)], dim=1))
