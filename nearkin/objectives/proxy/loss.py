"""A loss by class representatives, put together from four parts: a space, a bank, scores and a criterion."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearkin.errors import DataError
from nearkin.objectives.proxy.bank import Bank
from nearkin.objectives.proxy.criteria import Criterion
from nearkin.objectives.proxy.scores import Scores
from nearkin.spaces import Space


class ProxyLoss(nn.Module):
    """Compare a batch with what stands for the classes: (embeddings (B, d), labels (B,)) to a scalar.

    Args:
        space: where raw embeddings are projected.
        bank: what stands for the classes.
        scores: points and what the bank gives, to scores.
        criterion: scores (B, C) and labels (B,) to a scalar.
    """

    def __init__(self, space: Space, bank: Bank, scores: Scores, criterion: Criterion) -> None:
        super().__init__()
        self.space = space
        self.bank = bank
        self.scores = scores
        self.criterion = criterion

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Scalar loss of raw embeddings (B, d) and labels (B,) in 0 ... C - 1."""
        points = self.space.project(embeddings)
        scores = self.class_scores(points)
        check_labels(labels, *scores.shape)
        if self.training:
            self.bank.watch(points.detach(), labels)
            self.scores.watch(scores.detach(), labels)
        return self.criterion(scores, labels)

    def class_scores(self, points: Tensor) -> Tensor:
        """Scores (B, C) of points of the space (B, d): their softmax are the class probabilities, without a margin."""
        proxies: Tensor = self.bank()
        if points.ndim != 2 or points.shape[1] != proxies.shape[1]:
            raise DataError(
                f"The loss was built for embeddings of shape (batch, {proxies.shape[1]}) and was given "
                f"{tuple(points.shape)}: give make_objective the model's dimension."
            )
        scores: Tensor = self.scores(points, proxies.to(points.dtype))
        return scores

    def class_vectors(self) -> Tensor:
        """The points (C, d) of the space that stand for the classes, with a gradient where they are learned."""
        return self.bank.class_vectors()

    def stepped(self) -> None:
        """Move what moves by a rule of its own, right after the optimiser's step, by what the last forward saw."""
        self.bank.stepped()
        self.scores.stepped()

    def readings(self) -> dict[str, float]:
        """`scale`, where it is dynamic."""
        return self.scores.readings()


def check_labels(labels: Tensor, rows: int, classes: int) -> None:
    """Refuse labels that are not one for each of `rows` embeddings, whole numbers below `classes`."""
    if labels.shape != (rows,) or rows == 0:
        raise DataError(
            f"The loss needs a batch of at least one embedding with one label each, and was given {rows} embeddings "
            f"and labels of shape {tuple(labels.shape)}."
        )
    if labels.dtype != torch.int64:
        raise DataError(f"The loss needs labels of type int64, and was given {str(labels.dtype).partition('.')[2]}.")
    if labels.device.type == "cpu":  # elsewhere the look itself would make the step wait
        low, high = labels.aminmax()
        if low < 0 or high >= classes:
            raise DataError(
                f"The loss was built for {classes} classes, labels 0 to {classes - 1}, and was given labels from "
                f"{int(low)} to {int(high)}: give make_objective the number of classes."
            )
