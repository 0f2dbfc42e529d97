"""The zero-shot prediction loss: attributes that describe some classes must describe the others too.

A linear map from attributes to class vectors, fitted on half of the classes in a batch, predicts the other half:
A = Y (Z^T Z + ridge I)^-1 Z^T, logits = scale <v_c, A z>. Derivation: docs/methods/zero-shot.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.objectives.parameters import Positive
from nearkin.objectives.registry import LossShape, register_regulariser

_PRIMES = (2654435761, 2246822519, 3266489917)
_BITS = 2**32


@register_regulariser("zero-shot", attributes=True, classes=2)
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
    return ZeroShotPrediction(shape.classes, shape.dimension, ridge, scale)


class ZeroShotPrediction(nn.Module):
    """The module behind the regulariser 'zero-shot'.

    Args:
        classes: number of training classes.
        dimension: size of the learned vector of each class.
        ridge: weight of the penalty on the linear map.
        scale: what similarities are multiplied by before the softmax.
    """

    def __init__(self, classes: int, dimension: int, ridge: float = 0.05, scale: float = 9.5) -> None:
        super().__init__()
        self.ridge = ridge
        self.scale = scale
        self.class_vectors = nn.Parameter(torch.randn(classes, dimension) * math.sqrt(2 / classes))

    def forward(self, attributes: Tensor, labels: Tensor) -> Tensor:
        """The mean of both halves' cross-entropies, for attributes (B, M) and labels (B,); zero for a single class."""
        first = first_half(labels)
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


def first_half(labels: Tensor) -> Tensor:
    """Which items (B,) of a batch belong to the first half of its classes, whatever their order in the batch.

    Which classes go together depends on the whole set of classes in the batch, so that it changes from batch to batch
    and is the same in every process.
    """
    classes, inverse = labels.unique(return_inverse=True)
    mixed = (classes * _PRIMES[0] + classes.sum() * _PRIMES[1]) % _BITS
    mixed = (mixed ^ (mixed >> 15)) * _PRIMES[2] % _BITS
    ranks = (mixed ^ (mixed >> 13)).argsort(stable=True).argsort()
    return (ranks < (len(classes) + 1) // 2)[inverse]
