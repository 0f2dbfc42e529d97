"""The resumable checkpoint: tensors and JSON in one safetensors file, replaced as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nearkin.errors import CheckpointError
from nearkin.storage import replacing

_FORMAT = "nearkin.training"
_VERSION = "1"


def save_state(path: Path, tensors: dict[str, dict[str, Tensor]], facts: dict[str, Any]) -> None:
    """Write groups of named tensors and JSON-able facts; an existing file stays whole until the new one is."""
    flat = {
        f"{group}/{name}": tensor.detach().contiguous().clone()
        for group, members in tensors.items()
        for name, tensor in members.items()
    }
    metadata = {"format": _FORMAT, "version": _VERSION, "facts": json.dumps(facts)}
    with replacing(path) as temporary:
        save_file(flat, temporary, metadata=metadata)


def load_state(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Read what `save_state` wrote."""
    try:
        with safe_open(path, framework="pt") as handle:
            metadata = handle.metadata() or {}
            names = list(handle.keys())
            if metadata.get("format") != _FORMAT:
                raise CheckpointError(f"{path} is not a training checkpoint of nearkin: give the run it belongs to.")
            if metadata.get("version") != _VERSION:
                raise CheckpointError(
                    f"{path} has checkpoint version {metadata.get('version')}, this nearkin reads version {_VERSION}: "
                    "resume it with the nearkin that wrote it, or start a new run."
                )
            flat = {name: handle.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read ({error}): start a new run.") from error
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in flat.items():
        group, _, member = name.partition("/")
        groups.setdefault(group, {})[member] = tensor
    facts = json.loads(metadata["facts"])
    if not {"identity", "state"} <= facts.keys():
        raise CheckpointError(f"The checkpoint {path} is damaged: start a new run.")
    return groups, facts


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's per-parameter state as named tensors."""
    state = optimiser.state_dict()["state"]
    return {f"{index}/{key}": torch.as_tensor(value) for index, entry in state.items() for key, value in entry.items()}


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put `optimiser_tensors` back; groups and their settings come from the recipe."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    # Files hold plain layouts. A fused update walks a weight and its averages in memory order, so with weights that
    # keep their channels innermost the averages must do so too.
    for parameter, entry in optimiser.state.items():
        for key, value in entry.items():
            if value.shape == parameter.shape:
                entry[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
