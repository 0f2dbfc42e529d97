"""Few-shot accuracy: how often a query finds its class among N of which K items each are known.

Any embedder can be measured, however it was trained: an episode needs nothing but points and distances.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from nearkin.data.samplers import EpisodeSampler, whole_numbers
from nearkin.errors import DataError, suggestion
from nearkin.metrics.class_choice import NearestRule, RuledChoice, ScoredChoice, Similarity, VotingRule
from nearkin.metrics.labels import class_names, label_array, label_codes
from nearkin.search import Scorer, as_scorer, as_vectors
from nearkin.spaces import Space, Sphere

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
        plain = {
            "accuracy": self.accuracy,
            "interval": list(self.interval),
            "episodes": self.episodes,
            "way": self.way,
            "shot": self.shot,
            "query": self.query,
            "representation": self.representation,
            "seed": self.seed,
            "classes": self.classes,
            "fingerprint": self.fingerprint,
        }
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
        drawn = sampler.episodes(first, min(step, episodes - first))
        support, asked = (torch.from_numpy(part).to(points.device) for part in (drawn.support, drawn.query))
        right = choice.shares(support, asked.flatten(1), truth.expand(len(asked), -1))
        shares[first : first + step] = right.unflatten(1, (way, query)).mean(dim=2).cpu().numpy()
        classes[first : first + step] = drawn.classes
    return FewShotResult(
        per_episode=shares.mean(axis=1),
        way=way,
        shot=shot,
        query=query,
        representation=representation if isinstance(representation, str) else _name(representation),
        seed=seed,
        classes=len(sampler.classes),
        labels=names,
        class_shares=_class_means(shares, classes, int(codes.max()) + 1),
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
    if isinstance(rho, bool) or not isinstance(rho, Real) or not 0 < rho < math.inf:
        raise DataError(f"`rho` must be a positive number, not {rho!r}.")
    return RuledChoice(points, space, VotingRule(float(rho)))


def _interval(values: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of values (n,), by the normal distribution."""
    mean, half = float(values.mean()), _NORMAL * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean - half, mean + half


def _class_means(shares: np.ndarray, classes: np.ndarray, count: int) -> np.ndarray:
    """Means (count,) of the shares of every class, NaN of classes that were not drawn."""
    sums = np.bincount(classes.ravel(), weights=shares.ravel(), minlength=count)
    drawn = np.bincount(classes.ravel(), minlength=count)
    return np.divide(sums, drawn, out=np.full(count, np.nan), where=drawn > 0)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
