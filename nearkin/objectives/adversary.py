"""The class adversary: a classifier of the training classes, whom the features first help and later hinder.

The loss l_m becomes l_m - lambda l_c, with the classifier's cross-entropy l_c. Soft: lambda = -weight, with smoothed
labels. Adaptive: lambda = -tanh(l_c - threshold) weight, set at the end of each epoch. The features follow the gradient
of -lambda l_c; the classifier always follows that of l_c. Derivation: docs/methods/class-adversary.md.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.errors import RecipeError
from nearkin.objectives.parameters import Count, Portion, Positive
from nearkin.objectives.registry import LossShape, register_regulariser
from nearkin.objectives.regulariser import Regulariser
from nearkin.spaces import Space

_SMOOTHING = {"soft": 0.15, "adaptive": 0.0}

# Keeps the draws of dropout apart from others of the same seed and step.
_SALT = 0xAD7


@register_regulariser("class-adversary")
def class_adversary(
    shape: LossShape,
    *,
    kind: Literal["adaptive", "soft"] = "adaptive",
    vectors: Literal["features", "embeddings"] = "features",
    hidden: Count = 512,
    dropout: Portion = 0.1,
    threshold: Positive = 1.5,
    smoothing: Portion | None = None,
    epoch_steps: Count | None = None,
) -> nn.Module:
    """Play against a classifier of the training classes, so that features do not serve these classes alone.

    While the classifier is poor the features help it; once its loss is below the threshold they make its task harder.
    The soft kind helps throughout, with labels that say less. The weight is lambda (soft) or lambda0 (adaptive); the
    paper chooses it among 0.1, 0.5 and 1. The log has the coefficient lambda, below 0 while the features help, and the
    classifier's mean loss and accuracy.

    Reference: Al-Kaabi, Monsefi, Zabihzadeh 2021, A framework to enhance generalization of deep metric learning methods
        using general discriminative feature learning and class adversarial neural networks, sections 3.4 to 4.
    Needs: something to learn before the head, or `vectors: embeddings`; any batch. An untrained classifier's loss is
        ln C for C classes: where that is below the threshold, as it is for C < 5, it is hindered from the start.
    Inputs: features (B, F) before the head, or raw embeddings (B, d), and labels (B,).
    Use when: training classes are few or fit too well, and unseen classes count.

    Args:
        kind: whether features turn against the classifier once it is good, "adaptive", or never, "soft".
        vectors: what the classifier sees: the "features" that the head takes, or "embeddings", as points of the space.
        hidden: size of the classifier's hidden layer.
        dropout: share of the hidden layer that each step leaves out.
        threshold: adaptive: the classifier's loss at which help turns into hindrance.
        smoothing: share of a label that is spread evenly over all classes; None: 0.15 for soft, 0 for adaptive.
        epoch_steps: adaptive: steps after which the coefficient is set anew, from the mean loss of these steps; None:
            one pass through the training items.

    Example:
        >>> term = {"name": "class-adversary", "weight": 0.5}
        >>> section = ObjectiveSection(loss="proxy-nca", regularisers=[term])
        >>> objective = make_objective(section, dimension=128, classes=100, features=512, epoch_steps=50)
    """
    size = shape.dimension if vectors == "embeddings" else shape.features
    if size is None:
        raise RecipeError(
            "The regulariser 'class-adversary' needs the size of the features before the head: give make_objective "
            "features, or set the regulariser's parameter vectors to embeddings."
        )
    turn = epoch_steps or shape.epoch_steps
    if kind == "adaptive" and turn is None:
        raise RecipeError(
            "The regulariser 'class-adversary' changes its coefficient every epoch and does not know how long one is: "
            "give make_objective epoch_steps, or set the regulariser's parameter of that name."
        )
    return ClassAdversary(
        size,
        shape.classes,
        hidden=hidden,
        dropout=dropout,
        smoothing=_SMOOTHING[kind] if smoothing is None else smoothing,
        threshold=threshold if kind == "adaptive" else None,
        epoch_steps=turn or 1,
        space=shape.space if vectors == "embeddings" else None,
        seed=shape.seed,
    )


class ClassAdversary(Regulariser):
    """The module behind the regulariser 'class-adversary'.

    Its value is -lambda l_c for a weight of 1, as in equations 21 and 22, but its gradients are those of two players:
    that of -lambda l_c for what it is given, that of l_c for the classifier. The objective multiplies both by the
    weight, which the classifier under Adam does not notice. In eval mode nothing is dropped and nothing counted.

    Args:
        size: of the vectors that are classified.
        classes: how many there are.
        hidden: size of the hidden layer.
        dropout: share of the hidden layer that each step leaves out, in [0, 1).
        smoothing: share of a label that is spread evenly over all classes.
        threshold: loss at which lambda changes its sign; None: lambda is -1 throughout.
        epoch_steps: how often lambda is set anew, in steps.
        space: where raw embeddings are projected before they are classified; None: they are features, taken as given.
        seed: of dropout.
    """

    own_rate = True
    coefficient: Tensor
    steps: Tensor
    epoch_loss: Tensor
    unread: Tensor
    unread_steps: Tensor

    def __init__(
        self,
        size: int,
        classes: int,
        *,
        hidden: int = 512,
        dropout: float = 0.1,
        smoothing: float = 0.0,
        threshold: float | None = 1.5,
        epoch_steps: int = 1,
        space: Space | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.takes = "features" if space is None else "embeddings"
        self.dropout = dropout
        self.smoothing = smoothing
        self.threshold = threshold
        self.epoch_steps = epoch_steps
        self.space = space
        self.seed = seed
        self.hidden = nn.Linear(size, hidden)
        self.output = nn.Linear(hidden, classes)
        untrained = torch.tensor(math.log(classes))
        start = torch.tensor(-1.0) if threshold is None else coefficient_for(untrained, threshold)
        self.register_buffer("coefficient", start)  # lambda, for a weight of 1
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("epoch_loss", torch.zeros(()))  # a sum, of the steps of this epoch
        self.register_buffer("unread", torch.zeros(2))  # sums of loss and accuracy since the last reading
        self.register_buffer("unread_steps", torch.zeros((), dtype=torch.int64))

    def forward(self, given: Tensor, labels: Tensor) -> Tensor:
        """-lambda l_c for vectors (B, size) and labels (B,); see the class for its gradients."""
        points = given if self.space is None else self.space.project(given)
        factor = -self.coefficient  # a copy: counting may change the coefficient before the backward pass
        logits = self._logits(scale_gradient(points, factor))
        loss = functional.cross_entropy(logits, labels, label_smoothing=self.smoothing)
        if self.training:
            self._count(loss.detach(), (logits.argmax(dim=1) == labels).float().mean())
        # The difference is nothing but a gradient.
        return factor * loss.detach() + (loss - loss.detach())

    def _logits(self, points: Tensor) -> Tensor:
        active: Tensor = self.hidden(points).relu()
        if self.training and self.dropout:
            kept = kept_units(active.shape, self.dropout, self.seed, int(self.steps)).to(active.device)
            active = active * kept / (1 - self.dropout)
        logits: Tensor = self.output(active)
        return logits

    @torch.no_grad()
    def _count(self, loss: Tensor, accuracy: Tensor) -> None:
        self.unread += torch.stack([loss, accuracy.to(loss.dtype)])
        self.unread_steps += 1
        self.steps += 1
        if self.threshold is None:
            return
        self.epoch_loss += loss
        if int(self.steps) % self.epoch_steps == 0:
            self.coefficient.copy_(coefficient_for(self.epoch_loss / self.epoch_steps, self.threshold))
            self.epoch_loss.zero_()

    def readings(self, weight: float = 1.0) -> dict[str, float]:
        """The coefficient lambda, and the classifier's mean loss and accuracy over the steps since the last call."""
        found = {"coefficient": weight * float(self.coefficient)}
        if steps := int(self.unread_steps):
            loss, accuracy = (self.unread / steps).tolist()
            found |= {"loss": loss, "accuracy": accuracy}
        self.unread.zero_()
        self.unread_steps.zero_()
        return found


def coefficient_for(loss: Tensor, threshold: float) -> Tensor:
    """lambda = -tanh(loss - threshold), equation 25 for a weight of 1: above 0 once the loss is below the threshold."""
    return -torch.tanh(loss - threshold)


def scale_gradient(x: Tensor, factor: Tensor) -> Tensor:
    """`x` itself, whose gradient is multiplied by a scalar factor on its way back; a negative one reverses it."""
    scaled: Tensor = _ScaledGradient.apply(x, factor)
    return scaled


def kept_units(shape: tuple[int, ...], dropout: float, seed: int, turn: int) -> Tensor:
    """Which units, a boolean mask of the given shape, dropout leaves in; another turn gives another draw."""
    drawn = np.random.default_rng([seed, turn, _SALT]).random(shape, dtype=np.float32)
    return torch.from_numpy(drawn >= dropout)


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return factor * outer[0], None
