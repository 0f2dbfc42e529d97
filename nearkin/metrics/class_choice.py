"""Which class of an episode a query is given: by class means, nearest points or votes, and how much of it is right.

A choice counts 1 or 0, or 1/n where the truth is one of n classes that are equally likely: what a coin would get on
average. A model that maps everything to one point is then as good as chance, whatever the order of the classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nearkin.errors import DataError
from nearkin.spaces import Euclidean, Representation, Space, Sphere, class_distances

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


Similarity = Callable[[Tensor, Tensor], Tensor]
"""Points of classes (E, C, K, d) and of queries (E, Q, d) to scores (E, Q, C), the higher the likelier."""

_ENTRIES = 2**20
"""Numbers that are compared at once: 4 or 8 MB, which caches hold, and a few copies."""
_ROUNDING = torch.finfo(torch.float32).eps / 2
_CERTAINTY = 6.0
"""A product of d terms errs by less than 6 sqrt(d) roundings but once in 10^7 (Higham and Mary 2019, theorem 2.4)."""
_MORE_ROUNDINGS = 16.0
"""For what goes into the product: directions, means and differences."""
_UNDERFLOW = 2.0**-100
"""What each term of a product may lose: numbers below 2^-126 err by more than roundings do."""
_SHORT, _LONG = 1e-12, 1e12
"""Lengths whose squares float32 holds with all their digits."""


class ScoredChoice:
    """The class with the highest score.

    Args:
        points: (n, d).
        score: what scores the classes.
        name: what an error calls it.
    """

    def __init__(self, points: Tensor, score: Similarity, name: str) -> None:
        self._points = points
        self._score = score
        self._name = name

    def shares(self, support: Tensor, query: Tensor, truth: Tensor) -> Tensor:
        """How much (E, Q) float64 of each choice is right.

        Args:
            support: places (E, C, K) among the points.
            query: places (E, Q) among the points.
            truth: the right class (E, Q), from 0 to C - 1.
        """
        parts = _blocks(support, query, self._points.shape[1])
        return torch.cat([self._shares(support[part], query[part], truth[part]) for part in parts])

    def _shares(self, support: Tensor, query: Tensor, truth: Tensor) -> Tensor:
        scores = self._score(_gathered(self._points, support), _gathered(self._points, query))
        expected = (*query.shape, support.shape[1])
        if not isinstance(scores, Tensor) or scores.shape != expected:
            given = f"the shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
            raise DataError(
                f"{self._name} must give a tensor of the shape (episodes, queries, classes), here {expected}, "
                f"not {given}."
            )
        if bool(scores.isnan().any()):
            raise DataError(f"{self._name} gives NaN for some queries: it must return a number for every class.")
        highest = scores == scores.amax(dim=-1, keepdim=True)
        return highest.gather(-1, truth.unsqueeze(-1)).squeeze(-1) / highest.sum(dim=-1, dtype=torch.float64)


class RuledChoice:
    """The class that a rule over a space's distances finds likeliest.

    One matrix product in float32 gives the distances of Euclidean space and of the sphere with its chord. What it
    cannot tell apart, and other spaces, are decided by the space's own distances in float64.

    Args:
        points: of the space, (n, d).
        space: where they lie.
        rule: what stands for a class.
    """

    def __init__(self, points: Tensor, space: Space, rule: Rule) -> None:
        def score(support: Tensor, query: Tensor) -> Tensor:
            return rule.scores(space, support.double(), query.double())

        self._exact = ScoredChoice(points, score, f"The distance of {type(space).__name__}")
        self._rule = rule
        # The exact kinds: a subclass may compare in another way.
        known = type(space) is Euclidean or (type(space) is Sphere and space.metric == "chord")
        self._products = _Products(points, space, rule.means) if known else None

    def shares(self, support: Tensor, query: Tensor, truth: Tensor) -> Tensor:
        """How much (E, Q) float64 of each choice is right; arguments as for `ScoredChoice.shares`."""
        if self._products is None:
            return self._exact.shares(support, query, truth)
        shares, doubtful = self._sure(self._products, support, query, truth)
        episode, place = torch.nonzero(doubtful, as_tuple=True)
        if len(episode):
            shares[episode, place] = self._exact.shares(
                support[episode], query[episode, place].unsqueeze(1), truth[episode, place].unsqueeze(1)
            ).squeeze(1)
        return shares

    def _sure(self, products: _Products, support: Tensor, query: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
        """1 or 0, float64 (E, Q), and where float32 cannot tell which, or overflowed, boolean (E, Q)."""
        shares = torch.empty(query.shape, dtype=torch.float64, device=query.device)
        doubtful = torch.empty(query.shape, dtype=torch.bool, device=query.device)
        for part in _blocks(support, query, products.dimensions):
            own_class = truth[part].unsqueeze(1)
            costs, error = self._rule.costs(*products.squares(support[part], query[part]))
            own = costs.gather(1, own_class).squeeze(1)
            lead = costs.scatter_(1, own_class, math.inf).amin(dim=1).sub_(own)
            shares[part] = lead > 0
            doubtful[part] = ~(lead.abs_() > error)  # NaN, too, is doubtful
        return shares, doubtful


class _Products:
    """Squared distances by one matrix product, around an origin amid the points.

    Distances do not depend on the origin, but far from it a product loses the digits in which points differ.

    Args:
        points: (n, d).
        space: Euclidean space, or the sphere with its chord.
        means: whether distances are to means of points, not to points.
    """

    def __init__(self, points: Tensor, space: Space, means: bool) -> None:
        self.dimensions = points.shape[1]
        self._points = points
        self._space = space
        self._means = means
        single = points.float()
        scale = self._scale(single)
        self._origin = scale.nan_to_num(0) @ single / len(points)
        self._placed = self._around_origin(single, scale)
        self._squares = torch.linalg.vector_norm(self._placed, dim=1).square()
        terms = _CERTAINTY * math.sqrt(points.shape[1]) + _MORE_ROUNDINGS
        self._errors = terms * _ROUNDING, 2 * self._origin.norm(), _UNDERFLOW * points.shape[1]

    def squares(self, support: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distances (E, C, K, Q), K being 1 for means, and what they may be off by, (E, 1)."""
        classes = self._classes(support)
        asked = _gathered(self._squares, query)
        known = classes.square().sum(dim=-1)
        squares = torch.baddbmm(known.unsqueeze(2), classes, _gathered(self._placed, query).mT, alpha=-2)
        squares.add_(asked.unsqueeze(1))
        reach = asked.amax(dim=1, keepdim=True).sqrt() + known.amax(dim=1, keepdim=True).sqrt()
        rounding, origin, underflow = self._errors
        return squares.unflatten(1, (support.shape[1], -1)), rounding * reach * (reach + origin) + underflow

    def _classes(self, support: Tensor) -> Tensor:
        """What distances are taken to, around the origin: the means (E, C, d), or all points (E, C * K, d)."""
        if not self._means or support.shape[2] == 1:
            return _gathered(self._placed, support.flatten(1))
        # In float64: where directions cancel out, little is left of a mean in float32.
        means = self._space.mean(_gathered(self._points, support).double()).float()
        return self._around_origin(means, self._scale(means))

    def _scale(self, points: Tensor) -> Tensor:
        """What makes the distances of points (..., d) Euclidean ones (...); NaN, hence doubt, where float32 fails."""
        if not isinstance(self._space, Sphere):
            return points.new_ones(points.shape[:-1])
        length = torch.linalg.vector_norm(points, dim=-1)
        return torch.where((length > _SHORT) & (length < _LONG), 1 / length, math.nan)

    def _around_origin(self, points: Tensor, scale: Tensor) -> Tensor:
        return torch.addcmul(-self._origin, points, scale.unsqueeze(-1))


def _blocks(support: Tensor, query: Tensor, dimensions: int) -> list[slice]:
    """The episodes of places (E, C, K) and (E, Q), a few at a time."""
    known, asked = support[0].numel(), query.shape[1]
    step = max(1, _ENTRIES // ((known + asked) * dimensions + known * asked))
    return [slice(first, first + step) for first in range(0, len(query), step)]


def _gathered(points: Tensor, places: Tensor) -> Tensor:
    """Rows (..., d) at places (...) of (n, d), or numbers of (n,); several times as fast as `points[places]`."""
    return points.index_select(0, places.flatten()).unflatten(0, places.shape)
