"""Where training runs: the device, the precision, and the processes whose gradients are averaged."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from nearkin.errors import RecipeError, require
from nearkin.recipe import TrainingSection
from nearkin.training.ranks import Ranks, step_group


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

    With gradient caching every process is on its own: what they add up, they do so after the last part.

    Args:
        section: the recipe's training section.
        ranks: the processes, which have met.
    """
    fabric = require("lightning_fabric", extra="train")
    strategies = require("lightning_fabric.strategies", extra="train")
    accelerator = ranks.accelerator(section.accelerator)
    if ranks.world_size == 1:
        return fabric.Fabric(accelerator=accelerator, devices=1, precision=section.precision)
    if section.gradient_cache is not None:
        device = torch.device("cpu") if accelerator == "cpu" else torch.device("cuda", ranks.local_rank)
        alone = strategies.SingleDeviceStrategy(device)
        return fabric.Fabric(accelerator=accelerator, devices=1, strategy=alone, precision=section.precision)
    # Statistics of batch norm are equal, or stay with their process, where only the first one's are ever used.
    options = {_buffers_in_step(): False, "process_group": step_group()}
    strategy = strategies.DDPStrategy(**options)
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
