"""The loss of a learned similarity: of items to prototypes, of items to each other, and a dense layer's."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from nearkin.errors import RecipeError
from nearkin.models.similarity import PairSimilarity, PrototypeBank, SimilarityParts
from nearkin.objectives.proxy.loss import check_labels
from nearkin.objectives.registry import PAIRS, LossShape, Portion, drawing_by, register_loss
from nearkin.registry import NonNegative
from nearkin.spaces import Space

LEARNED_SIMILARITY = "learned-similarity"

# Keeps the draws of dropout and targets apart from others of the same seed and step.
_SALT = 0x51A1

Spread = Annotated[float, Field(ge=0, lt=0.5)]
"""By how much a target may miss 0 or 1 and still be told from the other."""


@register_loss(LEARNED_SIMILARITY, family="similarity", batch=PAIRS)
def learned_similarity(
    shape: LossShape,
    *,
    class_weight: NonNegative = 1.0,
    pair_weight: NonNegative = 1.0,
    auxiliary_weight: NonNegative = 1.0,
    momentum: Portion = 0.9,
    label_smoothing: Portion = 0.0,
    target_spread: Spread = 0.0,
) -> nn.Module:
    """Learned similarity: cross-entropy over S(prototype, item), plus that of pairs, plus that of a dense layer.

    CE(S(C, z)) + BCE(S(z_i, z_j)) over pairs of one class and of two, each kind averaged on its own, in both orders,
    + CE(dense(z)). The prototypes C are moving averages of the batches' class means, updated before the scores.

    Reference: Learning semantic similarities for prototypical classifiers (submitted to ICLR 2021), section 3.1.
    Needs: at least two classes and two samples of each in a batch; class labels; model.similarity in a recipe. Any
        space; usually Euclidean.
    Inputs: raw embeddings (B, d), labels (B,).
    Use when: one model should classify, verify, retrieve and take in new classes, and an untaught distance is not
        enough.

    Args:
        class_weight: of the similarity to prototypes; 0 leaves the term out.
        pair_weight: of pairs of the batch; 0 leaves the term out.
        auxiliary_weight: of the dense layer; 0 leaves the term out, and the layer.
        momentum: share of a prototype that a step keeps.
        label_smoothing: share of the target that all classes have, of both cross-entropies over classes.
        target_spread: pairs of one class have targets drawn from [1 - spread, 1], others from [0, spread].

    Example:
        >>> section = ObjectiveSection(loss="learned-similarity", parameters={"auxiliary_weight": 0})
        >>> objective = make_objective(section, dimension=128, classes=100)
    """
    if not class_weight and not pair_weight:
        raise RecipeError(
            f"The loss '{LEARNED_SIMILARITY}' has nothing to teach the similarity by: set class_weight or pair_weight "
            "above 0, or choose the loss 'softmax'."
        )
    parts = shape.similarity
    if parts is None:
        dense = nn.Linear(shape.dimension, shape.classes) if auxiliary_weight else None
        bank = PrototypeBank(shape.classes, shape.dimension, shape.space)
        parts = SimilarityParts(PairSimilarity(shape.dimension), bank, dense)
    weights = (class_weight, pair_weight, auxiliary_weight)
    owned = shape.similarity is None
    return SimilarityLoss(shape.space, parts, weights, momentum, label_smoothing, target_spread, shape.seed, owned)


class SimilarityLoss(nn.Module):
    """The three terms of a learned similarity: (embeddings (B, d), labels (B,)) to a scalar.

    Args:
        space: where raw embeddings are projected.
        parts: what is taught.
        weights: of the terms of prototypes, of pairs and of the dense layer; 0 leaves one out.
        momentum: share of a prototype that a step keeps.
        label_smoothing: of both cross-entropies over classes.
        target_spread: how far targets of pairs may lie from 0 and 1.
        seed: of dropout and of these targets: a step's draws follow from it, and are the same in every process.
        owned: whether the parts belong to the loss; otherwise a model has them, with their weights and their state.
    """

    steps: Tensor

    def __init__(
        self,
        space: Space,
        parts: SimilarityParts,
        weights: tuple[float, float, float] = (1.0, 1.0, 1.0),
        momentum: float = 0.9,
        label_smoothing: float = 0.0,
        target_spread: float = 0.0,
        seed: int = 0,
        owned: bool = True,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.space = space
        self.parts = parts  # no module, so what is in it is not this module's
        self.weights = weights
        self.momentum = momentum
        self.label_smoothing = label_smoothing
        self.target_spread = target_spread
        if owned:
            self.network, self.prototypes, self.dense = parts.network, parts.prototypes, parts.dense
        self._told: dict[str, Tensor] = {}

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Scalar loss of raw embeddings (B, d) and labels (B,) in 0 ... C - 1."""
        points = self._points(embeddings, labels)
        if self.training:
            self.parts.prototypes.update(points.detach(), labels, self.momentum)
        terms = self._terms(points, labels)
        self._told = {name: term.detach() for name, term in terms.items()}
        return torch.stack(list(terms.values())).sum()

    def unfollowed(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The same of points that prototypes do not follow and the log does not tell of, such as perturbed ones."""
        terms = self._terms(self._points(embeddings, labels), labels)
        return torch.stack(list(terms.values())).sum()

    def _points(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Points of the space (B, d), with labels (B,) that fit."""
        points = self.space.project(embeddings)
        check_labels(labels, len(points), len(self.parts.prototypes))
        return points

    def _terms(self, points: Tensor, labels: Tensor) -> dict[str, Tensor]:
        of_class, of_pairs, auxiliary = self.weights
        terms = {}
        with drawing_by(points.device, self.seed, int(self.steps), _SALT) if self.training else nullcontext():
            self.steps += int(self.training)
            if of_class:
                terms["class_loss"] = of_class * self._cross_entropy(self.class_scores(points), labels)
            if of_pairs:
                terms["pair_loss"] = of_pairs * self._pairs(points, labels)
            if auxiliary and self.parts.dense is not None:
                terms["auxiliary_loss"] = auxiliary * self._cross_entropy(self.parts.dense(points), labels)
        return terms

    def class_scores(self, points: Tensor) -> Tensor:
        """Similarities (B, C) of points of the space (B, d) to the prototypes; nothing drops out in eval mode."""
        return self.parts.class_scores(points, at_rest=not self.training)

    def class_vectors(self) -> Tensor:
        """The prototypes (C, d), which have no gradient."""
        return self.parts.prototypes.placed()

    def readings(self) -> dict[str, float]:
        """The weighted terms of the last step."""
        return {name: float(term) for name, term in self._told.items()}

    def _cross_entropy(self, scores: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(scores, labels, label_smoothing=self.label_smoothing)

    def _pairs(self, points: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of "one class or two?", the mean over pairs of one class plus the mean over the others."""
        scores = self.parts.network.table(points, points, at_rest=not self.training)
        same = labels[:, None] == labels
        apart = ~same
        same.fill_diagonal_(False)
        genuine, impostors = scores[same], scores[apart]
        return self._surprise(genuine) + self._surprise(-impostors)

    def _surprise(self, logits: Tensor) -> Tensor:
        """Mean cross-entropy of logits that should be high; nothing where there are none."""
        if not len(logits):
            return logits.sum()
        targets = torch.ones_like(logits)
        if self.target_spread and self.training:
            targets -= self.target_spread * torch.rand_like(logits)
        return functional.binary_cross_entropy_with_logits(logits, targets)
