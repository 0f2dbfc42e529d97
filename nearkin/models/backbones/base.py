"""A backbone is an ordered chain of named stages, made by name: one of ours or any of timm.

It can be cut, frozen and cached between any two stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.data.inputs import InputSpec
from nearkin.errors import ModelError, UnknownNameError, suggestion
from nearkin.models.backbones.drop_path import PathDraws, set_drop_path
from nearkin.registry import Registry


class Backbone(nn.Module):
    """Feature maps of an input, stage by stage.

    Args:
        spec: what the first stage takes.
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
        self.path_draws: PathDraws | None = None
        """What residual blocks draw from in training if they are left out at times; None: they never are."""

    def drop_paths(self, rate: float) -> None:
        """Let training leave residual blocks out for some samples; see `drop_path.set_drop_path`."""
        name = type(self).__name__ if self.config is None else self.config["name"]
        self.path_draws = set_drop_path(self, rate, name)

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


def initialise(backbone: Backbone) -> Backbone:
    """Draw all convolutions anew by He's rule over their outputs, variance 2 / (k^2 out / groups), in place."""
    for layer in backbone.modules():
        if isinstance(layer, nn.Conv2d):
            fan = layer.kernel_size[0] * layer.kernel_size[1] * layer.out_channels // layer.groups
            nn.init.normal_(layer.weight, 0.0, math.sqrt(2.0 / fan))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return backbone


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's SAME padding: the output has ceil(input / stride) positions.

    At stride 2 that padding is one larger on the right and at the bottom than on the left and at the top. Instead of
    copying the whole map into a padded one, the (tiny) kernel gets a row and a column of zeros in front, which makes
    the padding symmetric: the convolution then pads by itself.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Convolve (B, C, H, W) to (B, C', ceil(H / stride), ceil(W / stride))."""
        weight, padding = self._padded(input.shape[2], input.shape[3])
        return F.conv2d(input, weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def plain(self, height: int, width: int) -> nn.Conv2d:
        """The same for maps of one size only: a plain convolution whose kernel holds the zeros."""
        weight, padding = self._padded(height, width)
        settings = {"stride": self.stride, "dilation": self.dilation, "groups": self.groups}
        sizes: dict[str, Any] = {"kernel_size": tuple(weight.shape[2:]), "padding": padding, **settings}
        twin = nn.Conv2d(self.in_channels, self.out_channels, bias=self.bias is not None, **sizes)
        twin.load_state_dict(self.state_dict() | {"weight": weight})
        return twin.requires_grad_(False)

    def _padded(self, height: int, width: int) -> tuple[Tensor, tuple[int, int]]:
        """The kernel for maps (H, W), and the zeros to add on either side of them."""
        rows, columns = (
            max((-(-length // stride) - 1) * stride + kernel - length, 0)  # zeros to add in total along an axis
            for length, kernel, stride in zip((height, width), self.kernel_size, self.stride, strict=True)
        )
        weight = self.weight
        if rows % 2 or columns % 2:
            weight = F.pad(weight, (columns % 2, 0, rows % 2, 0))
        return weight, ((rows + 1) // 2, (columns + 1) // 2)


def conv_norm(
    conv: nn.Conv2d, activation: nn.Module | None = None, *, eps: float = 1e-5, momentum: float = 0.1
) -> nn.Sequential:
    """Convolution, batch norm and, if given, an activation; `speed.fold_batch_norm` makes it one convolution.

    The activation may work in place: batch norm does not need its output to go backward.
    """
    norm = nn.BatchNorm2d(conv.out_channels, eps=eps, momentum=momentum)
    return nn.Sequential(conv, norm) if activation is None else nn.Sequential(conv, norm, activation)


PREFIX = "timm/"

COLOUR = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_GREY = ((0.5,), (0.5,))


@dataclass(frozen=True)
class BackboneEntry:
    """How to make one backbone.

    Args:
        build: makes it, with fresh weights, for an input.
        size: the side of its input unless another is asked for; for audio the mel bands.
        smallest: the smallest side it can work with.
        kind: what it takes.
        statistics: mean and std of its colour input, where its weights were trained with others than ImageNet's usual.
        load_weights: puts pretrained weights into what `build` made; None where there are none.
    """

    build: Callable[[InputSpec], Backbone]
    size: int
    smallest: int
    kind: Literal["image", "audio"] = "image"
    statistics: tuple[tuple[float, ...], tuple[float, ...]] = COLOUR
    load_weights: Callable[[Backbone], None] | None = None

    def spec(self, channels: int | None, size: int | None) -> InputSpec:
        """The input for what the user asked for; None is the default of this backbone."""
        size = self.size if size is None else size
        if self.kind == "audio":
            return InputSpec.audio(mels=size)
        mean, std = _GREY if channels == 1 else self.statistics
        return InputSpec(channels=1 if channels == 1 else 3, size=size, mean=mean, std=std)


backbones: Registry[BackboneEntry] = Registry("backbone")


def make_backbone(
    name: str, *, pretrained: bool = False, channels: int | None = None, size: int | None = None
) -> Backbone:
    """Make a backbone by its name.

    Args:
        name: one of `list_backbones()`, or "timm/<name>" for any model of an installed timm.
        pretrained: load the weights that come with it; otherwise weights are drawn from torch's global generator.
        channels: 1 (grey) or 3 (colour); None: 3 for images, 1 for audio.
        size: side of the input in pixels, or mel bands; None: what the backbone was made for.
    """
    if name.startswith(PREFIX):
        from nearkin.models.backbones.timm import timm_backbone

        backbone = timm_backbone(name, pretrained=pretrained, channels=channels, size=size)
    else:
        backbone = _own_backbone(name, pretrained, channels, size)
    spec = backbone.spec
    backbone.config = {"name": name, "pretrained": pretrained, "channels": spec.channels, "size": spec.size}
    return backbone


def list_backbones(pretrained: bool = False) -> list[str]:
    """Names of the backbones, sorted; with `pretrained` only of those that come with weights."""
    return [name for name in backbones if not pretrained or backbones.get(name).load_weights is not None]


def check_backbone_name(name: str) -> None:
    """Refuse a name that `make_backbone` cannot know."""
    if not name.startswith(PREFIX):
        backbones.get(name)


def _own_backbone(name: str, pretrained: bool, channels: int | None, size: int | None) -> Backbone:
    entry = backbones.get(name)
    if channels not in (None, 1, 3) or (entry.kind == "audio" and channels == 3):
        raise ModelError(f"The backbone '{name}' cannot take {channels} channels: leave model.channels out.")
    if size is not None and size < entry.smallest:
        raise ModelError(f"The backbone '{name}' needs inputs of at least {entry.smallest}: raise model.size ({size}).")
    if pretrained and entry.load_weights is None:
        raise ModelError(
            f"The backbone '{name}' has no pretrained weights: set model.pretrained to false, or choose one of "
            f"{', '.join(list_backbones(pretrained=True))}."
        )
    if pretrained and channels == 1:
        raise ModelError(
            f"The pretrained weights of '{name}' take 3 channels: leave model.channels out; grey images are then "
            "turned into colour ones."
        )
    backbone = entry.build(entry.spec(channels, size))
    if pretrained and entry.load_weights is not None:
        entry.load_weights(backbone)
    return backbone
