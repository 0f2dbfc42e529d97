"""A smaller and faster model: weights and maps of the backbone as whole numbers of 8 bits.

x is stored as round(x / s) + z. The scale s of weights is each output channel's own; s and z of maps come from the
smallest and largest values that calibration samples give. What comes after the backbone is little work and decides the
distances: it stays in float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nearkin.errors import ModelError, require
from nearkin.models.onnx.description import Description
from nearkin.models.onnx.encoder import ERRORS_ONLY, as_samples
from nearkin.models.onnx.file import with_properties
from nearkin.models.onnx.graph import INPUT

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
        chosen = [node for node in onnx.load(simple).graph.node if _is_quantised(node)]
        if not any(node.op_type == "Conv" for node in chosen):
            raise ModelError("The model's backbone has no convolutions, which alone are quantised: keep it in float32.")
        quantization.quantize_static(
            simple,
            target,
            _reader(quantization, batches),
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


def _is_quantised(node: Any) -> bool:
    return node.op_type in _OPERATORS and node.name.startswith(_PARTS)


def _reader(quantization: Any, batches: Iterable[Tensor]) -> Any:
    """Samples as the calibration asks for them."""
    given = _given(batches)

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(given, None)

    return Reader()


def _given(batches: Iterable[Tensor]) -> Iterator[dict[str, np.ndarray]]:
    count = 0
    for batch in batches:
        count += len(batch)
        yield {INPUT: as_samples(batch)}
    if not count:
        raise ModelError("Quantising needs samples to calibrate with: give data that has items of training classes.")
