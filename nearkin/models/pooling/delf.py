"""Attentive local features: a small network says how much each position matters.

`y = sum_n w_n x_n`, `w_n = a_n / sum_m a_m`, `a_n = softplus(v . relu(U x_n + c) + b)`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.models.pooling.base import Pooling, poolings
from nearkin.registry import Count
from nearkin.spaces.space import widen

# Below this, log softplus(s) is s to double precision, while softplus(s) itself goes on to underflow.
_LINEAR_BELOW = -30.0
# The shortest local feature that is still brought to length one.
_SHORTEST = 1e-6


@poolings.register("delf")
class AttentivePooling(Pooling):
    """A weighted mean of the local features; the weights are scores of a learned network.

    Unlike in the paper the weights are normalised to sum to 1: the vector does not grow with the map, and a common
    factor of the scores does not matter. All weights start equal: training begins with average pooling.

    Reference: Noh et al. 2017.
    Needs: training; the authors train the scores on a fixed backbone, as learned together the two may settle badly.
    Use when: clutter or background takes much of the image, and each local feature tells by itself whether it matters.

    Args:
        channels: channels of the map.
        hidden: hidden units of the network that scores.
        normalise: whether local features are brought to length one before they are summed; scores see them as they are.
    """

    def __init__(self, channels: int, hidden: Count = 512, normalise: bool = False) -> None:
        super().__init__(channels)
        self._check(hidden=hidden)
        self.normalise = normalise
        self.score = nn.Sequential(nn.Conv2d(channels, hidden, 1), nn.ReLU(), nn.Conv2d(hidden, 1, 1))
        for parameter in self.score[2].parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C)."""
        weights = self.weights(features)[:, None]
        local = F.normalize(features, dim=1, eps=_SHORTEST) if self.normalise else features
        return (weights * local).sum(dim=(2, 3)).to(features.dtype)

    def weights(self, features: Tensor) -> Tensor:
        """The weight (B, H, W) of each position, summing to 1."""
        scores = widen(self.score(features)[:, 0])
        # Softplus over its sum, through logarithms: very low scores everywhere would be 0 / 0.
        logarithms = torch.where(scores < _LINEAR_BELOW, scores, F.softplus(scores.clamp(min=_LINEAR_BELOW)).log())
        return logarithms.flatten(1).softmax(dim=1).view_as(scores)
