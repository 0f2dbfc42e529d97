"""Published weight files that no package holds: the user puts one beside the caches, and its checksum is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
            raise MissingWeightsError(
                f"The pretrained weights of {backbone} are not here: download {address} (sha256 {files[0].digits}…"
                f"{_others(files[1:])}) into {folder}, or set model.pretrained to false."
            )
        self._path = folder / file.name
        self._tensors = self._read(file)

    def take(self, name: str, like: Tensor) -> Tensor:
        """A tensor by its published name, in the shape of ours; vectors may be rows (1, C) there."""
        found = self._tensors.get(name)
        if not isinstance(found, Tensor) or found.shape not in (like.shape, (1, *like.shape)):
            raise self._damaged()
        return found.reshape(like.shape)

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


def _others(files: Sequence[PublishedFile]) -> str:
    return "".join(f"; {file.name} will do, too" for file in files)
