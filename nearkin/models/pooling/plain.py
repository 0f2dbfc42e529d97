"""The poolings that learn nothing: average, maximum, their sum, mean with deviation, and the map as it is."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.errors import ModelError
from nearkin.models.pooling.base import Pooling, poolings


@poolings.register("gap")
class AveragePooling(Pooling):
    """The mean over all positions.

    Use when: in doubt; it is the pooling that pretrained networks were trained with.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C)."""
        return features.mean(dim=(2, 3))

    def weights(self, features: Tensor) -> Tensor:
        """Equal weights (B, H, W)."""
        batch, _, height, width = features.shape
        return features.new_full((batch, height, width), 1.0 / (height * width))


@poolings.register("gmp")
class MaxPooling(Pooling):
    """The largest value of each channel.

    Use when: a small detail decides, wherever it is.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C)."""
        return features.amax(dim=(2, 3))


@poolings.register("gap+gmp")
class AverageMaxPooling(Pooling):
    """Mean plus maximum of each channel, as ProxyAnchor and its successors use it.

    Use when: a detail may decide and the whole of the image still counts; fine-grained classes.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C)."""
        return features.mean(dim=(2, 3)) + features.amax(dim=(2, 3))


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


@poolings.register("flatten")
class FlattenPooling(Pooling):
    """All values of the map as one vector, channel by channel: where something is counts as much as what it is.

    Until `set_map_size` says otherwise it is for maps of one position; building a model says it.

    Reference: Snell et al. 2017.
    Needs: inputs of one size; H x W times as many values as channels, which a head or the embedding has to take.
    Use when: few-shot learning with "conv4", whose embedding is its last map (1600 values at 84 px, 64 at 28 px).
    """

    keeps_coordinates = False
    needs_map_size = True

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.map_size = (1, 1)

    def set_map_size(self, height: int, width: int) -> None:
        """Make it one for maps (B, C, height, width)."""
        self.map_size = (height, width)
        self.out_channels = self.channels * height * width

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C H W), in this order whatever the memory format.

        Raises:
            ModelError: the map is of another size than it is made for.
        """
        if features.shape[1:] != (self.channels, *self.map_size):
            wanted, got = (
                " x ".join(map(str, shape)) for shape in ((self.channels, *self.map_size), features.shape[1:])
            )
            raise ModelError(
                f"The pooling 'flatten' is made for maps of {wanted} (channels, height, width) but got {got}: pass "
                f"inputs of the size that the model was built for, or build it with another model.size."
            )
        return features.flatten(1)
