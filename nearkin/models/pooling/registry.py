"""Poolings by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from nearkin.errors import ModelError, suggestion
from nearkin.registry import Registry


class Pooling(nn.Module):
    """Base of all poolings: a feature map (B, C, H, W) becomes a vector (B, out_channels).

    Args:
        channels: C.
        out_channels: size of the vector; None: C.

    Attributes:
        gives_attributes: whether `with_attributes` works.
    """

    gives_attributes: ClassVar[bool] = False

    def __init__(self, channels: int, out_channels: int | None = None) -> None:
        super().__init__()
        self.channels = channels
        self.out_channels = channels if out_channels is None else out_channels
        self.config: dict[str, Any] | None = None
        """Name and parameters that `make_pooling` was given; None if built by hand."""

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
    check_pooling(name, parameters)
    pooling = poolings.get(name)(channels, **parameters)
    pooling.config = {"name": name, "parameters": dict(parameters)}
    return pooling


def list_poolings() -> list[str]:
    """Names of the poolings, sorted."""
    return poolings.names()


def check_pooling(name: str, parameters: dict[str, Any]) -> None:
    """Refuse an unknown pooling or a parameter it does not have."""
    known = [key for key in inspect.signature(poolings.get(name)).parameters if key != "channels"]
    for parameter in parameters:
        if parameter not in known:
            hint = suggestion(parameter, known) or " It takes none."
            raise ModelError(f"The pooling '{name}' has no parameter '{parameter}'.{hint}")
