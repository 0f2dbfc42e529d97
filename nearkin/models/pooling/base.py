"""Poolings by name: their base class, and what several of them share."""

from __future__ import annotations

import inspect
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
