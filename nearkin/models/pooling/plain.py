"""The poolings without parameters: average, maximum, their sum."""

from __future__ import annotations

from torch import Tensor

from nearkin.models.pooling.registry import Pooling, poolings


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
