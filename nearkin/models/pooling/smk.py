"""Selective match kernel pooling: local features weigh as much as they are long.

`W sum_i a_i h(x)_i + b` with `a_i = |x_i| / sum_j |x_j|`; h smooths the map, W and b whiten.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.errors import ModelError
from nearkin.models.pooling.base import Pooling, doubled, poolings
from nearkin.registry import Count, OddCount
from nearkin.spaces.space import widen

# Directions in which training items hardly vary are not blown up to the length of the others.
_FLOOR = 1e-3


@poolings.register("smk")
class MatchKernelPooling(Pooling):
    """The sum of smoothed, whitened local features, each weighted by the length it had before (HOW).

    A selective match kernel compares two images by the similarities of all pairs of their local features, and counts
    only those that are high. It selects twice: unimportant features are short, and unlike pairs are dropped. Only the
    first can be trained: without dropping pairs the kernel is the inner product of two sums, `sum_ij a_i a_j <x_i, x_j>
    = <sum_i a_i x_i, sum_j a_j x_j>`, and this sum is what is pooled here. The paper drops pairs after training, in a
    search over local features, and leaves the whitening as it was initialised. The weights are divided by their sum:
    the direction is that of the paper, the length that of a mean.

    Reference: Tolias et al. 2020.
    Needs: a backbone that can make background features short; whitening initialised with `init_from`.
    Use when: instance retrieval over cluttered images, where long features mark the distinctive regions.

    Args:
        channels: channels of the map.
        dimension: of the whitened features; None: as many as channels.
        window: positions on a side of the square that smoothing averages over; odd, 1 for none.
    """

    keeps_coordinates = False

    def __init__(self, channels: int, dimension: Count | None = None, window: OddCount = 3) -> None:
        width = channels if dimension is None else dimension
        if not 1 <= width <= channels:
            raise ModelError(f"The dimension of SMK pooling must be from 1 to the {channels} channels, got {width}.")
        self._check(window=window)
        super().__init__(channels, width)
        self.window = window
        self.whitening = nn.Linear(channels, width)
        nn.init.zeros_(self.whitening.bias)
        if width == channels:
            nn.init.eye_(self.whitening.weight)
        else:
            nn.init.orthogonal_(self.whitening.weight)

    def weights(self, features: Tensor) -> Tensor:
        """The weight (B, H, W) of each position: its length over the sum of all; equal where all are zero."""
        wide = widen(features)
        # Scaled to 1 first, where squares neither overflow nor vanish; the weights do not depend on the scale.
        largest = wide.detach().abs().amax(dim=(1, 2, 3), keepdim=True)
        wide = wide / torch.where(largest == 0, torch.ones_like(largest), largest)
        lengths = torch.linalg.vector_norm(wide, dim=1) + torch.finfo(wide.dtype).eps
        return lengths / lengths.sum(dim=(1, 2), keepdim=True)

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, dimension)."""
        # The whitening is affine and the weights sum to 1, so it may come after the sum, where it is one row an item.
        pooled = (self.weights(features).unsqueeze(1) * self._smooth(features)).sum(dim=(2, 3))
        return self.whitening(pooled.to(features.dtype))

    @torch.no_grad()
    def init_from(self, features: Tensor, seed: int = 0) -> None:
        """Whiten by the principal components of the smoothed local features of maps (B, C, H, W); draws nothing."""
        local = doubled(self._smooth(features)).movedim(1, -1).flatten(0, -2)
        mean = local.mean(dim=0)
        centered = local - mean
        variances, directions = torch.linalg.eigh(centered.T @ centered / len(local))
        variances, directions = variances.flip(0)[: self.out_channels], directions.flip(1)[:, : self.out_channels]
        least = _FLOOR * variances[0] if variances[0] > 0 else 1.0
        weight = (directions / variances.clamp(min=least).sqrt()).T
        self.whitening.weight.copy_(weight)
        self.whitening.bias.copy_(-weight @ mean)

    def _smooth(self, features: Tensor) -> Tensor:
        """The map (B, C, H, W) averaged over a window around each position, as far as it lies inside."""
        margin = self.window // 2
        return functional.avg_pool2d(features, self.window, stride=1, padding=margin, count_include_pad=False)
