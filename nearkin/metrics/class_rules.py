"""What stands for a class of an episode: its mean, its nearest point, or the votes of all its points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nearkin.spaces import Representation, Space, class_distances, distance_ratio_scores

_ROUNDINGS = 16 * torch.finfo(torch.float32).eps
"""What logarithms and their sums may be off by, as a share of the largest."""


class Rule(Protocol):
    """How likely the classes of an episode are for a query."""

    @property
    def means(self) -> bool:
        """Whether only the mean of a class counts, not its points."""
        ...

    def scores(self, space: Space, support: Tensor, query: Tensor) -> Tensor:
        """Scores (E, Q, C), the higher the likelier, of points (E, C, K, d) for queries (E, Q, d)."""
        ...

    def costs(self, squares: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Costs (E, C, Q), the lower the likelier, and by how much a difference of two may be off, (E, Q) or (E, 1).

        Args:
            squares: Euclidean distances, squared, (E, C, K, Q), where K is 1 for means.
            error: what they may be off by, (E, 1).
        """
        ...


@dataclass(frozen=True)
class NearestRule:
    """The nearest class is the likeliest.

    Args:
        representation: what distances are taken to.
    """

    representation: Representation

    @property
    def means(self) -> bool:
        """Whether only the mean of a class counts, not its points."""
        return self.representation == "mean"

    def scores(self, space: Space, support: Tensor, query: Tensor) -> Tensor:
        """Negative distances (E, Q, C)."""
        return -class_distances(space, support, query, self.representation)

    def costs(self, squares: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distances (E, C, Q)."""
        nearest = squares.amin(dim=2) if squares.shape[2] > 1 else squares.squeeze(2)
        return nearest, 2 * error


@dataclass(frozen=True)
class VotingRule:
    """Every known point votes for its class with the weight `d^-rho`.

    Args:
        rho: the larger, the more the nearest points decide.
    """

    rho: float

    @property
    def means(self) -> bool:
        """Whether only the mean of a class counts, not its points."""
        return False

    def scores(self, space: Space, support: Tensor, query: Tensor) -> Tensor:
        """Logarithms (E, Q, C) of each class's sum of votes."""
        each = distance_ratio_scores(space.distance(query, support.flatten(1, 2)), self.rho)
        return each.unflatten(-1, support.shape[1:3]).logsumexp(dim=-1)

    def costs(self, squares: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """The same (E, C, Q), negative."""
        squares = squares.clamp(min=0)
        costs = -distance_ratio_scores(squares.sqrt(), self.rho).logsumexp(dim=2)
        # ln(x + e) is off by at most 2 e/x as long as e is below x/2; the nearest point errs the most.
        share = error / squares.amin(dim=(1, 2))
        off = torch.where(share < 0.5, 2 * self.rho * share + _ROUNDINGS * costs.abs().amax(dim=1), math.inf)
        return costs, off
