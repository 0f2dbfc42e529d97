"""WELDON pooling: what speaks most for a channel and what speaks most against it.

`mean of the k_max highest values + mean of the k_min lowest values` of each channel.
"""

from __future__ import annotations

from torch import Tensor

from nearkin.errors import ModelError
from nearkin.models.pooling.base import Pooling, poolings
from nearkin.registry import CountOrZero


@poolings.register("weldon")
class WeldonPooling(Pooling):
    """The mean of the highest values of each channel plus the mean of the lowest.

    Of n positions, (1, 0) is max pooling, (n, 0) the average and (n, n) twice the average.

    Reference: Durand et al. 2016.
    Needs: a map with negative values, so one that is not after ReLU, for the lowest values to say anything.
    Use when: a small detail decides, and some details tell that it is another class.

    Args:
        channels: channels of the map.
        k_max: how many of the highest values; more than there are positions means all.
        k_min: how many of the lowest.
    """

    def __init__(self, channels: int, k_max: CountOrZero = 3, k_min: CountOrZero = 3) -> None:
        super().__init__(channels)
        if min(k_max, k_min) < 0 or max(k_max, k_min) < 1:
            raise ModelError(
                f"k_max and k_min of WELDON pooling must be from 0 and not both 0, got {k_max} and {k_min}."
            )
        self.k_max = k_max
        self.k_min = k_min

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C)."""
        values = features.flatten(2)
        return _mean_of_highest(values, self.k_max) - _mean_of_highest(-values, self.k_min)


def _mean_of_highest(values: Tensor, k: int) -> Tensor:
    """Mean (B, C) of the k highest of N values (B, C, N), of all if k is larger; zero if k is."""
    if k == 0:
        return values.new_zeros(values.shape[:2])
    if k >= values.shape[2]:
        return values.mean(dim=2)
    return values.topk(k, dim=2, sorted=False).values.mean(dim=2)
