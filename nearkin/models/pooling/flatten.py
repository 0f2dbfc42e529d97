"""Flattening: every value of the map, side by side."""

from __future__ import annotations

from torch import Tensor

from nearkin.errors import ModelError
from nearkin.models.pooling.registry import Pooling, poolings


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
                f"The pooling 'flatten' is made for maps of {wanted} (channels, height, width) and got {got}: give "
                "inputs of the size that the model was built for, or build it with another model.size."
            )
        return features.flatten(1)
