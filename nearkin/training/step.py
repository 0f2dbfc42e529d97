"""What one step computes: the batch's embeddings, and the loss of all processes' batches together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nearkin.models import Embedder
from nearkin.models.features import Features
from nearkin.objectives import Objective
from nearkin.training.ranks import Ranks
from nearkin.training.schedules import Schedule


class Outputs(NamedTuple):
    """What the network makes of inputs, as far as the objective takes it.

    Attributes:
        embeddings: raw, (b, d).
        attributes: (b, M) that the pooling gives, where the objective needs them.
        features: (b, F) that the head takes, where the objective needs them.
    """

    embeddings: Tensor
    attributes: Tensor | None = None
    features: Tensor | None = None

    def given(self) -> list[Tensor]:
        """Those that are there."""
        return [one for one in self if one is not None]

    @classmethod
    def joined(cls, parts: Sequence[Outputs]) -> Outputs:
        """Parts of a batch as one, without their graphs, ready to collect gradients."""
        embeddings = torch.cat([one.embeddings for one in parts]).requires_grad_()
        return cls(embeddings, _joined([one.attributes for one in parts]), _joined([one.features for one in parts]))


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Parts as one tensor that collects gradients; None where they are not there."""
    there = [part for part in parts if part is not None]
    return torch.cat(there).requires_grad_() if there else None


class Step(nn.Module):
    """Embedder, objective and schedule as one module, so that Fabric wraps a single forward pass.

    The loss is taken of the batch of all processes, and always in single precision: its exponentials overflow in half.
    """

    def __init__(
        self, embedder: Embedder, objective: Objective, schedule: Schedule, start: str | None, ranks: Ranks
    ) -> None:
        super().__init__()
        self.embedder = embedder
        self.objective = objective
        self.schedule = schedule
        self.start = start
        self.ranks = ranks
        self.learned = [
            parameter
            for module in (embedder.pooling, *embedder.taught_by_loss(), objective, schedule)
            for parameter in module.parameters()
            if parameter.requires_grad
        ]

    def forward(self, inputs: Features, labels: Tensor) -> Tensor:
        """The value to minimise, a scalar, for this process's inputs (b, ...) and labels (b,)."""
        return self.loss(self.represent(self.schedule.views(self.embedder, self.objective, inputs, labels)), labels)

    def represent(self, inputs: Features) -> Outputs:
        """What the network makes of inputs (b, ...)."""
        attributes = None
        if self.objective.takers("attributes"):
            features, attributes = self.embedder.pooled_with_attributes(inputs, start=self.start)
        else:
            features = self.embedder.pooled(inputs, start=self.start)
        embeddings = self.embedder.head(features)
        return Outputs(embeddings, attributes, features if self.objective.takers("features") else None)

    def loss(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """The value to minimise, of what this process's network made of its inputs and of their labels (b,)."""
        with torch.autocast(outputs.embeddings.device.type, enabled=False):
            gathered = [None if one is None else self.ranks.gather(one.float()) for one in outputs]
            embeddings, attributes, features = gathered
            loss: Tensor = self.schedule(
                self.objective, embeddings, self.ranks.gather_labels(labels), attributes, features
            )
        return self.ranks.reach(loss, self.learned)
