"""Scores of known classes: what turns points of a model's space into a classifier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class ClassScores:
    """A classifier on embeddings.

    Attributes:
        names: of the C classes.
        scores: points of the space (B, d) to scores (B, C), whose softmax are the class probabilities; differentiable.
    """

    names: tuple[str, ...]
    scores: Callable[[Tensor], Tensor]
