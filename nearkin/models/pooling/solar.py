"""SOLAR pooling: every position looks at all others before the map is pooled.

`x_i + W sum_j softmax_j(q_i . k_j / sqrt(d)) v_j`, then the generalised mean over positions.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from nearkin.errors import ModelError
from nearkin.models.pooling.base import Pooling, poolings
from nearkin.models.pooling.gem import GeneralisedMeanPooling
from nearkin.registry import Count, Positive
from nearkin.spaces.space import widen

# Products of larger queries and keys would overflow, and infinity minus infinity is no number.
_LARGEST = 1e15


@poolings.register("solar")
class SolarPooling(Pooling):
    """Second-order attention, a non-local block with a residual, followed by generalised-mean pooling.

    The convolution that closes the block starts at zero, so at first this is GeM pooling. Queries and keys are plain
    convolutions: without the batch normalisation and ReLU of the authors' code, an item does not depend on its batch.

    Reference: Ng et al. 2020.
    Needs: a map that is not negative, as GeM does; a few epochs, since the attention starts from nothing.
    Use when: instance retrieval; whether a region matters depends on what else is in the image.

    Args:
        channels: channels of the map.
        reduction: how many times fewer channels queries, keys and values have.
        p: initial exponent of the generalised mean, which is learned.
    """

    def __init__(self, channels: int, reduction: Count = 2, p: Positive = 3.0) -> None:
        super().__init__(channels)
        if not 1 <= reduction <= channels:
            raise ModelError(f"The reduction of SOLAR must be from 1 to the {channels} channels, got {reduction}.")
        inner = channels // reduction
        self.queries = nn.Conv2d(channels, inner, 1)
        self.keys = nn.Conv2d(channels, inner, 1)
        self.values = nn.Conv2d(channels, inner, 1)
        self.back = nn.Conv2d(inner, channels, 1)
        for parameter in self.back.parameters():
            nn.init.zeros_(parameter)
        self.mean = GeneralisedMeanPooling(channels, p)

    def attend(self, features: Tensor) -> Tensor:
        """The map (B, C, H, W) after each position has looked at all others."""
        queries = widen(self.queries(features)).clamp(-_LARGEST, _LARGEST)
        keys = widen(self.keys(features)).clamp(-_LARGEST, _LARGEST)
        values = widen(self.values(features))
        # With an axis for its one head: exporters know attention in no other form.
        seen = functional.scaled_dot_product_attention(_rows(queries), _rows(keys), _rows(values)).squeeze(1)
        return features + self.back(seen.mT.unflatten(2, features.shape[2:]))

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C)."""
        return self.mean(self.attend(features))


def _rows(features: Tensor) -> Tensor:
    """Local features (B, 1, N, C) of a map (B, C, H, W)."""
    return features.flatten(2).mT.unsqueeze(1)
