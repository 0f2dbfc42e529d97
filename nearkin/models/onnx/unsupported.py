"""Which layer it was that could not be exported: found by exporting the parts of a model, one inside the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nearkin.errors import ModelError

_OPERATOR = re.compile(r"torch\.ops\.([\w.]+)")
_MODEL = "embedder"
_SAID = 160
"""Characters of a foreign message that a sentence repeats."""


class _Failure(NamedTuple):
    """A layer that cannot be exported by itself, its name in the model, and why."""

    name: str
    layer: nn.Module
    error: Exception


Export = Callable[[nn.Module, tuple[Any, ...]], Any]


def refusal(module: nn.Module, samples: Tensor, error: Exception, export: Export) -> ModelError:
    """The sentence that names the layer for which a whole model could not be exported.

    Args:
        module: a graph's module, with the model as its `embedder`.
        samples: inputs it takes.
        error: why it could not be exported.
        export: tries a part with its own inputs.
    """
    found = _innermost(module, samples, error, export)
    name = found.name.removeprefix(f"{_MODEL}.")
    layer = "it as a whole" if name == _MODEL else f"its layer '{name}' ({type(found.layer).__name__})"
    return ModelError(
        f"The model cannot be exported to ONNX: {layer} uses {_reason(found.error)}: choose another layer there, or "
        "run the model with the engine 'torch'."
    )


def _innermost(module: nn.Module, samples: Tensor, error: Exception, export: Export) -> _Failure:
    """The innermost layer that fails by itself."""
    calls = _calls(module, samples)
    found = _Failure(_MODEL, module.get_submodule(_MODEL), error)
    while (inner := _first_failure(found.name, found.layer, calls, export)) is not None:
        found = inner
    return found


def _first_failure(name: str, layer: nn.Module, calls: dict[str, tuple[Any, ...]], export: Export) -> _Failure | None:
    """The first layer inside another that fails by itself; looked for inside those that only hold others, too."""
    for child, inner in sorted(layer.named_children(), key=lambda named: _is_usual(named[1])):
        path = f"{name}.{child}"
        if path not in calls:
            failure = _first_failure(path, inner, calls, export)
            if failure is not None:
                return failure
            continue
        try:
            export(inner, calls[path])
        except Exception as error:  # the exporter raises whatever its parts do
            return _Failure(path, inner, error)
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
