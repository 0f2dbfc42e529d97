"""What stands for each class: proxies that are learned, that follow the class means, or that stay where they are.

A bank, called, gives the points that embeddings are compared with. What an embedding meets is always in the space: the
bank projects what it keeps raw. Which to choose: docs/methods/proxy-options.md.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.spaces import Space


@runtime_checkable
class ClassVectors(Protocol):
    """A loss with a point for each class: it can classify, and its points can be looked at."""

    def class_scores(self, points: Tensor) -> Tensor:
        """Scores (B, C) of points of the space (B, d): their softmax are the class probabilities, without a margin."""

    def class_vectors(self) -> Tensor:
        """The points (C, d) of the space that stand for the classes, with a gradient where they are learned."""


@runtime_checkable
class Stepped(Protocol):
    """A loss with a part that moves by a rule of its own, not by the optimiser."""

    def stepped(self) -> None:
        """Move, right after a step of the optimiser, by what the last forward in training mode saw."""


@runtime_checkable
class Following(Protocol):
    """A loss with a part that follows the points it is called with, and that draws in training mode."""

    def unfollowed(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of raw embeddings (B, d) and labels (B,), as in training, of points that nothing should follow."""


class Bank(nn.Module):
    """Base of the banks: called, it gives the points (C, d) of the classes.

    Args:
        space: where the points lie.
    """

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space = space

    def forward(self) -> Tensor:
        """What scores compare with: (C, d), or (C K, d), class by class, where classes have K sub-centres."""
        raise NotImplementedError

    def class_vectors(self) -> Tensor:
        """One point (C, d) of the space for each class."""
        points: Tensor = self()
        return points

    def watch(self, points: Tensor, labels: Tensor) -> None:
        """Take note of a batch in training, points (B, d) without gradient and labels (B,); nothing by default."""

    def stepped(self) -> None:
        """Move by what was watched last; nothing by default."""


class LearnedProxies(Bank):
    """Proxies that the optimiser moves along with the weights.

    Args:
        space: where the points lie.
        classes: C.
        dimension: d.
        centres: K, sub-centres of each class. A class's one point is then their mean in the space.
    """

    def __init__(self, space: Space, classes: int, dimension: int, centres: int = 1) -> None:
        super().__init__(space)
        self.centres = centres
        # Norms near 1 in any dimension, so that a learning rate means the same everywhere.
        self.proxies = nn.Parameter(torch.randn(classes * centres, dimension) / math.sqrt(dimension))

    def forward(self) -> Tensor:
        """Points (C K, d), class by class."""
        return self.space.project(self.proxies)

    def class_vectors(self) -> Tensor:
        """Points (C, d)."""
        points: Tensor = self()
        return points if self.centres == 1 else self.space.mean(points.unflatten(0, (-1, self.centres)))


class WeightRows(Bank):
    """The rows of a linear layer: called, it gives them raw, since a classifier uses their lengths too.

    Args:
        space: where the rows are projected when points are asked for.
        classes: C.
        dimension: d.
    """

    def __init__(self, space: Space, classes: int, dimension: int) -> None:
        super().__init__(space)
        self.weight = nn.Linear(dimension, classes, bias=False).weight

    def forward(self) -> Tensor:
        """Rows (C, d) as they are."""
        return self.weight

    def class_vectors(self) -> Tensor:
        """Rows (C, d) in the space."""
        return self.space.project(self.weight)


class NodeRows(WeightRows):
    """The rows of a linear layer for the nodes of a tree: a class's one point is the sum of those down to it.

    Args:
        space: where that sum is projected.
        paths: 1 where a node is on the way down to a class, (C, N).
        dimension: d.
    """

    paths: Tensor

    def __init__(self, space: Space, paths: Tensor, dimension: int) -> None:
        super().__init__(space, paths.shape[1], dimension)
        self.register_buffer("paths", paths, persistent=False)

    def class_vectors(self) -> Tensor:
        """Sums of rows (C, d) in the space."""
        return self.space.project(self.paths.to(self.weight) @ self.weight)


class MeanProxies(Bank):
    """Proxies without gradient that follow the class means: after a step, W <- norm(rate mu + (1 - rate) W).

    mu is the mean of the batch's points of a class, normalised; the first mean that a class has is copied. The other
    spaces are convex, so that means stay inside, and nothing is normalised there: both means are those of coordinates.

    Args:
        space: where the points lie.
        classes: C.
        dimension: d.
        rate: how much of a batch's mean goes into a proxy.
    """

    proxies: Tensor
    seen: Tensor

    def __init__(self, space: Space, classes: int, dimension: int, rate: float) -> None:
        super().__init__(space)
        self.rate = rate
        self.register_buffer("proxies", space.project(torch.randn(classes, dimension) / math.sqrt(dimension)))
        self.register_buffer("seen", torch.zeros(classes, dtype=torch.bool))
        self._watched: tuple[Tensor, Tensor] | None = None

    def forward(self) -> Tensor:
        """Points (C, d)."""
        return self.proxies

    def watch(self, points: Tensor, labels: Tensor) -> None:
        """Keep points (B, d) and labels (B,) until the next step."""
        self._watched = points, labels

    @torch.no_grad()
    def stepped(self) -> None:
        """Move the proxies of the classes that were watched last."""
        if self._watched is None:
            return
        points, labels = self._watched
        self._watched = None
        sums = torch.zeros_like(self.proxies).index_add_(0, labels, points.to(self.proxies))
        counts = sums.new_zeros(len(sums)).index_add_(0, labels, sums.new_ones(len(labels)))
        means = self._settled(sums / counts.clamp(min=1).unsqueeze(1))
        # Opposite points have no mean direction: such a class waits for its next batch.
        # A batch that is not finite, such as one that mixed precision leaves out, must not spoil proxies for good.
        there = (counts > 0) & ((means != 0).any(dim=1) | (self.space.name != "sphere")) & means.isfinite().all(dim=1)
        rates = torch.where(self.seen, self.rate, 1.0).to(means).unsqueeze(1)
        moved = self._settled(rates * means + (1 - rates) * self.proxies)
        # In place: to a compiled or captured step, these are the buffers.
        self.proxies.copy_(torch.where(there.unsqueeze(1), moved, self.proxies))
        self.seen |= there

    def _settled(self, vectors: Tensor) -> Tensor:
        """Vectors (C, d) between points, brought back into the space."""
        return functional.normalize(vectors) if self.space.name == "sphere" else vectors


class FixedProxies(Bank):
    """Proxies that never move, such as those laid out by a hierarchy.

    Args:
        space: where the points lie.
        points: (C, d).
    """

    proxies: Tensor

    def __init__(self, space: Space, points: Tensor) -> None:
        super().__init__(space)
        self.register_buffer("proxies", points.detach().clone())

    def forward(self) -> Tensor:
        """Points (C, d)."""
        return self.proxies
