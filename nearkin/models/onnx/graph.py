"""From an embedder to an ONNX graph: samples as they are loaded in, points of the space out.

The graph normalises its inputs itself, batch norm is folded into the convolutions, and the batch may have any size. A
SAME convolution at stride 2 pads one side more than the other. PyTorch pads both alike, so its kernel begins with a row
and a column of zeros, which are taken off here. Where an export fails, the error names the layer.
"""

from __future__ import annotations

import copy
import inspect
import io
import logging
import re
import warnings
from ast import literal_eval
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nearkin.data.augment import statistics_of
from nearkin.data.inputs import InputSpec
from nearkin.errors import ModelError, require
from nearkin.models.backbones.base import SameConv2d
from nearkin.models.speed import fold_batch_norm

if TYPE_CHECKING:
    from nearkin.models.embedder import Embedder


def crop_kernels(graph: Any) -> None:
    """Take leading rows and columns of zeros off the kernels of convolutions and pad so much less there, in place."""
    onnx = require("onnx", "onnx")
    weights = {tensor.name: tensor for tensor in graph.initializer}
    users = [name for node in graph.node for name in node.input]
    for node in graph.node:
        if node.op_type != "Conv" or node.input[1] not in weights or users.count(node.input[1]) > 1:
            continue
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if "pads" not in attributes or any(step != 1 for step in attributes["dilations"].ints):
            continue
        pads = list(attributes["pads"].ints)
        kernel = onnx.numpy_helper.to_array(weights[node.input[1]])
        cropped = kernel
        for axis in range(2, kernel.ndim):
            while pads[axis - 2] > 0 and cropped.shape[axis] > 1 and not cropped.take(0, axis).any():
                cropped = cropped[(slice(None),) * axis + (slice(1, None),)]
                pads[axis - 2] -= 1
        if cropped.shape == kernel.shape:
            continue
        weights[node.input[1]].CopyFrom(onnx.numpy_helper.from_array(cropped.copy(), node.input[1]))
        attributes["pads"].ints[:] = pads
        if "kernel_shape" in attributes:
            attributes["kernel_shape"].ints[:] = cropped.shape[2:]


_OPERATOR = re.compile(r"torch\.ops\.([\w.]+)")
_MODEL = "embedder"
_SAID = 160
"""Characters of a foreign message that a sentence repeats."""


Export = Callable[[nn.Module, tuple[Any, ...]], Any]


def refusal(module: nn.Module, samples: Tensor, error: Exception, export: Export) -> ModelError:
    """The sentence that names the layer for which a whole model could not be exported.

    Args:
        module: a graph's module, with the model as its `embedder`.
        samples: inputs it takes.
        error: why it could not be exported.
        export: tries a part with its own inputs.
    """
    path, reason = _MODEL, error
    calls = _calls(module, samples)
    while (inner := _first_failure(path, module, calls, export)) is not None:
        path, reason = inner
    name, kind = path.removeprefix(f"{_MODEL}."), type(module.get_submodule(path)).__name__
    layer = "it as a whole" if path == _MODEL else f"its layer '{name}' ({kind})"
    return ModelError(
        f"The model cannot be exported to ONNX: {layer} uses {_reason(reason)}: choose another layer there, or run the "
        "model with the engine 'torch'."
    )


def _first_failure(
    name: str, module: nn.Module, calls: dict[str, tuple[Any, ...]], export: Export
) -> tuple[str, Exception] | None:
    """The first layer inside another that fails by itself, and why; those that only hold others are looked into."""
    children = module.get_submodule(name).named_children()
    for child, inner in sorted(children, key=lambda named: _is_usual(named[1])):
        path = f"{name}.{child}"
        if path in calls:
            try:
                export(inner, calls[path])
            except Exception as error:  # the exporter raises whatever its parts do
                return path, error
        elif (failure := _first_failure(path, module, calls, export)) is not None:
            return failure
    return None


def _is_usual(layer: nn.Module) -> bool:
    """Whether what a layer consists of comes with torch: such are tried last, since they hardly ever fail."""
    parts = [part for part in layer.modules() if not any(part.children())]
    return all(type(part).__module__.startswith("torch.nn.") for part in parts)


def _calls(module: nn.Module, samples: Tensor) -> dict[str, tuple[Any, ...]]:
    """The inputs of every layer that a run of the model calls, by name."""
    calls: dict[str, tuple[Any, ...]] = {}

    def note(name: str, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        calls.setdefault(name, inputs)

    hooks = [layer.register_forward_pre_hook(partial(note, name)) for name, layer in module.named_modules() if name]
    try:
        with torch.no_grad():
            module(samples)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _reason(error: BaseException) -> str:
    """The operator that has no counterpart, or the first words of the innermost cause."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    for cause in causes:
        found = _OPERATOR.search(str(cause))
        if found and "DispatchError" in " ".join(type(each).__name__ for each in causes):
            return f"the operator {found[1]}, which ONNX does not have"
    said = " ".join(str(causes[-1]).split())
    return f"what the exporter cannot follow ({said[:_SAID].rstrip('.:')})"


INPUT = "samples"
OUTPUT = "embeddings"
OPSET = 20
"""Of the operators; ONNX Runtime 1.17 and later know them."""

_USUAL_FRAMES = 100
_SCOPES = "pkg.torch.onnx.name_scopes"
"""Under which the exporter notes the layers that a node is inside of, outermost first."""


class EmbeddingGraph(nn.Module):
    """A copy of an embedder, from samples (B, C, H, W) as the file takes them to points of the space (B, d).

    Args:
        embedder: what to copy; later training does not reach the copy.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        spec = embedder.spec
        mean, std = statistics_of(spec)
        self.embedder = fold_batch_norm(copy.deepcopy(embedder).cpu().eval().requires_grad_(False))
        self.register_buffer("scale", 1.0 / std)
        self.register_buffer("shift", -mean / std)
        if spec.kind == "image":
            _plain_convolutions(self, example(spec))
        self.eval()

    def forward(self, samples: Tensor) -> Tensor:
        """Points (B, d) of samples in [0, 1], for audio log-mel values."""
        return self.embedder.embed(samples * self.scale + self.shift)


def build_graph(embedder: Embedder) -> Any:
    """The model as an `onnx.ModelProto` without metadata.

    Raises:
        ModelError: a layer has no counterpart in ONNX, and is named; or PyTorch is too old.
        MissingExtraError: onnx or onnxscript is not installed.
    """
    if embedder.size_feature is not None:
        raise ModelError(
            "A model that takes the sizes of images (model.size_feature) cannot be exported to ONNX, whose files take "
            "pixels alone: use it with the engine 'torch', or train one without."
        )
    require("onnx", "onnx")
    require("onnxscript", "onnx")
    if "custom_translation_table" not in inspect.signature(torch.onnx.export).parameters:
        raise ModelError(f"Exporting to ONNX needs PyTorch 2.6 or later, but you have {torch.__version__}: upgrade it.")
    module, samples = EmbeddingGraph(embedder), example(embedder.spec)
    sizes = {0: torch.export.Dim("batch")}
    if embedder.spec.kind == "audio":
        sizes[3] = torch.export.Dim("frames", min=_least_frames(module, samples))
    try:
        proto = translated(module, (samples,), sizes)
    except Exception as error:  # the exporter raises whatever its parts do
        raise refusal(module, samples, error, translated) from error
    _fold_casts(proto.graph)
    crop_kernels(proto.graph)
    _name_nodes(proto.graph)
    _strip(proto.graph)
    return proto


def example(spec: InputSpec) -> Tensor:
    """Two samples of the shape that a model takes, all grey."""
    width = spec.size if spec.kind == "image" else spec.frames or _USUAL_FRAMES
    return torch.full((2, spec.channels, spec.size, width), 0.5)


def translated(module: nn.Module, inputs: tuple[Any, ...], sizes: dict[int, Any] | None = None) -> Any:
    """A module as an `onnx.ModelProto`; `sizes` names the axes of its one input that may vary."""
    from nearkin.models.onnx.threshold import threshold

    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            module,
            inputs,
            input_names=None if sizes is None else [INPUT],
            output_names=None if sizes is None else [OUTPUT],
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes=None if sizes is None else (sizes,),
            custom_translation_table={torch.ops.nearkin.threshold.default: threshold},
            # It takes an addition of 1e-10, which keeps a division sound, for one of nothing, and leaves it out.
            optimize=False,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("the exporter gave nothing")
    return program.model_proto


def _plain_convolutions(module: nn.Module, samples: Tensor) -> None:
    """Write the padding of SAME convolutions into their kernels, in place.

    A graph that pads a kernel is correct, but ONNX Runtime takes that for padding of the map and fails.
    """
    for name, (inputs, *_) in _calls(module, samples).items():
        parent, _, child = name.rpartition(".")
        if isinstance(layer := module.get_submodule(name), SameConv2d):
            setattr(module.get_submodule(parent), child, layer.plain(*inputs.shape[2:]))


@torch.no_grad()
def _least_frames(module: nn.Module, samples: Tensor) -> int:
    """The shortest log-mel input that a model of audio can take."""
    for frames in range(1, samples.shape[3]):
        try:
            module(samples[..., :frames])
        except RuntimeError:
            continue
        return max(2, frames)
    return samples.shape[3]


def _fold_casts(graph: Any) -> None:
    """Make constants of numbers that are cast to the type of another value, where that type is known, in place.

    ONNX Runtime merges an activation into the convolution before it only if it sees that its limits are constants.
    """
    onnx = require("onnx", "onnx")
    numbers = {
        node.output[0]: node.attribute[0].f
        for node in graph.node
        if node.op_type == "Constant" and node.attribute[0].name == "value_float"
    }
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input)}
    for node in list(graph.node):
        if node.op_type == "CastLike" and node.input[0] in numbers and types.get(node.input[1]):
            kind, number = types[node.input[1]], numbers[node.input[0]]
            graph.initializer.append(onnx.helper.make_tensor(node.output[0], kind, [], [number]))
            graph.node.remove(node)


def _name_nodes(graph: Any) -> None:
    """Call nodes by the layers they come from: `backbone.stages.stem.0/node_conv2d`."""
    for node in graph.node:
        noted = {entry.key: entry.value for entry in node.metadata_props}.get(_SCOPES, "[]")
        layers = [scope.removeprefix("embedder.") for scope in literal_eval(noted) if scope.startswith("embedder.")]
        node.name = f"{layers[-1] if layers else ''}/{node.name}"


def _strip(graph: Any) -> None:
    """Remove what the exporter noted about source files from a graph and those inside it."""
    for part in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer, graph):
        del part.metadata_props[:]
        part.doc_string = ""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _strip(attribute.g)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what the exporter tells its own developers, by every way it has."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.fx", "torch.export", "torch._export")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
