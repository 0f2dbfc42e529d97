"""What each batch is compared with, and what happens between the steps: schedules, and the one of a recipe.

Here are the plain ones: a batch by itself, with a memory of earlier batches, and with its own support items (episodes).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.data.inputs import InputSpec
from nearkin.errors import RecipeError
from nearkin.metrics.dynamics import episode_dynamics
from nearkin.models import Embedder
from nearkin.models.embedder import Features
from nearkin.objectives import Objective
from nearkin.objectives.registry import Given
from nearkin.recipe import CrossBatchMemorySection, EpisodicSection, TrainingSection
from nearkin.spaces import Representation, Space
from nearkin.training.batches import TrainingPool
from nearkin.training.ranks import Ranks

ACCURACY = "val_accuracy"
"""What chooses the weights where it is measured, by its name in the log."""

SELECTION_METRIC = "val_MAP@R"
"""What chooses the weights unless the schedule has something better, by its name in the log."""

Weights = Callable[[], dict[str, Tensor]]


class Schedule(nn.Module):
    """The plain schedule: a batch is compared with itself, or with the loss's own proxies; nothing else happens.

    Others override what they need. A checkpoint holds what `tensors` and `facts` give, so that a resumed run goes on in
    the middle of whatever the schedule was doing.

    Attributes:
        selection: the validation's value that chooses the weights, by its name in the log.
        counters: names of the attributes that a checkpoint keeps as plain numbers.
    """

    selection: str = SELECTION_METRIC
    counters: tuple[str, ...] = ()

    def views(self, embedder: Embedder, objective: Objective, inputs: Features, labels: Tensor) -> Features:
        """What goes through the network in place of this process's inputs: by default these.

        Args:
            embedder: the network.
            objective: what is minimised.
            inputs: (b, ...), as the embedder takes them.
            labels: (b,) int64.

        Returns:
            One or more views of every input: first all inputs in one view, then all in the next, (v b, ...).
        """
        return inputs

    def forward(
        self, objective: Objective, embeddings: Tensor, labels: Tensor, attributes: Given = None, features: Given = None
    ) -> Tensor:
        """The value to minimise, a scalar.

        Args:
            objective: what is minimised.
            embeddings: raw, (B, d); process by process, and of each what `views` gave.
            labels: (B,) int64, one for each input.
            attributes: (B, M) that the pooling gives, where the objective needs them.
            features: (B, F) that the head takes, where the objective needs them.
        """
        return objective(embeddings, labels, attributes, features)

    def readings(self) -> dict[str, float]:
        """Values to log for the steps since the last call; none by default."""
        return {}

    def updated(self, embed: Callable[[], Tensor]) -> dict[str, float]:
        """Called after a step has changed the weights; return values to log, if any.

        Args:
            embed: gives the raw embeddings (B, d) of the step's batch by the new weights, in training mode, and leaves
                no trace: no running statistic moves.
        """
        return {}

    def begin(self) -> None:
        """Called once, before the first step of a new run."""

    def validated(self, step: int, values: Mapping[str, float], weights: Weights) -> dict[str, float]:
        """Called after a validation; return values to log, if any.

        Args:
            step: steps done.
            values: the validation's values, with the names they have in the log.
            weights: gives a copy of every weight and buffer that was validated.
        """
        return {}

    def finished(self, step: int) -> dict[str, float]:
        """Called when training is over; return values to log, if any."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint keeps."""
        return dict(self.state_dict())

    def facts(self) -> dict[str, Any]:
        """The plain numbers that a checkpoint keeps."""
        return {name: getattr(self, name) for name in self.counters}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Put back what `tensors` and `facts` gave."""
        self.load_state_dict(tensors)
        for name in self.counters:
            setattr(self, name, facts[name])


class CrossBatchMemory(Schedule):
    """Loss in the batch plus loss to a queue of earlier embeddings; after `warmup_steps` plain steps.

    The memory fills from the first step on, and is used when the warm-up is over. A batch joins it after its own step,
    so no sample meets its own copy. Embeddings are kept raw, as of the step that made them.

    Reference: Wang, Zhang, Huang, Scott 2020, Cross-batch memory for embedding learning.

    Args:
        section: the recipe's settings.
        batch_size: items in a batch of all processes together.
        dimension: size of an embedding.
    """

    counters = ("steps", "seen")
    memory: Tensor
    memory_labels: Tensor

    def __init__(self, section: CrossBatchMemorySection, batch_size: int, dimension: int) -> None:
        super().__init__()
        self.warmup_steps = section.warmup_steps
        self.steps = 0
        self.seen = 0
        size = section.batches * batch_size
        self.register_buffer("memory", torch.zeros(size, dimension))
        self.register_buffer("memory_labels", torch.zeros(size, dtype=torch.int64))

    def forward(
        self, objective: Objective, embeddings: Tensor, labels: Tensor, attributes: Given = None, features: Given = None
    ) -> Tensor:
        """The value to minimise, a scalar; see `Schedule.forward`."""
        loss = objective(embeddings, labels, attributes, features)
        filled = min(self.seen, len(self.memory))
        if self.steps >= self.warmup_steps and filled:
            # Copies: the queue moves on before the backward pass needs what the loss was taken from.
            remembered, their_labels = self.memory[:filled].clone(), self.memory_labels[:filled].clone()
            loss = loss + objective.against(embeddings, labels, remembered, their_labels)
        self._remember(embeddings.detach(), labels)
        self.steps += 1
        return loss

    def _remember(self, embeddings: Tensor, labels: Tensor) -> None:
        """Put a batch (B, d) where the oldest one is."""
        places = torch.arange(self.seen, self.seen + len(labels), device=labels.device) % len(self.memory)
        self.memory[places] = embeddings.to(self.memory.dtype)
        self.memory_labels[places] = labels
        self.seen += len(labels)


class Episodic(Schedule):
    """Plain steps on episodes; now and then it is recorded how an update moved the episode's points.

    Batches come from an episode sampler. Losses that know nothing of support and queries see plain batches.

    Reference: Vinyals et al. 2016; Snell, Swersky, Zemel 2017; the records of training dynamics: Kim 2023, article II.

    Args:
        section: the recipe's settings.
        space: where embeddings are compared.
    """

    selection = ACCURACY
    counters = ("episodes",)

    def __init__(self, section: EpisodicSection, space: Space) -> None:
        super().__init__()
        self.section = section
        self.space = space
        self.episodes = 0
        self._before: Tensor | None = None
        self._representation: Representation = "mean"

    def forward(
        self, objective: Objective, embeddings: Tensor, labels: Tensor, attributes: Given = None, features: Given = None
    ) -> Tensor:
        """The value to minimise, a scalar; see `Schedule.forward`."""
        self.episodes += 1
        every = self.section.record_every
        self._before = embeddings.detach() if every is not None and self.episodes % every == 0 else None
        self._representation = objective.representation
        return objective(embeddings, labels, attributes, features)

    def updated(self, embed: Callable[[], Tensor]) -> dict[str, float]:
        """What an update did to the episode's points, where this one is recorded; see `Schedule.updated`."""
        if self._before is None:
            return {}
        before, after = (self.space.project(vectors.float()) for vectors in (self._before, embed()))
        self._before = None
        section = self.section
        found = episode_dynamics(
            self.space, before, after, way=section.way, shot=section.shot, representation=self._representation
        )
        # What is undefined, as a ratio of what did not move, is left out: the log is JSON, which has no such number.
        return {name: value for name, value in found.items() if math.isfinite(value)}


def check_schedule(
    section: TrainingSection, objective: Objective, validated: bool, spec: InputSpec, cached: bool = False
) -> None:
    """Raise RecipeError when the schedule cannot work with the loss, the inputs, or without validation classes.

    Args:
        section: the recipe's training section.
        objective: what is minimised.
        validated: whether there are validation classes.
        spec: what the inputs are.
        cached: whether they come from a feature cache.
    """
    _check_steps(section, validated)
    if section.schedule == "adversarial":
        from nearkin.training.strategies.adversarial import check_adversarial

        check_adversarial(section.adversarial, objective, spec, cached)
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
            "validation classes: set data.val_classes to a share above 0, such as 0.15."
        )


def _check_steps(section: TrainingSection, validated: bool) -> None:
    """Refuse warm-ups that never end, and what waits for validations that never come."""
    for name in ("warmup_steps", "head_warmup_steps"):
        steps = getattr(section, name)
        if steps >= section.max_steps:
            raise RecipeError(
                f"Training ends after {section.max_steps} steps, before its warm-up of {steps} is over: lower "
                f"training.{name}, or raise training.max_steps."
            )
    if validated:
        return
    waiting = {
        "lr_schedule plateau": section.lr_schedule == "plateau",
        "average_best": section.average_best is not None,
        "select": section.select is not None,
    }
    for name, used in waiting.items():
        if used:
            raise RecipeError(
                f"training.{name} goes by validation values, and there are no validation classes: set data.val_classes "
                f"to a share above 0, or remove it."
            )


def make_schedule(
    section: TrainingSection, pool: TrainingPool, batch_size: int, folder: Path, ranks: Ranks | None = None
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
        from nearkin.training.strategies.chance_constrained import ChanceConstrained, Snapshots

        ranks = Ranks() if ranks is None else ranks
        snapshots = Snapshots(folder / "instances", pool) if ranks.is_first else None
        return ChanceConstrained(section.chance_constrained, pool, folder / "instance.safetensors", snapshots, ranks)
    if section.schedule == "episodic":
        return Episodic(section.episodic, pool.embedder.space)
    if section.schedule == "adversarial":
        from nearkin.training.strategies.adversarial import Adversarial

        return Adversarial(section.adversarial, pool.embedder.space, section.seed, ranks)
    return Schedule()
