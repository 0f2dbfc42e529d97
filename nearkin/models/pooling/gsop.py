"""Global second-order pooling: how channels vary together decides how much each of them counts.

`y = g mean_n x_n`, `g = sigmoid(V leaky(R(K)) + b)`, K the covariance of `U x_n` over positions; R filters each row
of K by itself.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.models.pooling.base import Pooling, poolings
from nearkin.registry import Count

# Filters of each row of the covariance matrix, as in the paper.
_ROW_FILTERS = 4
# Added to the mean variance that covariances are divided by: a constant map has none.
_FLOOR = 1e-6


@poolings.register("gsop")
class SecondOrderPooling(Pooling):
    """Average pooling, each channel weighted by attention that sees the covariance of the local features.

    Covariances are divided by the mean variance where the authors use batch norm, so an item's vector depends on no
    other item. All channel weights start at one half: training begins with half of average pooling.

    Reference: Gao et al. 2019.
    Needs: training, and clearly more positions than one: a single position has no covariance.
    Use when: it matters which channels are on together; positions all count the same, so background is not left out.

    Args:
        channels: channels of the map.
        reduced: channels that covariances are taken of, after a 1x1 convolution.
    """

    def __init__(self, channels: int, reduced: Count = 128) -> None:
        super().__init__(channels)
        self._check(reduced=reduced)
        # A bias would shift every local feature alike, which no covariance sees.
        self.reduce = nn.Conv2d(channels, reduced, 1, bias=False)
        self.rows = nn.Conv1d(reduced, _ROW_FILTERS * reduced, reduced, groups=reduced)
        self.gate = nn.Linear(_ROW_FILTERS * reduced, channels)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C)."""
        return (self.channel_weights(features) * features.mean(dim=(2, 3))).to(features.dtype)

    def weights(self, features: Tensor) -> Tensor:
        """Equal weights (B, H, W): only channels are weighted."""
        return torch.full_like(features[:, 0], 1.0 / math.prod(features.shape[2:]))

    def channel_weights(self, features: Tensor) -> Tensor:
        """The weight (B, C) of each channel of a map (B, C, H, W), between 0 and 1."""
        responses = self.rows(_relative_covariance(self.reduce(features).flatten(2)))[:, :, 0]
        return self.gate(F.leaky_relu(responses)).sigmoid()


def _relative_covariance(local: Tensor) -> Tensor:
    """Covariances (B, K, K) over the positions of (B, K, N), divided by the mean variance."""
    centred = local - local.mean(dim=2, keepdim=True)
    covariance = centred @ centred.transpose(1, 2) / local.shape[2]
    variance = covariance.diagonal(dim1=1, dim2=2).mean(dim=1)
    return covariance / (variance + _FLOOR)[:, None, None]
