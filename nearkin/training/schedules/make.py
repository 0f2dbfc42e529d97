"""From the `training` section of a recipe to its schedule."""

from __future__ import annotations

from pathlib import Path

from nearkin.errors import RecipeError
from nearkin.objectives import Objective
from nearkin.recipe import TrainingSection
from nearkin.training.ranks import Ranks
from nearkin.training.schedules.adversarial import Adversarial, check_adversarial
from nearkin.training.schedules.base import Schedule
from nearkin.training.schedules.chance_constrained import ChanceConstrained
from nearkin.training.schedules.episodic import Episodic
from nearkin.training.schedules.memory import CrossBatchMemory
from nearkin.training.schedules.pool import Pool
from nearkin.training.schedules.snapshots import Snapshots


def check_schedule(
    section: TrainingSection, objective: Objective, validated: bool, kind: str = "image", cached: bool = False
) -> None:
    """Raise RecipeError when the schedule cannot work with the loss, the inputs, or without validation classes.

    Args:
        section: the recipe's training section.
        objective: what is minimised.
        validated: whether there are validation classes.
        kind: what the inputs are, "image" or "audio".
        cached: whether they come from a feature cache.
    """
    if section.schedule == "adversarial":
        check_adversarial(section.adversarial, objective, kind, cached)
        return
    if section.schedule in ("plain", "episodic"):
        return
    if not objective.supports_references:
        raise RecipeError(
            f"The schedule '{section.schedule}' compares a batch with other vectors, which the loss '{objective.name}' "
            "cannot: choose a pair loss such as 'contrastive', or set training.schedule to plain."
        )
    if section.schedule == "chance-constrained" and not validated:
        raise RecipeError(
            "The schedule 'chance-constrained' ends an instance when validation stops gaining, and there are no "
            "validation classes: set data.val_classes to a share above 0."
        )


def make_schedule(
    section: TrainingSection, pool: Pool, batch_size: int, folder: Path, ranks: Ranks | None = None
) -> Schedule:
    """Build the schedule that a recipe describes.

    Args:
        section: the recipe's training section.
        pool: the training items and the network.
        batch_size: items in a batch of all processes together.
        folder: the run's directory, for what a schedule keeps in files.
        ranks: the processes that train together; None: this one only.
    """
    if section.schedule == "cross-batch-memory":
        memory = section.cross_batch_memory
        # No run fills more places than it has batches.
        batches = min(memory.batches, section.max_steps)
        return CrossBatchMemory(memory.model_copy(update={"batches": batches}), batch_size, pool.embedder.dimension)
    if section.schedule == "chance-constrained":
        ranks = Ranks() if ranks is None else ranks
        snapshots = Snapshots(folder / "instances", pool) if ranks.is_first else None
        return ChanceConstrained(section.chance_constrained, pool, folder / "instance.safetensors", snapshots, ranks)
    if section.schedule == "episodic":
        return Episodic(section.episodic, pool.embedder.space)
    if section.schedule == "adversarial":
        return Adversarial(section.adversarial, pool.embedder.space, section.seed, ranks)
    return Schedule()
