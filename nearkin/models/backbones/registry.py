"""Backbones by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from nearkin.data.inputs import InputSpec
from nearkin.errors import ModelError
from nearkin.models.backbones.base import Backbone
from nearkin.models.backbones.from_timm import PREFIX, timm_backbone
from nearkin.registry import Registry

_COLOUR = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_GREY = ((0.5,), (0.5,))


@dataclass(frozen=True)
class BackboneEntry:
    """How to make one backbone.

    Args:
        build: makes it, with fresh weights, for an input.
        size: the side of its input unless another is asked for; for audio the mel bands.
        smallest: the smallest side it can work with.
        kind: what it eats.
        statistics: mean and std of its colour input, where its weights were trained with others than ImageNet's usual.
        load_weights: puts pretrained weights into what `build` made; None where there are none.
    """

    build: Callable[[InputSpec], Backbone]
    size: int
    smallest: int
    kind: Literal["image", "audio"] = "image"
    statistics: tuple[tuple[float, ...], tuple[float, ...]] = _COLOUR
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
        backbone = timm_backbone(name, pretrained=pretrained, channels=channels, size=size)
    else:
        backbone = _own_backbone(name, pretrained, channels, size)
    backbone.config = {
        "name": name,
        "pretrained": pretrained,
        "channels": backbone.spec.channels,
        "size": backbone.spec.size,
    }
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
