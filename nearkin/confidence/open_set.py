"""Queries of unknown classes: scores of how known one looks, and a threshold on one, learned by leaving classes out.

A score is higher where a query is more likely of a known class. It is a function of a fitted estimator and of what that
estimator said of the queries, whose neighbours it holds already: nothing is searched again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch

from nearkin.checks import all_or_nothing, check_between, check_whole
from nearkin.confidence.conformal import covering_rank, needed_points
from nearkin.confidence.estimator import FIT_POINTS, SHOWN, NeighbourEstimator, Support, blocks
from nearkin.confidence.ned import NED
from nearkin.confidence.probabilities import Prediction
from nearkin.confidence.targets import Target
from nearkin.confidence.thresholds import Threshold, choose_threshold
from nearkin.errors import DataError
from nearkin.metrics.open_set import OpenSetResult, open_set_metrics
from nearkin.registry import Registry
from nearkin.search import exact

UnknownScore = Callable[[NeighbourEstimator, Prediction], np.ndarray]
"""Finite scores (q,) of a fitted estimator's prediction for q queries."""

unknown_scores: Registry[UnknownScore] = Registry("rejection score")


@unknown_scores.register("probability")
def probability(estimator: NeighbourEstimator, found: Prediction) -> np.ndarray:
    """The log-odds of the likeliest class, float64 (q,): ordered as its probability, which would round to 1.

    Low between classes. A query far from everything may still be nearest to one class by far, and score high. If all k
    neighbours are of one class, the weight of the last of them stands for those of other classes, which have less.
    """
    codes = estimator.support_.codes[found.indices]
    logarithms = estimator.log_weights(torch.from_numpy(found.distances), codes)
    best = torch.from_numpy(codes == found.probabilities.best[:, None])
    mine, rest = (torch.logsumexp(logarithms.masked_fill(part, -math.inf), dim=1) for part in (~best, best))
    return (mine - torch.where(best.all(dim=1), logarithms[:, -1], rest)).numpy()


@unknown_scores.register("distance")
def distance(estimator: NeighbourEstimator, found: Prediction) -> np.ndarray:
    """Minus the distance to the nearest neighbour, float64 (q,).

    Low far from everything; the classes play no part.
    """
    return -found.distances[:, 0].astype(np.float64)


@unknown_scores.register("ratio")
def ratio(estimator: NeighbourEstimator, found: Prediction) -> np.ndarray:
    """Minus the distance to the nearest neighbour over that to the nearest one of another class, float64 (q,).

    From -1 (as near to another class) to 0 (on a support point, no other class there). It does not depend on the scale
    of distances. If all k neighbours are of one class, the distance to the last of them stands for that to the other
    class, which is at least as far: the score is then a lower bound, and with k = 1 it is always -1 but at distance 0.

    Raises:
        DataError: if a distance is negative, as minus a similarity may be.
    """
    length = found.distances.astype(np.float64)
    if length.size and length[:, 0].min() < 0:
        raise DataError(
            "The ratio of distances means nothing where they are negative, as minus a similarity is: choose the "
            "score 'probability', 'distance' or 'density', or another space."
        )
    codes = estimator.support_.codes[found.indices]
    foreign = codes != codes[:, :1]
    rival = foreign.any(axis=1)
    place = np.where(rival, foreign.argmax(axis=1), length.shape[1] - 1)
    first, second = length[:, 0], length[np.arange(len(length)), place]
    apart = second > 0
    return np.where(apart, -first / np.where(apart, second, 1.0), np.where(rival, -1.0, 0.0))


@unknown_scores.register("density")
def density(estimator: NeighbourEstimator, found: Prediction) -> np.ndarray:
    """The logarithm of the mean of the neighbours' kernels, `log (1/k sum_i exp(-d_i^2/T))`, float64 (q,).

    Low far from everything, high where several points are near. A mean, so that it does not grow with the number of
    points. Always finite, since it is never left in the exponential. A prediction by all support points keeps the 200
    nearest, and these are averaged.

    Raises:
        DataError: if the estimator is not NED: no other has kernels.
    """
    if not isinstance(estimator, NED):
        raise DataError(
            f"The density is a sum of kernels, which {type(estimator).__name__} does not have: use NED, or the score "
            "'probability', 'distance' or 'ratio'."
        )
    length = torch.from_numpy(found.distances.astype(np.float64))
    exponents = estimator.exponents(length, estimator.support_.codes[found.indices])
    largest = np.finfo(np.float64).max
    sums = torch.logsumexp(exponents, dim=1) - math.log(exponents.shape[1])
    return np.clip(sums.numpy(), -largest, largest)


def as_unknown_score(given: Any) -> UnknownScore:
    """The score of a name, or a function of one's own as it is.

    Raises:
        UnknownNameError: if no score has that name.
        DataError: if it is neither a name nor a function.
    """
    if isinstance(given, str):
        return unknown_scores.get(given)
    if not callable(given) or isinstance(given, type):
        raise DataError(
            f"The score must be one of {', '.join(unknown_scores.names())}, or a function of an estimator and its "
            f"prediction, not {given!r}."
        )

    def checked(estimator: NeighbourEstimator, found: Prediction) -> np.ndarray:
        scores = np.asarray(given(estimator, found))
        if scores.shape != (len(found),) or scores.dtype.kind not in "fiub" or not np.isfinite(scores).all():
            raise DataError(
                f"The rejection score must give one finite number for each of the {len(found):,} queries, and it gave "
                f"{scores.dtype} of shape {scores.shape}, or NaN or infinity among them."
            )
        return scores.astype(np.float64)

    return checked


_BLOCK = 2**23
"""Distances that exist at once."""

_COPIES = 32
"""How many classes, at the most, are each left out by a copy of the support without it."""

NeighboursFound = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Places (r,) of some rows, and distances (r, w) and indices (r, w) of these rows' neighbours of other classes."""


def class_left_out(estimator: NeighbourEstimator, rows: np.ndarray, k: int) -> Iterator[tuple[np.ndarray, Prediction]]:
    """Predictions for support points `rows` (n,) by the nearest points of other classes, part by part.

    Of n support points, k neighbours are a share; the same share of what is left without a class of size m is taken,
    `k (n - m) / (n - 1)`, rounded. With all k, a query would be seen to reach farther than an unknown one does.

    Args:
        estimator: fitted to two classes or more.
        rows: which support points.
        k: how many neighbours of all others; one less than the support, or more, takes all.

    Yields:
        Places (r,) in `rows`, and the prediction for these; it keeps at most 200 neighbours and classes of each.
    """
    support = estimator.support_
    sizes = np.bincount(support.codes)
    # A large class would fill most of a list of neighbours, and a copy of the support for every small one is dear.
    large = sizes > max(k, len(support) / _COPIES)
    widths = reduced_k(k, sizes, len(support))
    for searched in (_without_large(support, rows, widths, large), _deeper(support, rows, widths, large, sizes)):
        for places, distances, indices in searched:
            found = estimator.predict_proba(distances, indices).shortened(SHOWN)
            yield places, Prediction(found, distances[:, :SHOWN].copy(), indices[:, :SHOWN].copy())


def reduced_k(k: int, sizes: np.ndarray, points: int) -> np.ndarray:
    """How many neighbours (C,) to take of so many points when a class of each of the sizes (C,) is left out."""
    left = points - sizes
    return np.clip(np.rint(min(k, points - 1) * left / (points - 1)), 1, left).astype(np.int64)


def _without_large(
    support: Support, rows: np.ndarray, widths: np.ndarray, large: np.ndarray
) -> Iterator[NeighboursFound]:
    """Search for the rows of every large class among the points of the others."""
    for code in np.flatnonzero(large):
        places = np.flatnonzero(support.codes[rows] == code)
        others = np.flatnonzero(support.codes != code)
        width = int(widths[code])
        gallery = support.points[torch.from_numpy(others)]
        for part in blocks(len(places), width, _BLOCK):
            some = places[part]
            points = support.points[torch.from_numpy(rows[some])]
            near = [part.cpu().numpy() for part in exact(points, gallery, width, space=support.scorer)]
            yield some, near[0], others[near[1]]


def _deeper(
    support: Support, rows: np.ndarray, widths: np.ndarray, large: np.ndarray, sizes: np.ndarray
) -> Iterator[NeighboursFound]:
    """Search deep enough for the rows of small classes that enough points are left when their own class is dropped."""
    own = support.codes[rows]
    k = int(widths.max())
    places = np.flatnonzero(~large[own])
    places = places[np.argsort(sizes[own[places]], kind="stable")]
    if not len(places):
        return
    for part in blocks(len(places), k + int(sizes[own[places[-1]]]), _BLOCK):
        some = places[part]
        depth = min(k + int(sizes[own[some[-1]]]), len(support)) - 1
        points = support.points[torch.from_numpy(rows[some])]
        distances, indices = (part.cpu().numpy() for part in support.search(points, depth, rows[some]))
        order = np.argsort(support.positives(rows[some], indices), axis=1, kind="stable")
        wanted = widths[own[some]]
        for width in np.unique(wanted):
            alike = wanted == width
            kept = order[alike, :width]
            near = (np.take_along_axis(part[alike], kept, axis=1) for part in (distances, indices))
            yield some[alike], *near


_FEW_CLASSES = 10
_BEST = "best"


@dataclass(frozen=True, eq=False)
class OpenPrediction:
    """What a rejector says of q queries.

    Attributes:
        prediction: what the estimator says, as if every query were of a known class.
        scores: higher is more likely known, float64 (q,).
        threshold: a query that scores at least as much counts as known.
    """

    prediction: Prediction
    scores: np.ndarray = field(repr=False)
    threshold: float

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def known(self) -> np.ndarray:
        """Which queries count as of a known class, bools (q,)."""
        return self.scores >= self.threshold

    @property
    def labels(self) -> np.ndarray:
        """The likeliest class of each query (q,), also where it counts as unknown."""
        return self.prediction.labels

    @property
    def confidence(self) -> np.ndarray:
        """The probability of that class among the known ones, float32 (q,)."""
        return self.prediction.confidence

    def labels_or(self, unknown: Any = None) -> np.ndarray:
        """The likeliest class of each query, or `unknown` where it counts as unknown; an object array (q,)."""
        found = self.labels.astype(object)
        marker = np.empty((), object)
        marker[()] = unknown
        found[~self.known] = marker
        return found


@dataclass(eq=False, kw_only=True)
class UnknownRejector:
    """An estimator that may say "I don't know": queries that score below a threshold count as of an unknown class.

    Needs: classes with two points or more, 19 such points in all to accept 95 % of the known queries.
    Use when: queries may be of classes that the support does not have.

    The threshold is learned from the support alone. Each of its points in turn is a known query when it is left out,
    and stands for an unknown one when its whole class is. The threshold is the `ceil((n + 1) accept)`-th largest of the
    n scores of known queries, so that at least that share of them is accepted. A point that is alone in its class is
    no known query, since nothing is left of its class, but an unknown one.

    The forecast assumes that unknown classes lie among the known ones as these lie among each other. Stranger queries
    are easier to tell, finer differences than those between the known classes are harder.

    Example:
        >>> import torch
        >>> from nearkin.confidence.ned import NED
        >>> from nearkin.confidence.open_set import UnknownRejector
        >>> points = torch.cat([torch.linspace(0, 1, 20), torch.linspace(5, 6, 20)])[:, None]
        >>> rejector = UnknownRejector(estimator=NED(k=5, space="euclidean")).fit(points, ["a"] * 20 + ["b"] * 20)
        >>> rejector.predict([[0.52], [3.0], [5.5]]).labels_or("?").tolist()
        ['a', '?', 'b']

    Args:
        estimator: NED(), or another over neighbours; a copy of it is fitted.
        score: "density", "distance", "ratio" or "probability", or a function of a fitted estimator and its prediction;
            "best": the one of the four with the highest OSCR on the points and classes left out.
        accept: the share of queries of known classes to accept, between 0 and 1.
        target: what the threshold is for, in place of `accept`: a target of `choose_threshold` such as "far=0.05", with
            left-out points as the correct items and those whose class is left out, as many, as the wrong ones.
        points: look at no more than so many support points, drawn at random.
        seed: of that draw.

    Attributes:
        estimator_: the estimator, fitted.
        score_: the score that is used: a name, or the function given.
        threshold_: a query that scores at least as much counts as known.
        choice_: the threshold chosen for a target, with intervals; None without one.
        known_scores_: of the points left out, float64 (n,).
        unknown_scores_: of the points whose class is left out, float64 (m,).
        expected_: AUROC, FPR@95TPR, OSCR and closed accuracy of these two; None with a single class.
        false_accept_: the share of simulated unknown queries that the threshold accepts; None with a single class.
        notes_: what a reader must know of the fit.
    """

    estimator: NeighbourEstimator = field(default_factory=NED)
    score: str | UnknownScore = "density"
    accept: float = 0.95
    target: Target | str | None = None
    points: int = FIT_POINTS
    seed: int = 0
    estimator_: NeighbourEstimator = field(init=False, repr=False)
    score_: str | UnknownScore = field(init=False, repr=False)
    threshold_: float = field(init=False, repr=False)
    choice_: Threshold | None = field(init=False, repr=False)
    known_scores_: np.ndarray = field(init=False, repr=False)
    unknown_scores_: np.ndarray = field(init=False, repr=False)
    expected_: OpenSetResult | None = field(init=False, repr=False)
    false_accept_: float | None = field(init=False, repr=False)
    notes_: list[str] = field(init=False, repr=False)

    def fit(self, support: Any, labels: Any, *, source: str | None = None) -> Self:
        """Fit the estimator, and learn the threshold from leaving points and classes out.

        Args:
            support: embeddings (n, d).
            labels: n labels of any hashable kind.
            source: what made the embeddings, such as `model.fingerprint()`; `predict` then refuses those of another.
        """
        with all_or_nothing(self):
            self._check_settings()
            fitted = self.estimator_ = replace(self.estimator).fit(support, labels, source=source)
            self.notes_ = list(fitted.notes_)
            codes, sizes = fitted.support_.codes, np.bincount(fitted.support_.codes)
            rows = fitted.support_.draw(self.points, self.seed)
            known = sizes[codes[rows]] > 1
            self._check_count(int(known.sum()), len(rows), len(sizes))
            rows, found = fitted.leave_one_out(points=self.points, seed=self.seed)
            right = (found.probabilities.best == codes[rows])[known]
            self._compare(self._candidates(found), rows, found, known, right)
            self._learn(codes[rows[known]], codes[rows[: len(self.unknown_scores_)]])
            self._forecast(right)
            if not known.all():
                self.notes_.append(
                    f"{int((~known).sum()):,} points are alone in their class: left out, they are unknown queries."
                )
        return self

    def predict(self, queries: Any, *, source: str | None = None) -> OpenPrediction:
        """Labels, scores and which queries (q, d) count as known."""
        try:
            threshold = self.threshold_
        except AttributeError:
            raise DataError("This UnknownRejector has no support yet: call fit(embeddings, labels).") from None
        found = self.estimator_.predict(queries, source=source)
        return OpenPrediction(found, as_unknown_score(self.score_)(self.estimator_, found), threshold)

    def _candidates(self, found: Prediction) -> list[str | UnknownScore]:
        """The scores to choose from: the one given, or all that this estimator and these distances have."""
        if self.score != _BEST:
            return [self.score]
        usable: list[str | UnknownScore] = []
        for name in unknown_scores:
            with suppress(DataError):
                unknown_scores.get(name)(self.estimator_, found)
                usable.append(name)
        return usable

    def _compare(
        self,
        candidates: list[str | UnknownScore],
        rows: np.ndarray,
        found: Prediction,
        known: np.ndarray,
        right: np.ndarray,
    ) -> None:
        """Take the best score, and keep what it says of known and of simulated unknown queries."""
        scores = [as_unknown_score(one) for one in candidates]
        ours = [score(self.estimator_, found)[known] for score in scores]
        theirs = self._simulate(scores, rows, found)
        named = np.concatenate([right, np.zeros(theirs.shape[1], bool)])
        flags = np.arange(len(named)) < len(right)
        values = [
            open_set_metrics(np.concatenate(pair), flags, named).values["OSCR"]
            for pair in (zip(ours, theirs, strict=True) if len(scores) > 1 and theirs.shape[1] else ())
        ]
        best = int(np.argmax(values)) if values else 0
        self.score_, self.known_scores_, self.unknown_scores_ = candidates[best], ours[best], theirs[best]

    def _learn(self, known: np.ndarray, unknown: np.ndarray) -> None:
        """Set the threshold; the classes of known (n,) and unknown (m,) queries say which go together."""
        self.choice_ = None
        if self.target is None:
            rank = covering_rank(len(self.known_scores_), self.accept)
            self.threshold_ = float(np.sort(self.known_scores_)[-rank])
            return
        scores, flags = self._both()
        groups = np.concatenate([known, unknown])
        self.choice_ = choose_threshold(scores, flags, self.target, groups=groups, seed=self.seed)
        self.threshold_ = self.choice_.value
        self.notes_ += self.choice_.notes

    def _forecast(self, right: np.ndarray) -> None:
        """Measure known queries, named rightly or not (n,), against the simulated unknown ones."""
        self.expected_ = self.false_accept_ = None
        if not len(self.unknown_scores_):
            self.notes_.append(
                "With a single class none can be left out: nothing is known of how unknown queries score."
            )
            return
        named = np.concatenate([right, np.zeros(len(self.unknown_scores_), bool)])
        self.expected_ = open_set_metrics(*self._both(), named)
        self.false_accept_ = float((self.unknown_scores_ >= self.threshold_).mean())
        classes = len(self.estimator_.classes_)
        if classes < _FEW_CLASSES:
            self.notes_.append(
                f"The forecast leaves out one of only {classes} classes at a time, so it sees a much poorer support "
                "than queries do."
            )

    def _both(self) -> tuple[np.ndarray, np.ndarray]:
        """All scores, and which are of known queries."""
        known, unknown = self.known_scores_, self.unknown_scores_
        return np.concatenate([known, unknown]), np.arange(len(known) + len(unknown)) < len(known)

    def _simulate(self, scores: list[UnknownScore], rows: np.ndarray, found: Prediction) -> np.ndarray:
        """Scores (s, n) of the support points `rows` (n,) as unknown queries; none with a single class."""
        fitted = self.estimator_
        if len(fitted.classes_) == 1:
            return np.empty((len(scores), 0))
        k = len(fitted.support_) if fitted.k == "all" else found.distances.shape[1]
        told = np.empty((len(scores), len(rows)))
        for places, prediction in class_left_out(fitted, rows, k):
            for row, score in zip(told, scores, strict=True):
                row[places] = score(fitted, prediction)
        return told

    def _check_settings(self) -> None:
        if not isinstance(self.estimator, NeighbourEstimator):
            raise DataError(
                f"Unknown queries are told by their neighbours: the estimator must be one such as NED(), not "
                f"{type(self.estimator).__name__}."
            )
        check_between(self.accept, "accept")
        check_whole(self.points, "points", 1)
        if self.score != _BEST:
            as_unknown_score(self.score)

    def _check_count(self, known: int, points: int, classes: int) -> None:
        """Refuse too few points that can be left out and still have their class."""
        needed = 1 if self.target is not None else needed_points(self.accept)
        if known < needed:
            wanted, other = f"accept={self.accept:g}", ", or accept a smaller share"
            if self.target is not None:
                wanted, other = "a threshold", ""
            raise DataError(
                f"To learn {wanted} takes {needed:,} points or more of classes with at least two, and {known:,} of the "
                f"{points:,} looked at are such: give more points a class{other}."
            )
        if self.target is not None and classes == 1:
            raise DataError("A target needs unknown queries, but a single class cannot be left out: use accept=.")
