"""Published weight files that no package holds: the user puts one beside the caches, and its checksum is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearkin.errors import MissingWeightsError, ModelError
from nearkin.storage import cache_directory


@dataclass(frozen=True)
class PublishedFile:
    """A weight file as its publisher offers it.

    Args:
        name: its name, which ends in the first digits of its sha256.
        address: the folder it is downloaded from.
    """

    name: str
    address: str

    @property
    def digits(self) -> str:
        """The first digits of its sha256."""
        return self.name.rpartition("-")[2].partition(".")[0]


class PublishedWeights:
    """The tensors of one of several published files of a backbone, read by name.

    Args:
        backbone: its name, for messages.
        files: the files that will do; the first that is there is taken.
    """

    def __init__(self, backbone: str, files: Sequence[PublishedFile]) -> None:
        self.backbone = backbone
        folder = cache_directory() / "weights"
        file = next((file for file in files if (folder / file.name).is_file()), None)
        if file is None:
            address = f"{files[0].address}/{files[0].name}"
            others = "".join(f"; {file.name} will do, too" for file in files[1:])
            raise MissingWeightsError(
                f"The pretrained weights of {backbone} are not here: download {address} (sha256 {files[0].digits}…"
                f"{others}) into {folder}, or set model.pretrained to false."
            )
        self._path = folder / file.name
        self._tensors = self._read(file)

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

    def _read(self, file: PublishedFile) -> dict[str, Tensor]:
        if not hashlib.sha256(self._path.read_bytes()).hexdigest().startswith(file.digits):
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
