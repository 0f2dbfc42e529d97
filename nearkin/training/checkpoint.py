"""The resumable checkpoint: tensors, random states and JSON in one safetensors file, replaced as a whole.

Each process has its own random state: slices of a batch must not share their draws.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from nearkin.errors import CheckpointError
from nearkin.models.embedder import read_tensors, write_tensors
from nearkin.training.ranks import Ranks


def seed_generator(seed: int, ranks: Ranks, step: int = 0) -> None:
    """Seed this process's generator; the first one's as that of a run of one process."""
    mixed = np.random.SeedSequence([seed, ranks.rank, step]).generate_state(1, np.uint64)[0]
    torch.manual_seed(seed if ranks.is_first else int(mixed >> np.uint64(1)))


def generator_tensors(ranks: Ranks) -> dict[str, Tensor]:
    """The random states of all processes, of the CPU and of the GPU in use; every process must ask."""
    own = {"torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        own["cuda"] = torch.cuda.get_rng_state()
    return {
        _name(kind, rank): state
        for kind, mine in own.items()
        for rank, state in enumerate(ranks.gather_labels(mine[None]))
    }


def restore_generator(tensors: Mapping[str, Tensor], seed: int, ranks: Ranks, step: int) -> None:
    """Put this process's state back; one that did not take part before the checkpoint is seeded by its step."""
    state = tensors.get(_name("torch", ranks.rank))
    if state is None:
        seed_generator(seed, ranks, step)
        return
    torch.set_rng_state(state.clone())  # PyTorch crashes on a view into another tensor
    of_gpu = tensors.get(_name("cuda", ranks.rank))
    if of_gpu is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(of_gpu.clone())


def generator_state(device: torch.device) -> list[Tensor]:
    """The random state of the CPU, and of the GPU if that is the device."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_generator_state(state: list[Tensor], device: torch.device) -> None:
    """Put back what `generator_state` gave."""
    torch.set_rng_state(state[0])
    for of_gpu in state[1:]:
        torch.cuda.set_rng_state(of_gpu, device)


def _name(kind: str, rank: int) -> str:
    return f"{kind}/{rank}" if rank else kind


_FORMAT = "nearkin.training"
_VERSION = "1"


def save_state(path: Path, tensors: dict[str, dict[str, Tensor]], facts: dict[str, Any]) -> None:
    """Write groups of named tensors and JSON-able facts; an existing file stays whole until the new one is."""
    flat = {f"{group}/{name}": tensor for group, members in tensors.items() for name, tensor in members.items()}
    write_tensors(path, flat, {"format": _FORMAT, "version": _VERSION, "facts": json.dumps(facts)})


def load_state(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Read what `save_state` wrote."""
    try:
        metadata, flat = read_tensors(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read ({error}): start a new run.") from error
    if metadata.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is not a training checkpoint of nearkin: pass the run it belongs to.")
    if metadata.get("version") != _VERSION:
        raise CheckpointError(
            f"{path} has checkpoint version {metadata.get('version')}, but this nearkin reads version {_VERSION}: "
            "resume it with the nearkin that wrote it, or start a new run."
        )
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
