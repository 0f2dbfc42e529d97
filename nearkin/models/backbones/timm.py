"""Backbones of timm, by the names that timm itself has."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor, nn

from nearkin.data.inputs import InputSpec
from nearkin.errors import ModelError, require
from nearkin.models.backbones.base import COLOUR, PREFIX, Backbone

# timm also takes addresses ("hf-hub:owner/model", "local-dir:/folder") and may unpickle what is there. A name can come
# from a stranger's model file, so only names of models that timm itself has are passed on.
_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")


class _LastMap(nn.Module):
    """A timm feature extractor reduced to its last map, channels first."""

    def __init__(self, extractor: nn.Module, channels_last: bool) -> None:
        super().__init__()
        self.extractor = extractor
        self.channels_last = channels_last

    def forward(self, x: Tensor) -> Tensor:
        last = self.extractor(x)[-1]
        return last.permute(0, 3, 1, 2) if self.channels_last else last


def timm_backbone(name: str, *, pretrained: bool, channels: int | None, size: int | None) -> Backbone:
    """Wrap `timm.create_model(..., features_only=True)`.

    Models that timm itself runs as a chain keep one stage for each of its feature levels; all others (vision
    transformers, for one) become a single stage "trunk". Normalisation and size follow the model's own configuration.

    Args:
        name: "timm/" and a name that timm itself has; no address of a model elsewhere.
        pretrained: load timm's weights, which may download them.
        channels: input channels; None is 3.
        size: side of the input; None: the model's own.
    """
    timm = require("timm", extra="timm")
    wanted = name.removeprefix(PREFIX)
    if not _NAME.fullmatch(wanted):
        raise ModelError(
            f"'{wanted}' is not the name of a timm model: hub addresses are not accepted, see timm.list_models()."
        )
    channels = 3 if channels is None else channels
    try:
        extractor = timm.create_model(wanted, pretrained=pretrained, features_only=True, in_chans=channels)
    except Exception as error:  # timm raises many kinds for names, weights and downloads
        reason = " ".join(str(error).split())
        raise ModelError(
            f"timm could not make '{wanted}' ({reason}): check the name with timm.list_models()."
        ) from error
    config = getattr(extractor, "pretrained_cfg", None) or getattr(extractor, "default_cfg", None) or {}
    side = int(config.get("input_size", (3, 224, 224))[-1]) if size is None else size
    mean, std = tuple(config.get("mean", COLOUR[0])), tuple(config.get("std", COLOUR[1]))
    if channels == 1:
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    return Backbone(InputSpec(channels=channels, size=side, mean=mean, std=std), *_stages(extractor))


def _stages(extractor: Any) -> tuple[dict[str, nn.Module], dict[str, int]]:
    """The chain of an extractor, cut after each feature level, and the channels at the cuts."""
    channels = [int(width) for width in extractor.feature_info.channels()]
    levels = getattr(extractor, "return_layers", None)
    channels_last = getattr(extractor, "output_fmt", "NCHW") == "NHWC"
    if channels_last or not isinstance(extractor, nn.ModuleDict) or not levels:
        return {"trunk": _LastMap(extractor, channels_last)}, {"trunk": channels[-1]}
    stages: dict[str, nn.Module] = {}
    waiting: list[nn.Module] = []
    for layer, module in extractor.items():
        waiting.append(module)
        if layer in levels:
            stages[layer] = nn.Sequential(*waiting)
            waiting = []
    return stages, dict(zip(stages, channels, strict=True))
