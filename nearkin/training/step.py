"""What one step computes: the batch's embeddings, and the loss of all processes' batches together."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearkin.models import Embedder
from nearkin.models.features import Features
from nearkin.objectives import Objective
from nearkin.training.ranks import Ranks
from nearkin.training.schedules import Schedule


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
        inputs = self.schedule.views(self.embedder, self.objective, inputs, labels)
        attributes = None
        if self.objective.takers("attributes"):
            features, attributes = self.embedder.pooled_with_attributes(inputs, start=self.start)
        else:
            features = self.embedder.pooled(inputs, start=self.start)
        embeddings = self.embedder.head(features)
        seen = features if self.objective.takers("features") else None
        with torch.autocast(embeddings.device.type, enabled=False):
            return self._loss(embeddings, labels, attributes, seen)

    def _loss(self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, features: Tensor | None) -> Tensor:
        loss: Tensor = self.schedule(
            self.objective,
            self.ranks.gather(embeddings.float()),
            self.ranks.gather_labels(labels),
            None if attributes is None else self.ranks.gather(attributes.float()),
            None if features is None else self.ranks.gather(features.float()),
        )
        return self.ranks.reach(loss, self.learned)
