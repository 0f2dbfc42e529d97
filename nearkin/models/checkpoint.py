"""An embedder as one safetensors file, with architecture and card as JSON in its metadata. Nothing is pickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nearkin.errors import CheckpointError, NearkinError
from nearkin.models.card import Card
from nearkin.storage import replacing

if TYPE_CHECKING:
    from nearkin.models.embedder import Embedder


FORMAT = "nearkin.embedder"
VERSION = 1


def save_embedder(embedder: Embedder, path: str | Path) -> None:
    """Write an embedder, whole or not at all."""
    try:
        card = json.dumps(embedder.card.to_dict(), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"The model's card must contain only plain JSON values ({error}).") from error
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "architecture": json.dumps(embedder.architecture()),
        "card": card,
    }
    write_tensors(path, embedder.state_dict(), metadata)


def load_embedder(path: str | Path) -> Embedder:
    """Read an embedder and put it into eval mode, on the CPU.

    Raises:
        CheckpointError: the file is missing, damaged, something else, or of another version.
    """
    from nearkin.models.build import assemble

    metadata, weights = _read(Path(path))
    try:
        architecture, card = json.loads(metadata["architecture"]), Card.from_dict(json.loads(metadata["card"]))
        embedder = assemble(architecture, pretrained=False)
        embedder.load_state_dict(weights)
    except NearkinError as error:
        raise CheckpointError(f"{path} could not be loaded: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{path} is damaged: its tensors do not fit its architecture ({reason}).") from error
    embedder.card = card
    embedder.eval()
    return embedder


def fingerprint(embedder: Embedder) -> str:
    """A sha256, in hex, over architecture and weights; the card and what was frozen do not count."""
    architecture = embedder.architecture()
    for key in ("freeze", "frozen_batch_norm"):
        del architecture[key]
    del architecture["backbone"]["pretrained"]
    return hash_tensors(embedder.state_dict(), architecture)


def hash_tensors(tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> str:
    """A sha256, in hex, over named tensors (names, types, shapes and values) and JSON-safe facts."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"\n{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors and texts as one safetensors file, whole or not at all."""
    # Contiguous copies: safetensors keeps neither shared storage nor memory formats.
    copies = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    with replacing(path) as temporary:
        save_file(copies, temporary, metadata)


def read_tensors(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The texts and the tensors of a safetensors file.

    Raises:
        SafetensorError, OSError: the file is missing, damaged or something else.
    """
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a file that says it is an embedder of this version."""
    if not path.is_file():
        raise CheckpointError(f"There is no model file {path}: check the path.")
    try:
        metadata, weights = read_tensors(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a model file of nearkin, or it is damaged ({error}).") from error
    _check(path, metadata)
    return metadata, weights


def _check(path: Path, metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} is a safetensors file, but not a model that nearkin saved.")
    version = metadata.get("version", "")
    if version == str(VERSION):
        return
    if version.isdecimal() and int(version) > VERSION:
        raise CheckpointError(f"{path} was made by a newer nearkin (format {version}): upgrade nearkin to read it.")
    raise CheckpointError(
        f"{path} has the format version '{version}', but this nearkin reads version {VERSION}: train the model again."
    )
