"""The zero-shot prediction loss: attributes that describe some classes must describe the others too.

A linear map from attributes to class vectors, fitted on half of the classes in a batch, predicts the other half:
A = Y (Z^T Z + ridge I)^-1 Z^T, logits = scale <v_c, A z>. Derivation: docs/methods/zero-shot.md.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.objectives.registry import LossShape, Regulariser, register_regulariser
from nearkin.registry import Positive


@register_regulariser("zero-shot", classes=2)
def zero_shot(shape: LossShape, *, ridge: Positive = 0.05, scale: Positive = 9.5) -> nn.Module:
    """Predict the classes of one half of the batch by what the attributes of the other half's classes mean.

    Reference: Gürbüz 2022, section 5.2.3.
    Needs: a pooling that gives attributes ('gsp'; with a budget of 1 it is average pooling), at least two classes in a
        batch, in any order. The paper mixes it with a weight of 0.1 and the loss with 0.9 (`objective.weight`).
    Inputs: attributes (B, M) of the pooling, labels (B,).
    Use when: prototypes should stand for things that unseen classes have as well.

    Args:
        ridge: weight of the penalty on the linear map.
        scale: what similarities are multiplied by before the softmax.

    Example:
        >>> term = {"name": "zero-shot", "weight": 0.1}
        >>> section = ObjectiveSection(loss="contrastive", weight=0.9, regularisers=[term])
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    return ZeroShotPrediction(shape.classes, shape.dimension, ridge, scale, shape.seed)


class ZeroShotPrediction(Regulariser):
    """The module behind the regulariser 'zero-shot'.

    Args:
        classes: number of training classes.
        dimension: size of the learned vector of each class.
        ridge: weight of the penalty on the linear map.
        scale: what similarities are multiplied by before the softmax.
        seed: of which classes go together.
    """

    takes = "attributes"
    steps: Tensor

    def __init__(self, classes: int, dimension: int, ridge: float = 0.05, scale: float = 9.5, seed: int = 0) -> None:
        super().__init__()
        self.ridge = ridge
        self.scale = scale
        self.seed = seed
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.class_vectors = nn.Parameter(torch.randn(classes, dimension) * math.sqrt(2 / classes))

    def forward(self, attributes: Tensor, labels: Tensor) -> Tensor:
        """The mean of both halves' cross-entropies, for attributes (B, M) and labels (B,); zero for a single class.

        In training mode every call halves the classes again.
        """
        first = first_half(labels, self.seed, int(self.steps))
        if self.training:
            self.steps += 1
        if bool(first.all()):
            return 0.0 * (attributes.sum() + self.class_vectors.sum())
        one, other = (attributes[first], labels[first]), (attributes[~first], labels[~first])
        return 0.5 * (self._predict(*one, *other) + self._predict(*other, *one))

    def _predict(self, seen: Tensor, seen_labels: Tensor, unseen: Tensor, unseen_labels: Tensor) -> Tensor:
        """Cross-entropy of the unseen (b, M) by the map that fits the seen (a, M)."""
        gram = seen @ seen.T + self.ridge * torch.eye(len(seen), dtype=seen.dtype, device=seen.device)
        dual = torch.linalg.solve(gram, self.class_vectors[seen_labels].to(seen.dtype))
        predicted = (unseen @ seen.T) @ dual
        return functional.cross_entropy(self.scale * predicted @ self.class_vectors.T.to(seen.dtype), unseen_labels)


def first_half(labels: Tensor, seed: int, turn: int) -> Tensor:
    """Which items (B,) of a batch belong to a random half of its classes, whatever their order in the batch.

    Args:
        labels: (B,) int64.
        seed: of the draw.
        turn: another turn gives another draw.
    """
    classes, inverse = labels.unique(return_inverse=True)
    ranks = torch.from_numpy(np.random.default_rng([seed, turn]).permutation(len(classes))).to(labels.device)
    return (ranks < (len(classes) + 1) // 2)[inverse]
