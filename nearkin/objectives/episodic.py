"""Losses of episodes: queries are classified by a few support items of each class, as they will be after training.

The distance d of a query to each class, of its mean or of its nearest support item, becomes a probability: softmax over
-s d^2 or -s d (SD-softmax), or over -rho ln d, which is d^-rho / sum of d^-rho (distance ratio). The loss is the mean
cross-entropy of the queries; of rolling episodes, in which all items take turns as support, the mean over the turns.
Derivation: docs/methods/distance-ratio.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.errors import DataError, RecipeError
from nearkin.objectives.registry import PAIRS, EpisodeShape, LossShape, register_counters, register_loss
from nearkin.registry import Positive, Real
from nearkin.spaces import (
    Representation,
    Space,
    class_distances,
    distance_ratio_scores,
    distance_scores,
    sd_softmax_scores,
)

LOG_RHO = 2.0
"""ln rho before training, as in Kim 2023, article II."""

_LARGEST_LOG_RHO = 80.0
"""Single precision holds rho between exp of minus this and exp of this; soon beyond, it is 0 or infinite."""


@register_loss("protonet-s", family="episodes", batch=PAIRS)
def protonet_s(
    shape: LossShape, *, scale: Positive = 1.0, power: Literal[1, 2] = 2, rolling: bool = False
) -> nn.Module:
    """ProtoNet_S: softmax over -scale d^power to the mean of each class's support items.

    Reference: Snell, Swersky, Zemel 2017, Prototypical networks for few-shot learning; Kim 2023, article II.
    Needs: `training.schedule: episodic`, whose episodes say which items are support and which are queries. Any space;
        the paper's is Euclidean. On the sphere, where squared chords end at 4, raise the scale.
    Inputs: raw embeddings (B, d) and labels (B,) of an episode, class by class, the support of each class first.
    Use when: new classes come with a handful of examples, and scale may be part of what is learned.

    Args:
        scale: what distances are multiplied by.
        power: 2: squared distances, the usual softmax; 1: plain ones.
        rolling: every item is support in turn and a query otherwise; the loss is the mean over all these episodes.

    Example:
        >>> section = ObjectiveSection(loss="protonet-s")
        >>> objective = make_objective(section, dimension=128, classes=64, space=Euclidean(), episode=(1, 1))
    """
    return EpisodicLoss(shape.space, _episode(shape, "protonet-s"), _Softmax(scale, power), "mean", rolling)


@register_loss("protonet-dr", family="episodes", batch=PAIRS)
def protonet_dr(
    shape: LossShape, *, log_rho: Real = LOG_RHO, learn_rho: bool = True, rolling: bool = False
) -> nn.Module:
    """ProtoNet_DR: p_c = d_c^-rho / sum of d_y^-rho, with the distances to the means of the classes' support items.

    Probabilities do not change when the whole embedding is scaled, are 1 at the class's own mean and 0 at another's.

    Reference: Kim, Parviainen, Malde 2022, Distance-ratio-based formulation for metric learning (Kim 2023, article II).
    Needs: `training.schedule: episodic`, whose episodes say which items are support and which are queries. Any space.
    Inputs: raw embeddings (B, d) and labels (B,) of an episode, class by class, the support of each class first.
    Use when: new classes come with a single example or a few, and training should not spend itself on scale.

    Args:
        log_rho: ln rho, before training if it is learned.
        learn_rho: whether rho is learned with the weights; else it stays.
        rolling: every item is support in turn and a query otherwise; the loss is the mean over all these episodes.

    Example:
        >>> section = ObjectiveSection(loss="protonet-dr")
        >>> objective = make_objective(section, dimension=128, classes=64, space=Euclidean(), episode=(1, 1))
    """
    return EpisodicLoss(
        shape.space, _episode(shape, "protonet-dr"), _DistanceRatio(log_rho, learn_rho), "mean", rolling
    )


@register_loss("1nn-s", family="episodes", batch=PAIRS)
def nearest_s(shape: LossShape, *, scale: Positive = 1.0, power: Literal[1, 2] = 2, rolling: bool = False) -> nn.Module:
    """1NN_S: softmax over -scale d^power to the nearest support item of each class; a differentiable 1-NN.

    Reference: Kim 2023, article II, appendix D.
    Needs: `training.schedule: episodic`, with more than one shot: with one it is 'protonet-s'. Any space.
    Inputs: raw embeddings (B, d) and labels (B,) of an episode, class by class, the support of each class first.
    Use when: classes have several forms of which a mean would be none.

    Args:
        scale: what distances are multiplied by.
        power: 2: squared distances, the usual softmax; 1: plain ones.
        rolling: every item is support in turn and a query otherwise; the loss is the mean over all these episodes.

    Example:
        >>> section = ObjectiveSection(loss="1nn-s", parameters={"scale": 0.5})
        >>> objective = make_objective(section, dimension=128, classes=64, space=Euclidean(), episode=(1, 1))
    """
    return EpisodicLoss(shape.space, _episode(shape, "1nn-s"), _Softmax(scale, power), "nearest", rolling)


@register_loss("1nn-dr", family="episodes", batch=PAIRS)
def nearest_dr(
    shape: LossShape, *, log_rho: Real = LOG_RHO, learn_rho: bool = True, rolling: bool = False
) -> nn.Module:
    """1NN_DR: p_c = d_c^-rho / sum of d_y^-rho, with the distances to the nearest support item of each class.

    For distance ratios support items are optimal representatives and their mean is not (article II, appendix A.2).

    Reference: Kim 2023, article II, appendix D.
    Needs: `training.schedule: episodic`, with more than one shot: with one it is 'protonet-dr'. Any space.
    Inputs: raw embeddings (B, d) and labels (B,) of an episode, class by class, the support of each class first.
    Use when: classes have several forms, a few shots, and training should not spend itself on scale.

    Args:
        log_rho: ln rho, before training if it is learned.
        learn_rho: whether rho is learned with the weights; else it stays.
        rolling: every item is support in turn and a query otherwise; the loss is the mean over all these episodes.

    Example:
        >>> section = ObjectiveSection(loss="1nn-dr", parameters={"learn_rho": False})
        >>> objective = make_objective(section, dimension=128, classes=64, space=Euclidean(), episode=(1, 1))
    """
    return EpisodicLoss(shape.space, _episode(shape, "1nn-dr"), _DistanceRatio(log_rho, learn_rho), "nearest", rolling)


class EpisodicLoss(nn.Module):
    """Mean cross-entropy of an episode's queries, and values to log for the episodes.

    Args:
        space: where raw embeddings are projected and compared.
        episode: how many items of each class are support and how many queries.
        scores: distances (Q, C) to scores whose softmax are the class probabilities; a module of its own `readings`.
        representation: what stands for a class.
        rolling: whether all items of a class take turns as support.
    """

    unread: Tensor
    unread_episodes: Tensor
    _unread_episodes: int

    def __init__(
        self,
        space: Space,
        episode: EpisodeShape,
        scores: _Softmax | _DistanceRatio,
        representation: Representation = "mean",
        rolling: bool = False,
    ) -> None:
        super().__init__()
        self.rolling = rolling
        self.space = space
        self.episode = episode
        self.scores = scores
        self.representation = representation
        self.register_buffer("unread", torch.zeros(()))  # sum of accuracies since the last reading
        register_counters(self, "unread_episodes")

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Scalar loss of raw embeddings (B, d) and labels (B,): class by class, the support of each class first."""
        per_class = self.episode.per_class
        if len(embeddings) % per_class or len(labels) != len(embeddings):
            raise DataError(
                f"An episode has {self.episode.shot} + {self.episode.query} items of each class, one class after the "
                f"other, and {len(embeddings)} embeddings with {len(labels)} labels are not a multiple of {per_class}."
            )
        if labels.device.type == "cpu":  # elsewhere the look itself would make the step wait
            _check_layout(labels.view(-1, per_class))
        points = self.space.project(embeddings).unflatten(0, (-1, per_class))
        turns = range(per_class if self.rolling else 1)
        return torch.stack([self._turn(points.roll(-turn, dims=1)) for turn in turns]).mean()

    def _turn(self, points: Tensor) -> Tensor:
        """Scalar loss of points (C, K + Q, d) whose first K of each class are the support."""
        support, query = points.split([self.episode.shot, self.episode.query], dim=1)
        scores = self.scores(class_distances(self.space, support, query.flatten(0, 1), self.representation))
        truth = torch.arange(len(points), device=scores.device).repeat_interleave(self.episode.query)
        if self.training:
            self._count(scores.detach(), truth)
        return functional.cross_entropy(scores, truth)

    @torch.no_grad()
    def _count(self, scores: Tensor, truth: Tensor) -> None:
        self.unread += (scores.argmax(dim=1) == truth).float().mean()
        self.unread_episodes += 1
        self._unread_episodes += 1

    def readings(self) -> dict[str, float]:
        """The mean `accuracy` of the queries since the last call, and `rho` where there is one."""
        found = self.scores.readings()
        if self._unread_episodes:
            found["accuracy"] = float(self.unread) / self._unread_episodes
        self.unread.zero_()
        self.unread_episodes.zero_()
        self._unread_episodes = 0
        return found


class _Softmax(nn.Module):
    """-scale d^power."""

    def __init__(self, scale: float, power: int) -> None:
        super().__init__()
        self.scale = scale
        self.of: Callable[[Tensor, float], Tensor] = sd_softmax_scores if power == 2 else distance_scores

    def forward(self, distances: Tensor) -> Tensor:
        """Scores (Q, C) of distances (Q, C)."""
        return self.of(distances, self.scale)

    def readings(self) -> dict[str, float]:
        """Nothing is learned here."""
        return {}


class _DistanceRatio(nn.Module):
    """-rho ln d with rho = exp(log_rho), which keeps rho positive whatever is learned."""

    def __init__(self, log_rho: float, learned: bool) -> None:
        super().__init__()
        if abs(log_rho) > _LARGEST_LOG_RHO:
            size = "large" if log_rho > 0 else "small"
            raise RecipeError(
                f"log_rho is the logarithm of the exponent rho, and exp({log_rho:g}) is too {size}: set it between "
                f"-{_LARGEST_LOG_RHO:g} and {_LARGEST_LOG_RHO:g}, such as to {LOG_RHO:g}."
            )
        self.log_rho = nn.Parameter(torch.tensor(float(log_rho)), requires_grad=learned)

    def forward(self, distances: Tensor) -> Tensor:
        """Scores (Q, C) of distances (Q, C)."""
        return distance_ratio_scores(distances, self.log_rho.exp().to(distances.dtype))

    def readings(self) -> dict[str, float]:
        """rho as it is now."""
        return {"rho": math.exp(float(self.log_rho.detach()))}


def _check_layout(labels: Tensor) -> None:
    """Refuse labels (C, K + Q) that do not stand class by class."""
    if not bool((labels == labels[:, :1]).all()):
        raise DataError(
            f"An episode has its items class by class, {labels.shape[1]} of each, and the labels change within such a "
            "group: sort the batch by class, the support of each class first."
        )
    if len(labels) < 2 or len(labels[:, 0].unique()) < len(labels):
        raise DataError("An episode needs at least two classes, each once: use other labels.")


def _episode(shape: LossShape, name: str) -> EpisodeShape:
    if shape.episode is None:
        raise RecipeError(
            f"The loss '{name}' learns from episodes and must know which items of a batch are support: set "
            "training.schedule to episodic (in Python: give make_objective episode=(shot, query))."
        )
    return shape.episode
