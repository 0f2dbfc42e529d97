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
from nearkin.objectives.registry import (
    LayerSize,
    LossShape,
    Portion,
    Regulariser,
    register_counters,
    register_regulariser,
)
from nearkin.registry import Count, Positive
from nearkin.spaces import Space

THRESHOLD = 1.5
"""Of an adaptive adversary whose recipe names none."""

_SMOOTHING = {"soft": 0.15, "adaptive": 0.0}

# Keeps the draws of dropout apart from others of the same seed and step.
_SALT = 0xAD7


@register_regulariser("class-adversary")
def class_adversary(
    shape: LossShape,
    *,
    kind: Literal["adaptive", "soft"] = "adaptive",
    vectors: Literal["features", "embeddings"] = "features",
    hidden: LayerSize = 512,
    dropout: Portion = 0.1,
    threshold: Positive | None = None,
    smoothing: Portion | None = None,
    epoch_steps: Count | None = None,
) -> nn.Module:
    """Play against a classifier of the training classes, so that features do not serve these classes alone.

    While the classifier is poor the features help it; once its loss is below the threshold they make its task harder.
    The soft kind helps throughout, with labels that say less. The weight is lambda (soft) or lambda0 (adaptive); the
    paper chooses it among 0.1, 0.5 and 1. It multiplies the classifier's own gradient too, which Adam does not notice,
    but SGD and clipping do: with a weight of 0 the classifier does not learn. The log has the coefficient lambda, below
    0 while the features help, how often its sign changed, and the classifier's mean loss and accuracy.

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
        threshold: adaptive only: the classifier's loss at which help turns into hindrance; None: 1.5.
        smoothing: share of a label that is spread evenly over all classes; None: 0.15 for soft, 0 for adaptive.
        epoch_steps: adaptive only: steps after which the coefficient is updated, from the mean loss of these steps;
            None: one pass through the training items.

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
    smoothing = _SMOOTHING[kind] if smoothing is None else smoothing
    if kind == "soft":
        for name, value in {"threshold": threshold, "epoch_steps": epoch_steps}.items():
            if value is not None:
                raise RecipeError(
                    f"The regulariser 'class-adversary' of the kind soft never changes its coefficient and has no use "
                    f"for {name}={value:g}: leave {name} out, or set kind to adaptive."
                )
        epoch = 1
    else:
        threshold = THRESHOLD if threshold is None else threshold
        least = least_loss(smoothing, shape.classes)
        if least >= threshold:
            raise RecipeError(
                f"With smoothing={smoothing:g} and {shape.classes} classes no classifier's loss falls below "
                f"{least:.3g}, so the regulariser 'class-adversary' would never turn at a threshold of {threshold:g}: "
                "lower smoothing, or raise threshold."
            )
        epoch = epoch_steps or shape.epoch_steps or 0
        if not epoch:
            raise RecipeError(
                "The regulariser 'class-adversary' changes its coefficient every epoch and does not know how long one "
                "is: give make_objective epoch_steps, or set the regulariser's parameter of that name."
            )
    return ClassAdversary(
        size,
        shape.classes,
        hidden=hidden,
        dropout=dropout,
        smoothing=smoothing,
        threshold=threshold,
        epoch_steps=epoch,
        space=shape.space if vectors == "embeddings" else None,
        seed=shape.seed,
    )


class ClassAdversary(Regulariser):
    """The module behind the regulariser 'class-adversary'.

    Its value is -lambda l_c for a weight of 1, as in equations 21 and 22, but its gradients are those of two players:
    that of -lambda l_c for what it is given, that of l_c for the classifier. The objective multiplies both by the
    weight, which the classifier notices under SGD and clipping, not under Adam; with a weight of 0 it does not learn.
    In eval mode nothing is dropped and nothing counted.

    Args:
        size: of the vectors that are classified.
        classes: how many there are.
        hidden: size of the hidden layer.
        dropout: share of the hidden layer that each step leaves out, in [0, 1).
        smoothing: share of a label that is spread evenly over all classes.
        threshold: loss at which lambda changes its sign; None: lambda is -1 throughout.
        epoch_steps: how often lambda is updated, in steps.
        space: where raw embeddings are projected before they are classified; None: they are features, taken as given.
        seed: of dropout.
    """

    learns_as_head = True
    coefficient: Tensor
    acted: Tensor
    turns: Tensor
    steps: Tensor
    epoch_loss: Tensor
    unread: Tensor
    unread_steps: Tensor
    _steps: int
    _unread_steps: int

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
        self.width = size
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
        self.register_buffer("coefficient", start)  # lambda of the next step, for a weight of 1
        self.register_buffer("acted", start.clone())  # lambda of the last step
        self.register_buffer("turns", torch.zeros(3, dtype=torch.int64))  # how many, step of the first and of the last
        self.register_buffer("epoch_loss", torch.zeros(()))  # a sum, of the steps of this epoch
        self.register_buffer("unread", torch.zeros(2))  # sums of loss and accuracy since the last reading
        register_counters(self, "steps", "unread_steps")

    def forward(self, given: Tensor, labels: Tensor) -> Tensor:
        """-lambda l_c for vectors (B, size) and labels (B,); see the class for its gradients."""
        points = given if self.space is None else self.space.project(given)
        points = points.to(self.hidden.weight.dtype)
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
            kept = kept_units(active.shape, self.dropout, self.seed, self._steps).to(active.device)
            active = active * kept / (1 - self.dropout)
        logits: Tensor = self.output(active)
        return logits

    @torch.no_grad()
    def _count(self, loss: Tensor, accuracy: Tensor) -> None:
        self.unread += torch.stack([loss, accuracy.to(loss.dtype)])
        self.unread_steps += 1
        self.steps += 1
        self._steps += 1
        self._unread_steps += 1
        if self.threshold is None:
            return
        if (self._steps - 1) % self.epoch_steps == 0:
            self._begin_epoch()
        self.epoch_loss += loss
        if self._steps % self.epoch_steps == 0:
            self.coefficient.copy_(coefficient_for(self.epoch_loss / self.epoch_steps, self.threshold))
            self.epoch_loss.zero_()

    def _begin_epoch(self) -> None:
        """Note whether lambda acts with another sign from this step on, without reading it."""
        step = torch.full_like(self.turns[0], self._steps)
        first = torch.where(self.turns[0] == 0, step, self.turns[1])
        turned = self.acted * self.coefficient < 0
        self.turns.copy_(torch.where(turned, torch.stack([self.turns[0] + 1, first, step]), self.turns))
        self.acted.copy_(self.coefficient)

    def readings(self, weight: float = 1.0) -> dict[str, float]:
        """The `coefficient` lambda that acted in the last step, and the mean `loss` and `accuracy` since the last call.

        The adaptive kind also tells how often lambda's sign has changed since training began, `turns`, and, where it
        has, the steps in which lambda first acted with the new sign: `first_turn` and `last_turn`.
        """
        found: dict[str, float] = {"coefficient": weight * float(self.acted)}
        if self.threshold is not None:
            turns, first, last = self.turns.tolist()
            found |= {"turns": turns} | ({"first_turn": first, "last_turn": last} if turns else {})
        if self._unread_steps:
            loss, accuracy = (self.unread / self._unread_steps).tolist()
            found |= {"loss": loss, "accuracy": accuracy}
        self.unread.zero_()
        self.unread_steps.zero_()
        self._unread_steps = 0
        return found


def coefficient_for(loss: Tensor, threshold: float) -> Tensor:
    """lambda = -tanh(loss - threshold), equation 25 for a weight of 1: above 0 once the loss is below the threshold."""
    return -torch.tanh(loss - threshold)


def least_loss(smoothing: float, classes: int) -> float:
    """The least cross-entropy that any classifier reaches with smoothed labels: the entropy of such a label."""
    if smoothing == 0:
        return 0.0
    other = smoothing / classes
    own = 1 - smoothing + other
    return -own * math.log(own) - (classes - 1) * other * math.log(other)


def scale_gradient(x: Tensor, factor: Tensor) -> Tensor:
    """`x` itself, whose gradient is multiplied by a scalar factor on its way back; a negative one reverses it."""
    scaled: Tensor = _ScaledGradient.apply(x, factor)
    return scaled


def kept_units(shape: tuple[int, ...], dropout: float, seed: int, step: int) -> Tensor:
    """Which units, a boolean mask of the given shape, dropout leaves in; another step gives another draw."""
    drawn = np.random.default_rng([seed, step, _SALT]).random(shape, dtype=np.float32)
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
