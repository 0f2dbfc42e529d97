"""Published weight files that no package holds: the user puts one beside the caches, and its checksum is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from nearkin.errors import MissingWeightsError, ModelError
from nearkin.storage import cache_directory


class PublishedWeights:
    """The tensors of one of several published files of a backbone, read by name.

    Args:
        backbone: its name, for messages.
        address: the folder that the files are downloaded from.
        files: names of the files that will do, of which the first that is there is taken.
    """

    def __init__(self, backbone: str, address: str, files: Sequence[str]) -> None:
        self.backbone = backbone
        folder = cache_directory() / "weights"
        file = next((file for file in files if (folder / file).is_file()), None)
        if file is None:
            others = "".join(f"; {other} will do, too" for other in files[1:])
            raise MissingWeightsError(
                f"The pretrained weights of {backbone} are not here: download {address}/{files[0]} (sha256 "
                f"{digits(files[0])}…{others}) into {folder}, or set model.pretrained to false."
            )
        self._path = folder / file
        self._tensors = self._read()

    def renamed(self, network: nn.Module, published_name: Callable[[str], str]) -> dict[str, Tensor]:
        """The tensors of a network's convolutions and batch norms by their names there, in its shapes.

        Args:
            network: what they are for; vectors of it may be rows (1, C) in the file.
            published_name: of a layer, from its name in the network.
        """
        found = {}
        for ours, layer in network.named_modules():
            if not isinstance(layer, nn.Conv2d | nn.BatchNorm2d):
                continue
            for key, wanted in layer.state_dict().items():
                if key == "num_batches_tracked":  # younger than some of the files
                    continue
                tensor = self._tensors.get(f"{published_name(ours)}.{key}")
                if not isinstance(tensor, Tensor) or tensor.shape not in (wanted.shape, (1, *wanted.shape)):
                    raise self._damaged()
                found[f"{ours}.{key}"] = tensor.reshape(wanted.shape)
        return found

    def _read(self) -> dict[str, Tensor]:
        if not hashlib.sha256(self._path.read_bytes()).hexdigest().startswith(digits(self._path.name)):
            raise self._damaged()
        try:
            published = torch.load(self._path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds for what it cannot read
            raise self._damaged() from error
        if not isinstance(published, dict):
            raise self._damaged()
        return published

    def _damaged(self) -> ModelError:
        return ModelError(
            f"{self._path.name} in {self._path.parent} is not the published file of {self.backbone}, or is damaged: "
            "download it again, or set model.pretrained to false."
        )


def digits(file: str) -> str:
    """The first digits of a file's sha256, in which its name ends."""
    return file.rpartition("-")[2].partition(".")[0]
