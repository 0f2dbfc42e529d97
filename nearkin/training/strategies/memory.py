"""Cross-batch memory: each batch is also compared with the embeddings of the batches before it.

Reference: Wang, Zhang, Huang, Scott 2020, Cross-batch memory for embedding learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nearkin.objectives import Objective
from nearkin.recipe import CrossBatchMemorySection
from nearkin.training.strategies.base import Schedule


class CrossBatchMemory(Schedule):
    """Loss in the batch plus loss to a queue of earlier embeddings; after `warmup_steps` plain steps.

    The memory fills from the first step on, and is used when the warm-up is over. A batch joins it after its own step,
    so no sample meets its own copy. Embeddings are kept raw, as of the step that made them.

    Args:
        section: the recipe's settings.
        batch_size: items in a batch of all processes together.
        dimension: size of an embedding.
    """

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
        self,
        objective: Objective,
        embeddings: Tensor,
        labels: Tensor,
        attributes: Tensor | None = None,
        features: Tensor | None = None,
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

    def facts(self) -> dict[str, Any]:
        """How far the queue and the warm-up are."""
        return {"steps": self.steps, "seen": self.seen}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Put back what `tensors` and `facts` gave."""
        super().restore(tensors, facts)
        self.steps, self.seen = facts["steps"], facts["seen"]
