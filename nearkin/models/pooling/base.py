"""Poolings by name: their base class, what several of them share, and those that learn nothing."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nearkin.errors import ModelError
from nearkin.registry import Registry, check_parameters
from nearkin.spaces import kcenter


class Pooling(nn.Module):
    """Base of all poolings: a feature map (B, C, H, W) becomes a vector (B, out_channels).

    Args:
        channels: C.
        out_channels: size of the vector; None: C.

    Attributes:
        gives_attributes: whether `with_attributes` works.
        keeps_coordinates: whether a value of the vector belongs to the channel of the same number, as in a mean.
        only_directions: whether local features count by their directions alone, wherever they are: their lengths then
            explain nothing.
        needs_map_size: whether `set_map_size` must be called before maps are pooled.
    """

    gives_attributes: ClassVar[bool] = False
    keeps_coordinates: ClassVar[bool] = True
    only_directions: ClassVar[bool] = False
    needs_map_size: ClassVar[bool] = False

    def __init__(self, channels: int, out_channels: int | None = None) -> None:
        super().__init__()
        self.channels = channels
        self.out_channels = channels if out_channels is None else out_channels
        self.config: dict[str, Any] | None = None
        """Name and parameters that `make_pooling` was given; None if built by hand."""

    def _check(self, **parameters: Any) -> None:
        """Refuse parameters that the annotations of the constructor do not allow."""
        kind = type(self)
        check_parameters(kind, parameters, names=parameters, owner="pooling", key=kind.__name__, error=ModelError)

    def set_map_size(self, height: int, width: int) -> None:
        """Learn the size of the maps to come, where `out_channels` depends on it; nothing by default."""

    @property
    def has_parameters(self) -> bool:
        """Whether there is something to learn; if not, pooled vectors can be cached."""
        return any(True for _ in self.parameters())

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, out_channels)."""
        raise NotImplementedError

    def weights(self, features: Tensor) -> Tensor | None:
        """The weight (B, H, W) of each position of a map (B, C, H, W), summing to 1; None if positions have none."""
        return None

    def with_attributes(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The pooled vectors (B, out_channels), and attributes (B, M): how much of each of M things was pooled.

        Only where `gives_attributes` is true.
        """
        raise NotImplementedError

    @property
    def starts_from_data(self) -> bool:
        """Whether `init_from` does anything."""
        return type(self).init_from is not Pooling.init_from

    def init_from(self, features: Tensor, seed: int = 0) -> None:
        """Take the first values of what is learned from maps (B, C, H, W) of training items; nothing by default."""


poolings: Registry[Callable[..., Pooling]] = Registry("pooling")


def make_pooling(name: str, channels: int, **parameters: Any) -> Pooling:
    """Make a pooling by its name.

    Args:
        name: one of `list_poolings()`.
        channels: channels of the feature map.
        parameters: of the pooling's own; those left out keep their defaults.
    """
    pooling = poolings.get(name)(channels, **check_pooling(name, parameters))
    # As given, not as converted: a fingerprint depends on it.
    pooling.config = {"name": name, "parameters": dict(parameters)}
    return pooling


def list_poolings() -> list[str]:
    """Names of the poolings, sorted."""
    return poolings.names()


def check_pooling(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters converted to the types that the pooling's constructor declares.

    Raises:
        UnknownNameError: no pooling has this name.
        ModelError: a parameter that the pooling does not have, or a value of the wrong type or out of range.
    """
    entry = poolings.get(name)
    known = [key for key in inspect.signature(entry).parameters if key != "channels"]
    return check_parameters(
        entry, parameters, names=known, owner=f"pooling '{name}'", key="model.pooling_parameters", error=ModelError
    )


def doubled(x: Tensor) -> Tensor:
    """The same values in double precision; on the CPU if they come from Apple's GPUs, which have none."""
    return (x.cpu() if x.device.type == "mps" else x).double()


_ENOUGH = 1024
"""How many local features are looked at; more cost time and hardly move the centers."""


@torch.no_grad()
def pick_centers(points: Tensor, count: int, seed: int, setting: str) -> Tensor:
    """Centers (count, D) among local features (N, D), far from each other.

    Args:
        points: (N, D), N at least `count`.
        count: how many centers.
        seed: of the draw, where there are more points than are looked at.
        setting: what recipes call the number of centers, for messages.
    """
    if len(points) < count:
        raise ModelError(
            f"There are only {len(points)} local features for {count} {setting} to start from: lower "
            f"model.pooling_parameters.{setting}, or give larger images."
        )
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    points = points[order[: max(_ENOUGH, 4 * count)].to(points.device)]
    return points[kcenter(points.unsqueeze(0), count)[0]]


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
        return torch.full_like(features[:, 0], 1.0 / math.prod(features.shape[2:]))


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
