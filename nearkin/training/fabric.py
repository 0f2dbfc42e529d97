"""Where training runs: the device, the precision, and the processes whose gradients are averaged."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from nearkin.errors import RecipeError, require
from nearkin.recipe import TrainingSection
from nearkin.training.ranks import Ranks


def check_accelerator(asked: str) -> None:
    """Refuse `training.accelerator` where this machine has none of the kind.

    Args:
        asked: what the recipe says.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if (asked == "mps" and not mps) or (asked == "gpu" and not (cuda or mps)):
        raise RecipeError(
            f"training.accelerator is {asked}, and PyTorch finds no such device on this machine: set it to auto or cpu."
        )


def make_fabric(section: TrainingSection, ranks: Ranks) -> Any:
    """Lightning Fabric for one process, or for all of them with DistributedDataParallel.

    Args:
        section: the recipe's training section.
        ranks: the processes, which have met.
    """
    fabric = require("lightning_fabric", extra="train")
    accelerator = ranks.accelerator(section.accelerator)
    if ranks.world_size == 1:
        return fabric.Fabric(accelerator=accelerator, devices=1, precision=section.precision)
    # Statistics of batch norm stay with their process, where only the first one's are ever used; memories are equal.
    strategy = require("lightning_fabric.strategies", extra="train").DDPStrategy(**{_buffers_in_step(): False})
    shared = fabric.Fabric(
        accelerator=accelerator,
        devices=ranks.local_world_size,
        num_nodes=ranks.machines,
        strategy=strategy,
        precision=section.precision,
    )
    shared.launch()
    return shared


def _buffers_in_step() -> str:
    """What PyTorch calls the option to send buffers around in every step: it was renamed."""
    return next(
        name
        for name in ("forward_sync_buffers", "broadcast_buffers")
        if name in inspect.signature(DistributedDataParallel).parameters
    )
