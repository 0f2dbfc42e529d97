"""What stands for a class of an episode: its mean, its nearest point, or the votes of all its points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nearkin.spaces import Representation, Space, class_distances

_ROUNDINGS = 16 * torch.finfo(torch.float32).eps
"""What the logarithm of a sum of votes may be off by, as a share of its size and 1."""


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

    Where some lie on the query itself, they alone count, one vote each. So the scale of the points does not matter,
    however small it is; a loss, which needs a gradient at d = 0, cannot do the same (`distance_ratio_scores`).

    Args:
        rho: the larger, the more the nearest points decide.
    """

    rho: float

    @property
    def means(self) -> bool:
        """Whether only the mean of a class counts, not its points."""
        return False

    def scores(self, space: Space, support: Tensor, query: Tensor) -> Tensor:
        """Logarithms (E, Q, C) of each class's sum of votes, where the nearest point of all has the vote 1."""
        distances = space.distance(query, support.flatten(1, 2)).unflatten(-1, support.shape[1:3])
        nearest = distances.amin(dim=(-2, -1), keepdim=True)
        votes = (-self.rho * (distances.log() - nearest.log())).logsumexp(dim=-1)
        return torch.where(nearest.squeeze(-1) > 0, votes, (distances == 0).sum(dim=-1).to(votes.dtype))

    def costs(self, squares: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Negative logarithms (E, C, Q) of each class's sum of votes."""
        squares = squares.clamp(min=0)
        costs = -(-0.5 * self.rho * squares.log()).logsumexp(dim=2)
        # ln(x + e) is off by at most 2 e/x as long as e is below x/2; the nearest point errs the most.
        share = error / squares.amin(dim=(1, 2))
        rounding = _ROUNDINGS * (1 + costs.abs().amax(dim=1))
        return costs, torch.where(share < 0.5, 2 * self.rho * share + rounding, math.inf)
