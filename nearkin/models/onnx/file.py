"""A model as an ONNX file, in 32 or 8 bits, written whole and only if it gives the model's vectors.

In 8 bits x is stored as round(x / s) + z. The scale s of weights is each output channel's own; s and z of maps come
from the smallest and largest values that calibration samples give. What comes after the backbone is little work and
decides the distances: it stays in float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import CheckpointError, ModelError, StorageError, require
from nearkin.models.engines import Encoder
from nearkin.models.onnx.description import VERSION, Description, describe, fingerprint_of
from nearkin.models.onnx.encoder import ERRORS_ONLY, OnnxEncoder, as_samples
from nearkin.models.onnx.graph import INPUT, build_graph, example
from nearkin.storage import cache_directory, replacing, write_json

if TYPE_CHECKING:
    from nearkin.models.embedder import Embedder


TOLERANCE = 1e-4
"""Largest difference of a coordinate between the file's vectors and the model's, as `check_parity` counts it."""

_BATCH = 3
_SEED = 0


@dataclass(frozen=True)
class Exported:
    """What an export gave.

    Attributes:
        path: the file.
        difference: the largest difference of a coordinate to the model's vectors, as `check_parity` counts it.
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
    difference = check_parity(embedder, content)
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
    return graph.SerializeToString()


@torch.no_grad()
def check_parity(embedder: Embedder, content: bytes) -> float:
    """The largest difference of a coordinate between a file's vectors and the model's, on random samples.

    Of vectors longer than one it counts relative to their length: single precision has seven digits.

    Raises:
        ModelError: it is too large.
    """
    shape = (_BATCH, *example(embedder.spec).shape[1:])
    samples = torch.rand(shape, generator=torch.Generator().manual_seed(_SEED))
    ours = Encoder(embedder)(samples).float().cpu().numpy()
    lengths = np.linalg.norm(ours, axis=1, keepdims=True)
    difference = float((np.abs(ours - OnnxEncoder(content)(samples).numpy()) / np.maximum(lengths, 1)).max())
    if not difference <= TOLERANCE:
        raise ModelError(
            f"The exported model gives other vectors than the model (they differ by up to {difference:.2g}, at most "
            f"{TOLERANCE:g} is allowed): nothing was written; run the model with the engine 'torch'."
        )
    return difference


def sidecar(path: Path) -> Path:
    """Where the description of a file lies."""
    return path.with_name(f"{path.name}.json")


def onnx_path(path: str | Path) -> Path:
    """The path of an ONNX file, refused with another ending."""
    path = Path(path)
    if path.suffix != ".onnx":
        raise ModelError(f"{path} must end in .onnx: write, for example, to {path.with_suffix('.onnx').name}.")
    return path


def cached_encoder(embedder: Embedder) -> OnnxEncoder:
    """A model run by ONNX Runtime, translated unless that was done before and is in the user's cache.

    A model that has no fingerprint, because it cannot be saved, is translated every time.
    """
    require("onnxruntime", "onnx")
    fingerprint = fingerprint_of(embedder)
    place = None if fingerprint is None else cache_directory() / "onnx" / f"{fingerprint}.v{VERSION}.onnx"
    if place is not None and place.exists():
        try:
            return OnnxEncoder(place)
        except CheckpointError:
            place.unlink(missing_ok=True)  # what a cache lost can be made again
    content, _ = serialised(embedder)
    check_parity(embedder, content)
    if place is not None:
        # A full disk costs the next start time, not this one its answer.
        with suppress(StorageError), replacing(place) as temporary:
            temporary.write_bytes(content)
    return OnnxEncoder(content)


_PARTS = ("backbone.", "local/")
"""What the names of nodes begin with that are quantised."""

_OPERATORS = ("Conv", "Relu", "Clip", "Add", "MaxPool", "AveragePool", "Concat")


def quantise(content: bytes, description: Description, batches: Iterable[Tensor]) -> tuple[bytes, Description]:
    """The content of a file in 8 bits, and what it says of itself.

    Args:
        content: of the file in float32.
        description: of that file.
        batches: samples (B, C, H, W) as loaded to calibrate with: items of training classes, some hundred.

    Raises:
        ModelError: no sample was given, or the model has nothing that could be quantised.
        MissingExtraError: onnx or onnxruntime is not installed.
    """
    onnx = require("onnx", "onnx")
    quantization = require("onnxruntime.quantization", "onnx")
    require("onnxruntime", "onnx").set_default_logger_severity(ERRORS_ONLY)
    if description.precision != "float32":
        raise ModelError(f"The model is in {description.precision} already: quantise the one in float32.")
    with tempfile.TemporaryDirectory(prefix="nearkin-") as folder, redirect_stdout(StringIO()):
        source, simple, target = (Path(folder) / f"{name}.onnx" for name in ("float32", "simple", "int8"))
        source.write_bytes(content)
        # Constants are folded first: only of an activation whose limits are constants it is seen that the convolution
        # before it need not represent what lies beyond them.
        quantization.quant_pre_process(source, simple, skip_symbolic_shape=True)
        nodes = onnx.load(simple).graph.node
        chosen = [node for node in nodes if node.op_type in _OPERATORS and node.name.startswith(_PARTS)]
        if not any(node.op_type == "Conv" for node in chosen):
            raise ModelError("The model's backbone has no convolutions, which alone are quantised: keep it in float32.")
        given = _given(batches)
        reader = type("Reader", (quantization.CalibrationDataReader,), {"get_next": lambda _: next(given, None)})()
        quantization.quantize_static(
            simple,
            target,
            reader,
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=list(_OPERATORS),
            nodes_to_quantize=[node.name for node in chosen],
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
        small = onnx.load(target)
    told = replace(description, precision="int8")
    return with_properties(small, told), told


def _given(batches: Iterable[Tensor]) -> Iterator[dict[str, np.ndarray]]:
    """Samples as the calibration takes them."""
    count = 0
    for batch in batches:
        count += len(batch)
        yield {INPUT: as_samples(batch)}
    if not count:
        raise ModelError("Quantising needs samples to calibrate with: give data that has items of training classes.")
