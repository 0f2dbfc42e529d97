"""What training and audits may ask of a loss that has something standing for each class."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class ClassVectors(Protocol):
    """A loss with a point for each class: it can classify, and its points can be looked at."""

    def class_scores(self, points: Tensor) -> Tensor:
        """Scores (B, C) of points of the space (B, d): their softmax are the class probabilities, without a margin."""
        ...

    def class_vectors(self) -> Tensor:
        """The points (C, d) of the space that stand for the classes, with a gradient where they are learned."""
        ...


@runtime_checkable
class Stepped(Protocol):
    """A loss with a part that moves by a rule of its own, not by the optimiser."""

    def stepped(self) -> None:
        """Move, right after a step of the optimiser, by what the last forward in training mode saw."""
        ...


@runtime_checkable
class Following(Protocol):
    """A loss with a part that follows the points it is called with, and that draws in training mode."""

    def unfollowed(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of raw embeddings (B, d) and labels (B,), as in training, of points that nothing shall follow."""
        ...
