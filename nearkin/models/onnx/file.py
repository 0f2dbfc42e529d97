"""Writing a model as an ONNX file: whole or not at all, and only if it gives the vectors that the model gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nearkin.errors import ModelError, require
from nearkin.models.onnx.description import Description, describe
from nearkin.models.onnx.encoder import OnnxEncoder
from nearkin.models.onnx.graph import build_graph, example
from nearkin.storage import replacing, write_json

if TYPE_CHECKING:
    from nearkin.models.embedder import Embedder

TOLERANCE = 1e-4
"""Largest difference of a coordinate between the file's vectors and the model's, as `parity` counts it."""

_BATCH = 3
_SEED = 0


@dataclass(frozen=True)
class Exported:
    """What an export gave.

    Attributes:
        path: the file.
        difference: the largest difference of a coordinate to the model's vectors, as `parity` counts it.
        description: what the file says of itself.
    """

    path: Path
    difference: float
    description: Description


def export(embedder: Embedder, path: str | Path) -> Exported:
    """Write a model as an ONNX file, with its description as JSON beside it (`model.onnx.json`).

    The file takes samples float32 (batch, C, H, W), which `Description.preprocessing` says how to make, and gives the
    points of the space float32 (batch, d) that `Embedder.encode` gives.

    Raises:
        ModelError: a layer cannot be exported, which is named; or vectors differ, and nothing is written.
        StorageError: the file cannot be written.
    """
    path = onnx_path(path)
    content, description = serialised(embedder)
    difference = checked(embedder, content)
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    write_json(sidecar(path), description.to_dict())
    return Exported(path, difference, description)


def serialised(embedder: Embedder) -> tuple[bytes, Description]:
    """The content of the file, and what it says of itself."""
    graph, description = build_graph(embedder), describe(embedder)
    return with_properties(graph, description), description


def with_properties(graph: Any, description: Description) -> bytes:
    """A graph as the content of a file that describes itself."""
    onnx = require("onnx", "onnx")
    onnx.helper.set_model_props(graph, description.properties())
    graph.producer_name = "nearkin"
    content: bytes = graph.SerializeToString()
    return content


def checked(embedder: Embedder, content: bytes) -> float:
    """The largest difference between a file's vectors and the model's.

    Raises:
        ModelError: it is too large.
    """
    difference = parity(embedder, OnnxEncoder(content))
    if not difference <= TOLERANCE:
        raise ModelError(
            f"The exported model gives other vectors than the model (they differ by up to {difference:.2g}, at most "
            f"{TOLERANCE:g} is allowed): nothing was written; run the model with the engine 'torch'."
        )
    return difference


@torch.no_grad()
def parity(embedder: Embedder, encoder: OnnxEncoder) -> float:
    """The largest difference of a coordinate between two ways to run a model, on random samples.

    Of vectors longer than one it counts relative to their length: single precision has seven digits.
    """
    from nearkin.models.encoder import Encoder

    shape = (_BATCH, *example(embedder.spec).shape[1:])
    samples = torch.rand(shape, generator=torch.Generator().manual_seed(_SEED))
    ours = Encoder(embedder)(samples).float().cpu().numpy()
    lengths = np.linalg.norm(ours, axis=1, keepdims=True)
    return float((np.abs(ours - encoder(samples).numpy()) / np.maximum(lengths, 1)).max())


def sidecar(path: Path) -> Path:
    """Where the description of a file lies."""
    return path.with_name(f"{path.name}.json")


def onnx_path(path: str | Path) -> Path:
    """The path of an ONNX file, refused with another ending."""
    path = Path(path)
    if path.suffix != ".onnx":
        raise ModelError(f"{path} must end in .onnx: write, for example, to {path.with_suffix('.onnx').name}.")
    return path
