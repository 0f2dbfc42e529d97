"""What a schedule is: what each batch is compared with, and what happens between the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from nearkin.models import Embedder
from nearkin.models.features import Features
from nearkin.objectives import Objective

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
    """

    selection: str = SELECTION_METRIC

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
        self,
        objective: Objective,
        embeddings: Tensor,
        labels: Tensor,
        attributes: Tensor | None = None,
        features: Tensor | None = None,
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
        """What the log shall say of the steps since the last call; nothing by default."""
        return {}

    def updated(self, embed: Callable[[], Tensor]) -> dict[str, float]:
        """Take in that a step has changed the weights; return what the log shall say of it, nothing if empty.

        Args:
            embed: gives the raw embeddings (B, d) of the step's batch by the new weights, in training mode, and leaves
                no trace: no running statistic moves.
        """
        return {}

    def begin(self) -> None:
        """Called once, before the first step of a new run."""

    def validated(self, step: int, values: Mapping[str, float], weights: Weights) -> dict[str, float]:
        """Take in a validation; return what the log shall say of it, nothing if empty.

        Args:
            step: steps done.
            values: the validation's values, with the names they have in the log.
            weights: gives a copy of every weight and buffer that was validated.
        """
        return {}

    def finished(self, step: int) -> dict[str, float]:
        """Take in that training is over; return what the log shall say of it, nothing if empty."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint keeps."""
        return dict(self.state_dict())

    def facts(self) -> dict[str, Any]:
        """The plain numbers that a checkpoint keeps."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Put back what `tensors` and `facts` gave."""
        self.load_state_dict(tensors)
