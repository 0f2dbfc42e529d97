"""Statistics pooling: mean and standard deviation side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.models.pooling.registry import Pooling, poolings

# Keeps the gradient of the root finite where a channel is constant.
_FLOOR = 1e-6


@poolings.register("stats")
class StatisticsPooling(Pooling):
    """Mean and standard deviation of each channel over all positions: twice as many values.

    Reference: Snyder et al. 2018 (x-vectors).
    Use when: audio, with the backbone "tdnn": how a channel varies over time tells as much as its mean.
    """

    keeps_coordinates = False

    def __init__(self, channels: int) -> None:
        super().__init__(channels, out_channels=2 * channels)

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, 2 C)."""
        variance, mean = torch.var_mean(features, dim=(2, 3), correction=0)
        return torch.cat([mean, (variance + _FLOOR).sqrt()], dim=1)
