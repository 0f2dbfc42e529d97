"""Which layer it was that could not be exported: found by exporting the parts of a model, one inside the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.errors import ModelError

_OPERATOR = re.compile(r"torch\.ops\.([\w.]+)")
_SAID = 160
"""Characters of a foreign message that a sentence repeats."""

Export = Callable[[nn.Module, tuple[Any, ...]], Any]


def refusal(module: nn.Module, samples: Tensor, error: Exception, export: Export) -> ModelError:
    """The sentence that names the layer for which a whole model could not be exported.

    Args:
        module: the model.
        samples: inputs it takes.
        error: why it could not be exported.
        export: tries a part with its own inputs.
    """
    name, culprit, error = _innermost(module, samples, error, export)
    layer = f"its layer '{name.removeprefix('embedder.')}' ({type(culprit).__name__})" if name else "it as a whole"
    return ModelError(
        f"The model cannot be exported to ONNX: {layer} uses {_reason(error)}: choose another layer there, or run the "
        "model with the engine 'torch'."
    )


def _innermost(
    module: nn.Module, samples: Tensor, error: Exception, export: Export
) -> tuple[str, nn.Module, Exception]:
    """The name of the innermost layer that fails by itself, the layer, and how it fails."""
    calls = _calls(module, samples)
    name, culprit = "", module
    searching = True
    while searching:
        searching = False
        for child, layer in culprit.named_children():
            path = f"{name}.{child}" if name else child
            failure = next((found for found in _failures(path, layer, calls, export)), None)
            if failure is not None:
                name, culprit, error = failure
                searching = True
                break
    return name, culprit, error


def _failures(path: str, layer: nn.Module, calls: dict[str, tuple[Any, ...]], export: Export) -> list[Any]:
    """What fails of a layer that was called; of one that only holds others, the first of these."""
    if path not in calls:
        inner = (_failures(f"{path}.{name}", child, calls, export) for name, child in layer.named_children())
        return next((found for found in inner if found), [])
    try:
        export(layer, calls[path])
    except Exception as error:  # the exporter raises whatever its parts do
        return [(path, layer, error)]
    return []


def _calls(module: nn.Module, samples: Tensor) -> dict[str, tuple[Any, ...]]:
    """The inputs of every layer that a run of the model calls, by name."""
    calls: dict[str, tuple[Any, ...]] = {}

    def note(name: str) -> Callable[..., None]:
        return lambda layer, inputs: calls.setdefault(name, inputs) and None

    hooks = [layer.register_forward_pre_hook(note(name)) for name, layer in module.named_modules() if name]
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
