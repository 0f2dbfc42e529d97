"""ImageNet weights of BN-Inception, from a file that the user puts beside the caches: no package holds it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

from nearkin.data.catalogue.places import cache_directory
from nearkin.errors import MissingWeightsError, ModelError
from nearkin.models.backbones.base import Backbone

_FILE = "bn_inception-52deb4733.pth"
# Its name ends in the first digits.
_SHA256_BEGINS = "52deb4733"
_FIRST = "stages.stem.conv1_7x7_s2.0.weight"


def load_published_weights(backbone: Backbone) -> None:
    """Put the published ImageNet weights into a backbone, after checking the file's sha256.

    The network was trained on blue, green, red; its first convolution is turned round to take ours.
    """
    path = cache_directory() / "weights" / _FILE
    renamed = _renamed(_published(path), backbone, path)
    renamed[_FIRST] = renamed[_FIRST].flip(1)
    backbone.load_state_dict(renamed)


def _published(path: Path) -> dict[str, Tensor]:
    """The tensors of the file under their public names."""
    if not path.is_file():
        raise MissingWeightsError(
            f"The pretrained weights of bn-inception are not here: put the published file {path.name} into "
            f"{path.parent}, or set model.pretrained to false."
        )
    if not hashlib.sha256(path.read_bytes()).hexdigest().startswith(_SHA256_BEGINS):
        raise _damaged(path)
    try:
        published = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for what it cannot read
        raise _damaged(path) from error
    if not isinstance(published, dict):
        raise _damaged(path)
    return published


def _renamed(published: dict[str, Tensor], backbone: Backbone, path: Path) -> dict[str, Tensor]:
    """The published tensors, without the classifier, under our names.

    Every layer is a convolution and a batch norm, `inception_3a_3x3` and `inception_3a_3x3_bn`.
    """
    renamed = {}
    for ours, layer in backbone.named_modules():
        if not isinstance(layer, nn.Conv2d | nn.BatchNorm2d):
            continue
        unit, place = ours.rsplit(".", 1)
        _, stage, *_, name = unit.split(".")
        theirs = (name if stage == "stem" else f"{stage}_{name}") + ("_bn" if place == "1" else "")
        for key, wanted in layer.state_dict().items():
            if key == "num_batches_tracked":  # younger than the file
                continue
            found = published.get(f"{theirs}.{key}")
            # In the file the vectors of batch norms are rows (1, C).
            if not isinstance(found, Tensor) or found.shape not in (wanted.shape, (1, *wanted.shape)):
                raise _damaged(path)
            renamed[f"{ours}.{key}"] = found.reshape(wanted.shape)
    return renamed


def _damaged(path: Path) -> ModelError:
    return ModelError(
        f"{path.name} in {path.parent} is not the published file of bn-inception, or is damaged: replace it, or set "
        "model.pretrained to false."
    )
