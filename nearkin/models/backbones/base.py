"""A backbone is an ordered chain of named stages: it can be cut, frozen and cached between any two of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from nearkin.data.inputs import InputSpec
from nearkin.errors import UnknownNameError, suggestion


class Backbone(nn.Module):
    """Feature maps of an input, stage by stage.

    Args:
        spec: what the first stage eats.
        stages: the stages in the order they run.
        widths: channels of the map after each stage.
    """

    def __init__(self, spec: InputSpec, stages: Mapping[str, nn.Module], widths: Mapping[str, int]) -> None:
        super().__init__()
        self.spec = spec
        self.stages = nn.ModuleDict(stages)
        self.widths = dict(widths)
        self.config: dict[str, Any] | None = None
        """What `make_backbone` was given, so that a checkpoint can build the same again; None if built by hand."""

    @property
    def stage_names(self) -> list[str]:
        """The stages, first to last."""
        return list(self.stages)

    @property
    def channels(self) -> int:
        """Channels of the last map."""
        return self.widths[self.stage_names[-1]]

    def forward(self, x: Tensor, start: str | None = None, stop: str | None = None) -> Tensor:
        """Run the stages after `start` up to and including `stop`.

        Args:
            x: a normalised input (B, C, H, W), or the map after stage `start`.
            start: the stage whose output `x` is; None: `x` is an input.
            stop: the last stage to run; None: all.

        Returns:
            The map (B, C', H', W'); for audio (B, C', 1, T).
        """
        for name in self.between(start, stop):
            x = self.stages[name](x)
        return x

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        """The map after every stage, of an input (B, C, H, W)."""
        found = {}
        for name, stage in self.stages.items():
            x = stage(x)
            found[name] = x
        return found

    def between(self, start: str | None, stop: str | None) -> list[str]:
        """Names of the stages after `start` up to and including `stop`."""
        first = 0 if start is None else self.position(start) + 1
        last = len(self.stages) if stop is None else self.position(stop) + 1
        return self.stage_names[first:last]

    def position(self, stage: str) -> int:
        """Place of a stage in the chain, from 0."""
        if stage not in self.stages:
            raise UnknownNameError(f"The backbone has no stage '{stage}'.{suggestion(stage, self.stages)}")
        return self.stage_names.index(stage)


def initialise(module: nn.Module) -> None:
    """Draw the weights of all convolutions by He's rule over their outputs: variance 2 / (k^2 out / groups)."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            fan = layer.kernel_size[0] * layer.kernel_size[1] * layer.out_channels // layer.groups
            nn.init.normal_(layer.weight, 0.0, math.sqrt(2.0 / fan))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
