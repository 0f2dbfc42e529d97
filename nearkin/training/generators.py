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
    """The random states of all processes; every one must ask."""
    states = ranks.gather_labels(torch.get_rng_state()[None])
    return {_name(rank): state for rank, state in enumerate(states)}


def restore_generator(tensors: Mapping[str, Tensor], seed: int, ranks: Ranks, step: int) -> None:
    """Put this process's state back; one that did not take part before the checkpoint is seeded by its step."""
    state = tensors.get(_name(ranks.rank))
    if state is not None:
        torch.set_rng_state(state.clone())  # PyTorch crashes on a view into another tensor
    else:
        seed_generator(seed, ranks, step)


def _name(rank: int) -> str:
    return f"torch/{rank}" if rank else "torch"
