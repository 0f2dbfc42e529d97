"""The global random state, from which dropout and the like draw: seeded, and kept in checkpoints.

Each process has its own: slices of a batch must not share their draws.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

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
    """The state that draws on the CPU, and on a GPU if that is the device, go on from."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_generator_state(state: list[Tensor], device: torch.device) -> None:
    """Put back what `generator_state` gave."""
    torch.set_rng_state(state[0])
    for of_gpu in state[1:]:
        torch.cuda.set_rng_state(of_gpu, device)


def _name(kind: str, rank: int) -> str:
    return f"{kind}/{rank}" if rank else kind
