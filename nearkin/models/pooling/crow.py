"""Cross-dimensional weighting: strong positions count more, and so do channels that are rarely on.

`y_k = I_k sum_n S_n x_kn`, with `S = (s / |s|_a)^(1/b)`, s_n the sum of the channels at a position, and
`I_k = log(sum_h Q_h / Q_k)`, Q_k the share of positions where a channel is on.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from nearkin.errors import ModelError
from nearkin.models.pooling.base import Pooling, poolings
from nearkin.registry import Positive

_Norm = Annotated[float, Field(ge=1, allow_inf_nan=False)]

# The smallest normalised sum that enters: the root is infinitely steep at zero, and a map of zeros has shares too.
_SMALLEST_SUM = 1e-6
# Keeps the channel weights finite where a channel is off everywhere.
_SMALLEST_SHARE = 1e-6


@poolings.register("crow")
class CrossDimensionalPooling(Pooling):
    """A weighted sum over positions, each channel then weighted by how rare it is.

    Only what is positive decides the weights; what is pooled keeps its sign. The channel weights count, so they are
    constant to the gradient.

    Reference: Kalantidis et al. 2016.
    Needs: a map after ReLU, where zero means absent: in a signed map no channel is rare. Nothing is learned.
    Use when: a pretrained network is used as it is and its strong activations mark the object.

    Args:
        channels: channels of the map; at least 2, as rarity is relative.
        norm: a, the norm that the sums are divided by, at least 1; it sets the scale of the vector only.
        root: b, the root taken of the sums; 1 takes them as they are, more evens positions out.
    """

    def __init__(self, channels: int, norm: _Norm = 2.0, root: Positive = 2.0) -> None:
        super().__init__(channels)
        if channels < 2:
            raise ModelError(f"CroW pooling compares channels with each other and needs at least 2, got {channels}.")
        self._check(norm=norm, root=root)
        self.norm = norm
        self.root = root

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C)."""
        pooled = (self._spatial(features)[:, None] * features).sum(dim=(2, 3))
        return (self._rarity(features) * pooled).to(features.dtype)

    def weights(self, features: Tensor) -> Tensor:
        """The share (B, H, W) of each position, the same for all channels."""
        spatial = self._spatial(features)
        return spatial / spatial.sum(dim=(1, 2), keepdim=True)

    def _spatial(self, features: Tensor) -> Tensor:
        """The weight (B, H, W) of each position, in single precision or better."""
        sums = features.clamp(min=0).sum(dim=1, dtype=torch.promote_types(features.dtype, torch.float32))
        # Divided by the largest first: powers would over- or underflow.
        largest = sums.amax(dim=(1, 2), keepdim=True).detach()
        relative = sums / torch.where(largest > 0, largest, 1.0)
        # The powers sum to one or more, but for a map of zeros, where the root would be infinitely steep.
        length = relative.pow(self.norm).sum(dim=(1, 2), keepdim=True).clamp(min=0.5).pow(1.0 / self.norm)
        return (relative / length).clamp(min=_SMALLEST_SUM).pow(1.0 / self.root)

    def _rarity(self, features: Tensor) -> Tensor:
        """The weight (B, C) of each channel, in single precision or better."""
        share = (features > 0).to(torch.promote_types(features.dtype, torch.float32)).mean(dim=(2, 3)) + _SMALLEST_SHARE
        return (share.sum(dim=1, keepdim=True) / share).log()
