"""Generalised-mean pooling: between average and maximum, where exactly is learned.

`(mean_n x_n^p)^(1/p)` of values clamped to at least eps; p = 1 is the average, p -> infinity the maximum.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearkin.models.pooling.base import Pooling, poolings
from nearkin.registry import Positive


@poolings.register("gem")
class GeneralisedMeanPooling(Pooling):
    """The generalised mean of each channel, with one exponent for all.

    Reference: Radenović et al. 2018.
    Needs: a map that is not negative, such as one after ReLU; lower values are raised to eps.
    Use when: instance retrieval; distinctive regions should outweigh the rest without silencing it.

    Args:
        channels: channels of the map.
        p: initial exponent.
        learn_p: whether the exponent is trained.
        eps: the smallest value that enters.
    """

    def __init__(self, channels: int, p: Positive = 3.0, learn_p: bool = True, eps: Positive = 1e-6) -> None:
        super().__init__(channels)
        self._check(p=p, eps=eps)
        self.eps = eps
        exponent = torch.tensor(float(p))
        if learn_p:
            self.p: Tensor = nn.Parameter(exponent)
        else:
            self.register_buffer("p", exponent)

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C)."""
        # Divided by the maximum first: x^p over- or underflows for large p.
        values = features.clamp(min=self.eps)
        largest = values.amax(dim=(2, 3), keepdim=True).detach()
        mean = (values / largest).pow(self.p).mean(dim=(2, 3))
        return largest[:, :, 0, 0] * mean.pow(1.0 / self.p)
