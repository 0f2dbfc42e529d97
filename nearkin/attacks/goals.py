"""What an adversary wants: a wrong class, a query pushed away from its class, or pulled to a chosen item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from nearkin.attacks.ascent import Goal
from nearkin.attacks.checks import check_scores
from nearkin.errors import DataError, suggestion
from nearkin.spaces import Space

Raised = Literal["cross-entropy", "margin"]
_RAISED = ("cross-entropy", "margin")


class Misclassify:
    """Make a classifier name another class.

    Args:
        classifier: inputs (b, *shape) to log-probabilities (b, C), or scores of which these are the softmax.
        codes: the true class of each input (B,), int64.
        shape: of one input.
        raised: "cross-entropy" of the true class, or the "margin" by which the likeliest other class is ahead: unlike
            the former it has a gradient where the classifier is very sure.
    """

    def __init__(
        self,
        classifier: Callable[[Tensor], Tensor],
        codes: Tensor,
        shape: tuple[int, ...],
        raised: Raised = "cross-entropy",
    ) -> None:
        if raised not in _RAISED:
            raise DataError(f"An attack does not raise '{raised}'.{suggestion(str(raised), _RAISED)}")
        self.classifier = classifier
        self.codes = codes
        self.shape = tuple(shape)
        self.raised = raised

    def __call__(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What is raised (b,), and whether another class is named (b,), of points (b, D) of inputs `rows` (b,)."""
        scores = self.classifier(points.view(-1, *self.shape))
        check_scores(scores, self.codes[rows])
        own = self.codes[rows].unsqueeze(1)
        wrong = scores.argmax(dim=1) != own.squeeze(1)
        if self.raised == "cross-entropy":
            return -torch.log_softmax(scores, dim=1).gather(1, own).squeeze(1), wrong
        of_own = scores.gather(1, own).squeeze(1)
        others = scores.scatter(1, own, -torch.inf)
        return others.amax(dim=1) - of_own, wrong


class _InGallery:
    """What goals of retrieval share: queries as points, and how far they are from a gallery."""

    def __init__(
        self, embed: Callable[[Tensor], Tensor], gallery: Tensor, space: Space, shape: tuple[int, ...]
    ) -> None:
        self.embed = embed
        self.gallery = gallery
        self.space = space
        self.shape = tuple(shape)

    def distances(self, points: Tensor) -> Tensor:
        """Distances (b, n) of inputs (b, D) to the gallery."""
        return self.space.distance(self.embed(points.view(-1, *self.shape)), self.gallery)


class PushAway(_InGallery):
    """Make the nearest neighbour of a query one of another class.

    Args:
        embed: inputs (b, *shape) to points of the space (b, d).
        gallery: what is searched (n, d); the queries themselves are not in it.
        codes: classes (n,) of the gallery.
        own: classes (B,) of the queries, each with items in the gallery, and others.
        space: how points are compared.
        shape: of one input.
    """

    def __init__(
        self,
        embed: Callable[[Tensor], Tensor],
        gallery: Tensor,
        codes: Tensor,
        own: Tensor,
        space: Space,
        shape: tuple[int, ...],
    ) -> None:
        same = own.unsqueeze(1) == codes
        if not bool(same.any(dim=1).all()) or bool(same.all(dim=1).any()):
            raise DataError("A query can be pushed away from its class if the gallery has items of it, and others.")
        super().__init__(embed, gallery, space, shape)
        self.same = same

    def __call__(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """By how much the own class is farther than the nearest other (b,), and whether it is (b,)."""
        distances = self.distances(points)
        same = self.same[rows]
        own = distances.masked_fill(~same, torch.inf).amin(dim=1)
        other = distances.masked_fill(same, torch.inf).amin(dim=1)
        return own - other, own > other


class PullTo(_InGallery):
    """Make a chosen item the nearest neighbour of a query.

    Args:
        embed: inputs (b, *shape) to points of the space (b, d).
        gallery: what is searched (n, d).
        targets: places (B,) in the gallery of what each query shall find first.
        space: how points are compared.
        shape: of one input.
    """

    def __init__(
        self,
        embed: Callable[[Tensor], Tensor],
        gallery: Tensor,
        targets: Tensor,
        space: Space,
        shape: tuple[int, ...],
    ) -> None:
        super().__init__(embed, gallery, space, shape)
        self.targets = targets

    def __call__(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Minus the distance to the target (b,), and whether nothing is nearer (b,)."""
        distances = self.distances(points)
        near = distances.gather(1, self.targets[rows].unsqueeze(1)).squeeze(1)
        return -near, near <= distances.amin(dim=1)


class OfInputs:
    """A goal of some of the inputs, which are counted anew.

    Args:
        goal: of all inputs.
        chosen: which ones (b,).
    """

    def __init__(self, goal: Goal, chosen: Tensor) -> None:
        self.goal = goal
        self.chosen = chosen

    def __call__(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What the goal says of points (b, D) of the chosen inputs `rows` (b,)."""
        return self.goal(points, self.chosen[rows])
