"""Few-shot accuracy: how often a query finds its class among N of which K items each are known.

Any embedder can be measured, however it was trained: an episode needs nothing but points and distances.

A query is given a class by class means, nearest points or votes. A choice counts 1 or 0, or 1/n where the truth is one
of n classes that are equally likely: what a coin would get on average. A model that maps everything to one point is
then as good as chance, whatever the order of the classes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import is_real
from nearkin.data.samplers import EpisodeSampler, whole_numbers
from nearkin.errors import DataError, suggestion
from nearkin.metrics.labels import class_names, label_array, label_codes
from nearkin.search import Scorer, as_scorer, as_vectors
from nearkin.spaces import Euclidean, Representation, Space, Sphere, class_distances

Similarity = Callable[[Tensor, Tensor], Tensor]
"""Points of classes (E, C, K, d) and of queries (E, Q, d) to scores (E, Q, C), the higher the likelier."""

FewShotRepresentation = Literal["mean", "nearest", "distance-ratio"]
REPRESENTATIONS: tuple[FewShotRepresentation, ...] = ("mean", "nearest", "distance-ratio")

_SPHERE = Sphere()
_USUAL_RHO = math.exp(2)
_NORMAL = 1.96
_DRAWN = 2**20
"""Items that are drawn together: 8 MB of places, of which a few copies are made."""


@dataclass(frozen=True)
class FewShotDifference:
    """How much higher the accuracy of one model is than that of another, on the same episodes.

    Attributes:
        difference: of the mean accuracies; above zero the first is ahead.
        interval: 95 % interval of it over episodes (low, high), narrower than those of the two accuracies suggest.
        episodes: how many were compared.
    """

    difference: float
    interval: tuple[float, float]
    episodes: int


@dataclass(frozen=True, eq=False)
class FewShotResult:
    """N-way K-shot accuracy over episodes.

    Attributes:
        per_episode: share of the queries given to their class, float64 (episodes,).
        way: classes in an episode.
        shot: known items of each class.
        query: queries of each class.
        representation: what stood for a class.
        seed: of the episodes.
        classes: how many classes the episodes were drawn from, those with at least `shot + query` items.
        labels: of the items the episodes were drawn from, (n,).
        class_shares: share of the queries of each class that were given to it, (all classes,) in the order of
            `label_codes`; NaN where no query was drawn.
    """

    per_episode: np.ndarray = field(repr=False)
    way: int
    shot: int
    query: int
    representation: str
    seed: int
    classes: int
    labels: np.ndarray = field(repr=False)
    class_shares: np.ndarray = field(repr=False)

    higher_is_better = True

    @property
    def accuracy(self) -> float:
        """The mean over episodes, in [0, 1]."""
        return float(self.per_episode.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval (low, high) of the mean: `mean +- 1.96 s / sqrt(episodes)`, within 0 and 1.

        It tells how far other episodes of the same classes and items might lead, not other classes.
        """
        low, high = _interval(self.per_episode)
        return max(0.0, low), min(1.0, high)

    @property
    def episodes(self) -> int:
        """How many episodes were measured."""
        return len(self.per_episode)

    @cached_property
    def fingerprint(self) -> str:
        """Of the drawn episodes, 16 digits: equal for results that can be compared episode by episode."""
        (codes,) = label_codes(self.labels)
        digest = hashlib.blake2b(codes.tobytes(), digest_size=8)
        digest.update(repr((self.way, self.shot, self.query, self.episodes, self.seed)).encode())
        return digest.hexdigest()

    def per_class(self) -> dict[str, float]:
        """The share of right answers among the queries of each class, by class name; which classes are hard."""
        names = class_names(self.labels, label_codes(self.labels)[0])
        found = zip(names, self.class_shares.tolist(), strict=True)
        return {name: share for name, share in found if not math.isnan(share)}

    def minus(self, other: FewShotResult) -> FewShotDifference:
        """How much higher this accuracy is than another on the same episodes, paired episode by episode.

        Raises:
            DataError: if the episodes of the two are not the same.
        """
        if not isinstance(other, FewShotResult):
            raise DataError(f"A FewShotResult can only be compared with another, not with a {type(other).__name__}.")
        if self.fingerprint != other.fingerprint:
            raise DataError(
                f"These are not the same episodes, as {self._differences(other)}: measure both models on the same "
                "items in the same order, with the same way, shot, query, episodes and seed."
            )
        gaps = self.per_episode - other.per_episode
        return FewShotDifference(float(gaps.mean()), _interval(gaps), self.episodes)

    def to_dict(self, per_episode: bool = True) -> dict[str, Any]:
        """Plain JSON values; without `per_episode` only the mean and what it was measured on."""
        names = ("accuracy", "interval", "episodes", "way", "shot", "query", "representation", "seed", "classes")
        plain = {name: getattr(self, name) for name in (*names, "fingerprint")} | {"interval": list(self.interval)}
        return plain | ({"per_episode": self.per_episode.tolist()} if per_episode else {})

    def _differences(self, other: FewShotResult) -> str:
        """What the episodes of two results differ in, in words."""
        names = ("seed", "way", "shot", "query", "episodes")
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in names)
        told = [f"{name} is {one} and {two}" for name, one, two in pairs if one != two]
        if not np.array_equal(label_codes(self.labels)[0], label_codes(other.labels)[0]):
            told.append("the labels of their items differ")
        return ", ".join(told)


@torch.no_grad()
def fewshot_accuracy(
    embeddings: Any,
    labels: Any,
    *,
    way: int = 5,
    shot: int = 1,
    query: int = 16,
    episodes: int = 600,
    representation: FewShotRepresentation | Similarity = "mean",
    rho: float = _USUAL_RHO,
    space: Any = _SPHERE,
    seed: int = 0,
) -> FewShotResult:
    """Accuracy over episodes of `way` classes, `shot` known items and `query` queries of each.

    The same labels and seed give the same episodes whatever the embeddings are, so that models can be compared in
    pairs. A query equally near to n classes counts 1/n if one of them is its own. Classes with fewer than
    `shot + query` items are left out. Memory beside the inputs is some 100 MB, more only if a single episode is larger.

    Example:
        >>> import numpy as np
        >>> from nearkin.metrics import fewshot_accuracy
        >>> labels = np.repeat(np.arange(10), 20)
        >>> embeddings = np.eye(10)[labels] + np.random.default_rng(0).normal(scale=0.1, size=(200, 10))
        >>> fewshot_accuracy(embeddings, labels, way=5, shot=1, query=15).accuracy
        1.0

    Args:
        embeddings: points of the space (n, d), array or tensor.
        labels: n labels of any hashable kind.
        way: classes in an episode.
        shot: known items of each class.
        query: queries of each class.
        episodes: how many to draw; their number decides the width of the interval.
        representation: what stands for a class: the "mean" of its known points, the "nearest" of them, or with
            "distance-ratio" all of them, each with the weight d^-rho. Or a learned similarity, a function of tensors
            (support (E, C, K, d), query (E, Q, d)) to scores (E, Q, C), the higher the likelier; it does not use the
            space.
        rho: of "distance-ratio"; the larger, the closer to "nearest".
        space: a space or its name; for "nearest" any scorer that takes leading batch dimensions.
        seed: of the episodes.

    Raises:
        DataError: if fewer than `way` classes have `shot + query` items.
    """
    way, shot, query, episodes, seed = whole_numbers(way=way, shot=shot, query=query, episodes=episodes, seed=seed)
    if episodes < 2:
        raise DataError(f"An interval needs at least 2 episodes (600 are usual), not {episodes}.")
    points = as_vectors(embeddings)
    names = label_array(labels, len(points))
    (codes,) = label_codes(names)
    sampler = EpisodeSampler(codes, way, shot, query, seed)
    choice = _choice(points, as_scorer(space), representation, rho)
    shares, classes = np.empty((episodes, way)), np.empty((episodes, way), np.int64)
    truth = torch.arange(way, device=points.device).repeat_interleave(query)
    step = max(1, _DRAWN // (way * (shot + query)))
    for first in range(0, episodes, step):
        some = sampler.episodes(first, min(step, episodes - first))
        support, asked = (torch.from_numpy(part).to(points.device) for part in (some.support, some.query))
        right = choice.shares(support, asked.flatten(1), truth.expand(len(asked), -1))
        shares[first : first + step] = right.unflatten(1, (way, query)).mean(dim=2).cpu().numpy()
        classes[first : first + step] = some.classes
    sums, drawn = (
        np.bincount(classes.ravel(), weights=weights, minlength=int(codes.max()) + 1)
        for weights in (shares.ravel(), None)
    )
    return FewShotResult(
        per_episode=shares.mean(axis=1),
        way=way,
        shot=shot,
        query=query,
        representation=representation if isinstance(representation, str) else _name(representation),
        seed=seed,
        classes=len(sampler.classes),
        labels=names,
        class_shares=np.divide(sums, drawn, out=np.full(len(sums), np.nan), where=drawn > 0),
    )


def _choice(
    points: Tensor, scorer: Scorer, representation: FewShotRepresentation | Similarity, rho: float
) -> RuledChoice | ScoredChoice:
    """How queries choose their class."""
    if callable(representation):
        return ScoredChoice(points, representation, f"The representation {_name(representation)}")
    if representation not in REPRESENTATIONS:
        known = ", ".join(f'"{one}"' for one in REPRESENTATIONS)
        raise DataError(
            f"There is no class representation {representation!r}: give {known} or a function."
            f"{suggestion(str(representation), REPRESENTATIONS)}"
        )
    if representation != "nearest" and not isinstance(scorer, Space):
        raise DataError(
            f'The representation "{representation}" needs a space, with a mean and distances from 0 on, which '
            f'{type(scorer).__name__} is not: choose a space, or "nearest".'
        )
    space = cast(Space, scorer)  # or what has the one method that "nearest" needs
    if representation != "distance-ratio":
        return RuledChoice(points, space, NearestRule(representation))
    if not is_real(rho) or not 0 < rho < math.inf:
        raise DataError(f"`rho` must be a positive number, not {rho!r}.")
    return RuledChoice(points, space, VotingRule(float(rho)))


def _interval(values: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of values (n,), by the normal distribution."""
    mean, half = float(values.mean()), _NORMAL * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean - half, mean + half


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


_ROUNDINGS = 16 * torch.finfo(torch.float32).eps
"""What the logarithm of a sum of votes may be off by, as a share of its size and 1."""


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
        """Negative distances (E, Q, C), the higher the likelier, of points (E, C, K, d) for queries (E, Q, d)."""
        return -class_distances(space, support, query, self.representation)

    def costs(self, squares: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distances (E, C, Q), and by how much a difference of two may be off, (E, Q) or (E, 1).

        Args:
            squares: Euclidean distances, squared, (E, C, K, Q), where K is 1 for means.
            error: what they may be off by, (E, 1).
        """
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
    means: ClassVar[bool] = False

    def scores(self, space: Space, support: Tensor, query: Tensor) -> Tensor:
        """Logarithms (E, Q, C) of each class's sum of votes, where the nearest point of all has the vote 1."""
        distances = space.distance(query, support.flatten(1, 2)).unflatten(-1, support.shape[1:3])
        nearest = distances.amin(dim=(-2, -1), keepdim=True)
        votes = (-self.rho * (distances.log() - nearest.log())).logsumexp(dim=-1)
        return torch.where(nearest.squeeze(-1) > 0, votes, (distances == 0).sum(dim=-1).to(votes.dtype))

    def costs(self, squares: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Negative logarithms (E, C, Q) of each class's sum of votes, and what these may be off by."""
        squares = squares.clamp(min=0)
        costs = -(-0.5 * self.rho * squares.log()).logsumexp(dim=2)
        # ln(x + e) is off by at most 2 e/x as long as e is below x/2; the nearest point errs the most.
        share = error / squares.amin(dim=(1, 2))
        rounding = _ROUNDINGS * (1 + costs.abs().amax(dim=1))
        return costs, torch.where(share < 0.5, 2 * self.rho * share + rounding, math.inf)


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
        self._points, self._score, self._name = points, score, name

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

    def __init__(self, points: Tensor, space: Space, rule: NearestRule | VotingRule) -> None:
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
