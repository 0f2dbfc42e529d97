"""Known, unknown, or neither can be told: a distance beyond which nothing is known, and a score that asserts the known.

Both are fitted to the gallery's own items: an item left out is a query of an enrolled class, and an item whose whole
class is left out is one of a class that nobody has enrolled, a stranger. docs/guide/unknown.md tells the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from nearkin.confidence.conformal import needed_points
from nearkin.gallery.calibration.identification import Identification, LeftOut, present
from nearkin.gallery.values import Forecast

STRANGERS = 0.1
"""The share of queries of classes that are not enrolled that may come back as known, if nothing else is asked for."""

_MOST_SPREADS = 1000
"""Classes whose spreads are kept at the most."""

_PAIRS = 4
"""As many pairs of the usual distance are added to those of each class, so that few pairs do not say much."""

_LEAST_ROWS = 20
"""Rightly named items without which scores are not combined."""

_LEAST = 1e-300
"""Stands for the share of the other classes where it is too small for a number."""


@dataclass(frozen=True)
class CombinedScore:
    """Three facts of a query, weighed so that they tell left-out items from strangers best.

    These are the log-odds of its likeliest class, the logarithm of the mean squared distance to the items of that class
    among the neighbours, and the logarithm of the class's spread, the same among its own items: near to a narrow class
    means more than near to a wide one.

    Attributes:
        weights: of the three.
        spreads: of the classes, by label.
        usual: the spread of a class that came later, or has one item.
    """

    weights: tuple[float, ...] = ()
    spreads: dict[str, float] = field(default_factory=dict)
    usual: float = 1.0

    def spreads_of(self, classes: Sequence[str]) -> np.ndarray:
        """The spreads (C,) of classes."""
        return np.array([self.spreads.get(name, self.usual) for name in classes])

    def __call__(
        self,
        fitted: Identification,
        distances: np.ndarray,
        codes: np.ndarray,
        shares: np.ndarray,
        spreads: np.ndarray,
    ) -> np.ndarray:
        """Scores (q,), with the spread (C,) of each class by code; the rest as `SCORES` take it."""
        best = fitted.class_sums(distances, codes, shares).best
        return _facts(fitted, distances, codes, shares, best, spreads[best]) @ np.array(self.weights)


@dataclass(frozen=True)
class UnknownThreshold:
    """When a query is of no enrolled class, when it is of one, and how well that goes.

    A query whose nearest labelled item is farther than `threshold` counts as unknown. One that is nearer and scores at
    least `line` counts as known, and in between neither can be told. A calibration of before 0.2.0 has no line
    (`strangers` is None): it calls known what is not unknown, where its forecast allows that.

    Attributes:
        threshold: the distance; None if it was not learned.
        items: how many left-out items it was learned from, all of classes with two items or more.
        rejected: the share of strangers that it is forecast to reject, by leaving the whole class of each item out,
            classes counting alike; None with a single class. Strangers are supposed to lie among the classes as these
            lie among each other: stranger ones are easier to tell.
        reason: why there is no threshold; empty if there is one.
        strangers: the share of strangers that may count as known at the most.
        score: which score asserts the known, one of `SCORES` or "combined"; empty without a line.
        line: a query that scores at least as much counts as known, if it is within the threshold; None if nothing can
            be asserted.
        doubt: why there is no line; empty if there is one.
        classes: how many classes were left out to learn the line.
        forecast: what to expect of queries; None without a threshold or with a single class.
        combined: how scores are combined; None where they were not.
        compared: what each score would assert, the best first: "score", "named_known" (the share of the rightly named
            items) and "enrolled_known" (of all).
    """

    threshold: float | None = None
    items: int = 0
    rejected: float | None = None
    reason: str = ""
    strangers: float | None = None
    score: str = ""
    line: float | None = None
    doubt: str = ""
    classes: int = 0
    forecast: Forecast | None = None
    combined: CombinedScore | None = None
    compared: tuple[dict[str, Any], ...] = ()

    def judge(
        self,
        identification: Identification,
        distances: np.ndarray,
        codes: np.ndarray,
        shares: np.ndarray,
        classes: Sequence[str],
    ) -> list[bool | None]:
        """Known, not known, or None for neither can be told, for queries with neighbours (q, k) as `SCORES` take them.

        Each query has one labelled neighbour at least; `classes` are the names of the codes.
        """
        if self.threshold is None:
            return [None] * len(codes)
        near = -distance(identification, distances, codes, shares) <= self.threshold
        if self.strangers is None:
            # Of before 0.2.0, when the forecast had no say.
            sure = near & (self.rejected is None or self.rejected >= 1 - STRANGERS)
        elif self.line is None:
            sure = np.zeros(len(codes), bool)
        elif self.combined is not None:
            spreads = self.combined.spreads_of(classes)
            sure = near & (self.combined(identification, distances, codes, shares, spreads) >= self.line)
        else:
            sure = near & (SCORES[self.score](identification, distances, codes, shares) >= self.line)
        return [True if asserted else None if close else False for asserted, close in zip(sure, near, strict=True)]

    @property
    def remark(self) -> str:
        """What to know of the forecast; empty if nothing."""
        if self.forecast is None or self.strangers is None or self.classes >= needed_classes(self.strangers):
            return ""
        return (
            f"The forecast for classes that are not enrolled says little: it was learned from {self.classes:,} "
            f"classes, and {needed_classes(self.strangers):,} are needed to promise that no more than "
            f"{_percent(self.strangers)} of their queries come back as known."
        )

    def why_undecided(self) -> str:
        """Why a query that is neither known nor unknown is neither."""
        if self.reason or self.doubt:
            return self.reason or self.doubt
        if self.strangers is None:
            return (
                f"It may be of an enrolled class, but of queries of other classes only {_percent(self.rejected or 0)} "
                "are told: recalibrate the gallery to learn which queries can be called known."
            )
        return (
            "It may be of an enrolled class, but queries of other classes look as much like one: known or unknown "
            "cannot be told."
        )


Score = Callable[[Identification, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Scores (q,), higher is more likely known, of distances (q, k), classes (q, k) and shares (q, k) of neighbours.

Neighbours are in order, the nearest first, those that are not there last or anywhere, as `present` tells.
"""


def distance(fitted: Identification, distances: np.ndarray, codes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Minus the distance to the nearest labelled item."""
    return -np.where(present(distances, codes), distances, np.inf).min(axis=1).astype(np.float64)


def ratio(fitted: Identification, distances: np.ndarray, codes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Minus the distance to the nearest item over that to the nearest one of another class, from -1 to 0."""
    there = present(distances, codes)
    length = np.where(there, distances, np.inf).astype(np.float64)
    place = np.arange(len(codes)), length.argmin(axis=1)
    other = there & (codes != codes[place][:, None])
    # Without another class the last neighbour stands for it, which is as near at least.
    last = np.where(there, length, 0.0).max(axis=1)
    second = np.where(other.any(axis=1), np.where(other, length, np.inf).min(axis=1), last)
    return -np.where(second > 0, length[place] / np.where(second > 0, second, 1.0), 1.0)


def density(fitted: Identification, distances: np.ndarray, codes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The logarithm of the mean of the neighbours' kernels."""
    exponents = np.where(present(distances, codes), fitted.exponents(distances, codes), -np.inf)
    largest = exponents.max(axis=1)
    counts = np.isfinite(exponents).sum(axis=1)
    return largest + np.log(np.exp(exponents - largest[:, None]).sum(axis=1) / np.maximum(counts, 1))


def probability(fitted: Identification, distances: np.ndarray, codes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The log-odds of the likeliest class by NED, before it is sharpened."""
    return _log_odds(replace(fitted, sharpness=1.0), distances, codes, shares)


def confidence(fitted: Identification, distances: np.ndarray, codes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The log-odds of the probability that an answer has, whose order is that of the probability itself."""
    return _log_odds(fitted, distances, codes, shares)


SCORES: dict[str, Score] = {
    "confidence": confidence,
    "probability": probability,
    "density": density,
    "ratio": ratio,
    "distance": distance,
}
"""What may assert the known. The first three need a temperature, the ratio distances that are not negative."""


def _log_odds(fitted: Identification, distances: np.ndarray, codes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    found = fitted.class_sums(distances, codes, shares)
    counts = np.diff(found.offsets)
    best = found.codes == np.repeat(found.best, counts)
    mine, rest = (np.add.reduceat(np.where(part, found.sums, 0.0), found.offsets[:-1]) for part in (best, ~best))
    return np.log(np.maximum(mine, _LEAST)) - np.log(np.maximum(rest, _LEAST))


def _usable(fitted: Identification) -> list[str]:
    names = list(SCORES) if fitted.temperature is not None else ["ratio", "distance"]
    return [name for name in names if not (fitted.similarity and name == "ratio")]


def _facts(
    fitted: Identification,
    distances: np.ndarray,
    codes: np.ndarray,
    shares: np.ndarray,
    best: np.ndarray,
    spread: np.ndarray,
) -> np.ndarray:
    """The three facts (q, 3) of queries with a likeliest class (q,) of a spread (q,)."""
    there = present(distances, codes) & (codes == best[:, None])
    sums = np.where(there, distances, 0.0).astype(np.float64) ** 2
    mean = sums.sum(axis=1) / np.maximum(there.sum(axis=1), 1)
    logarithms = [np.log(np.maximum(part, _LEAST)) for part in (mean, spread)]
    return np.stack([confidence(fitted, distances, codes, shares), *logarithms], axis=1)


def _combine(
    fitted: Identification, known: LeftOut, right: np.ndarray, strangers: LeftOut, classes: Sequence[str]
) -> tuple[CombinedScore, np.ndarray, np.ndarray] | None:
    """Weigh the facts to tell rightly named items from strangers, by logistic regression; with the scores of both.

    None where there is too little for it, or where there are no squares of distances.
    """
    there = int((strangers.sizes > 1).sum())
    if fitted.temperature is None or fitted.similarity or there > _MOST_SPREADS or right.sum() < _LEAST_ROWS:
        return None
    # The spread of a class without the item that is left out; both sides of a pair have counted its distance.
    mine = present(known.distances, known.codes) & (known.codes == known.own[:, None])
    sums, counts = (np.where(mine, known.distances, 0.0).astype(np.float64) ** 2).sum(axis=1), mine.sum(axis=1)
    total, pairs = (np.bincount(known.own, part, len(strangers.sizes)) for part in (sums, counts))
    usual = float(total.sum() / max(pairs.sum(), 1))
    spreads = (total + _PAIRS * usual) / (pairs + _PAIRS)
    without = (np.maximum(total[known.own] - 2 * sums, 0.0) + _PAIRS * usual) / (
        np.maximum(pairs[known.own] - 2 * counts, 0) + _PAIRS
    )
    best = fitted.class_sums(known.distances, known.codes, known.shares).best
    spread = np.where(best == known.own, without, spreads[best])
    ours = _facts(fitted, known.distances, known.codes, known.shares, best, spread)
    best = fitted.class_sums(strangers.distances, strangers.codes, strangers.shares).best
    theirs = _facts(fitted, strangers.distances, strangers.codes, strangers.shares, best, spreads[best])
    weights = _logistic(ours[right], theirs)
    named = {classes[code]: float(spreads[code]) for code in np.flatnonzero(pairs).tolist()}
    return CombinedScore(tuple(weights.tolist()), named, usual), ours @ weights, theirs @ weights


def _logistic(positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Weights (f,) that tell rows (p, f) from rows (n, f), both kinds counting alike, drawn a little to zero."""
    rows = np.concatenate([positive, negative])
    scale = np.maximum(rows.std(axis=0), 1e-9)
    places = (rows - rows.mean(axis=0)) / scale
    signs = np.repeat([1.0, -1.0], [len(positive), len(negative)])
    shares = len(rows) / 2 / np.repeat([len(positive), len(negative)], [len(positive), len(negative)])

    def loss(line: np.ndarray) -> tuple[float, np.ndarray]:
        odds = signs * (places @ line[1:] + line[0])
        pull = -shares * signs * expit(-odds)
        value = float(shares @ np.logaddexp(0, -odds)) + float(line[1:] @ line[1:]) / 2
        return value, np.concatenate([[pull.sum()], places.T @ pull + line[1:]])

    found: np.ndarray = minimize(loss, np.zeros(places.shape[1] + 1), jac=True, method="L-BFGS-B").x
    return found[1:] / scale


def too_few_for_threshold(items: int, accept: float) -> str:
    """Why so many items with others of their class do not tell known from unknown; empty if they do."""
    needed = needed_points(accept)
    if items >= needed:
        return ""
    return (
        f"To tell known from unknown and accept {accept:.4g} of the known, {needed:,} items of classes with two or "
        f"more are needed, but the gallery has {items:,}: add more items to the classes."
    )


def fit_unknown_threshold(left_out: LeftOut, accept: float) -> UnknownThreshold:
    """The threshold that accepts the share `accept` of queries of enrolled classes, each class as likely as any other.

    Items with others of their class are left out in turn, and those of one class share one vote, so that a large class
    does not decide for the small ones. Where all classes are of one size, the threshold is the
    `ceil((n + 1) accept)`-th smallest of the n distances to the nearest other item, whichever its class.
    """
    tried = left_out.with_mates()
    there = np.isfinite(tried.distances[:, 0])
    nearest = tried.distances[there, 0]
    reason = too_few_for_threshold(len(nearest), accept)
    if reason:
        return UnknownThreshold(items=len(nearest), reason=reason)
    threshold = _quantile(nearest, _votes(tried.own[there]), accept)
    return UnknownThreshold(threshold, len(nearest), _rejected(left_out, threshold))


def _votes(own: np.ndarray) -> np.ndarray:
    """What each item (n,) counts, so that every class counts 1."""
    return 1.0 / np.bincount(own)[own]


def _quantile(values: np.ndarray, votes: np.ndarray, share: float) -> float:
    """The least of the values (n,) that as much of the votes (n,) stay below, one more of the usual weight among them.

    With equal votes it is the `covering_rank`-th smallest.
    """
    order = np.argsort(values, kind="stable")
    total = votes.sum()
    usual = np.square(votes).sum() / total
    # 0.55 * 20 is a little more than 11, which must not ask for 12.
    enough = np.flatnonzero(np.cumsum(votes[order]) / usual >= round(share * (total / usual + 1), 9) - 1e-9)
    return float(values[order[enough[0] if len(enough) else -1]])


def _rejected(left_out: LeftOut, threshold: float) -> float | None:
    """The share of the items that lie beyond the threshold when their whole class is left out, classes counting alike.

    Where all neighbours found are of the item's own class, the nearest stranger is at least as far as the last of them:
    such an item counts as rejected only if even that one lies beyond.
    """
    there = present(left_out.distances, left_out.codes)
    other = there & (left_out.codes != left_out.own[:, None])
    some = there.any(axis=1)
    if not other.any():
        return None
    last = np.where(there, left_out.distances, -np.inf).max(axis=1)
    strangers = np.where(other, left_out.distances, np.inf).min(axis=1)
    reach = np.where(np.isfinite(strangers), strangers, last)
    return float(np.average(reach[some] > threshold, weights=_votes(left_out.own[some])))


def needed_classes(strangers: float) -> int:
    """The least number of classes to leave out of which a share of strangers can be promised."""
    return math.ceil(round(1 / strangers, 9)) - 1


def fit_known_line(
    horizon: UnknownThreshold,
    fitted: Identification,
    left_out: LeftOut,
    without_class: LeftOut,
    classes: Sequence[str],
    strangers: float = STRANGERS,
) -> UnknownThreshold:
    """Add the score and the line that assert most rightly named queries and no more than so many strangers.

    Strangers come in classes: of C classes left out, whose shares above the line are r_c, a new one is expected to
    have no more than `(1 + sum r_c) / (C + 1)` above it, and the line is the lowest for which that is at most
    `strangers`. Where classes are fewer than `1 / strangers - 1`, no line promises that, and it lies above all
    strangers there are.

    Args:
        horizon: what `fit_unknown_threshold` found.
        fitted: how probabilities are made.
        left_out: what `leave_out` found.
        without_class: what `leave_class_out` made of that.
        classes: names of the classes, by code.
        strangers: the share of strangers that may count as known.
    """
    if horizon.threshold is None:
        return replace(horizon, strangers=strangers)
    known = left_out.with_mates().found()
    votes, right = _votes(known.own), _named(fitted, known) == known.own
    near = -_scores("distance", fitted, known) <= horizon.threshold
    count = len(np.unique(without_class.own))
    if not count:
        return replace(horizon, strangers=strangers, doubt=_ONE_CLASS)
    allowed = max(strangers * (count + 1) - 1, 0.0)
    combined = _combine(fitted, known, right, without_class, classes)
    scores = {name: (_scores(name, fitted, known), _scores(name, fitted, without_class)) for name in _usable(fitted)}
    if combined is not None:
        scores = {"combined": combined[1:], **scores}
    weights = _votes(without_class.own)
    close = -_scores("distance", fitted, without_class) <= horizon.threshold
    rows: list[dict[str, Any]] = []
    for name, (ours, theirs) in scores.items():
        theirs = np.where(close, theirs, -np.inf)
        line = _line(theirs, weights, allowed)
        if line == -math.inf:  # the threshold alone keeps the promise
            name, line, above, passed = "distance", -horizon.threshold, near, close
        else:
            above, passed = near & (ours >= line), theirs >= line
        rows.append(
            {
                "score": name,
                "line": line,
                "named_known": _share(above[right], votes[right]),
                "enrolled_known": _share(above, votes),
                "strangers_known": _share(passed, weights),
            }
        )
        if above is near:
            break
    rows.sort(key=lambda row: -row["named_known"])
    best = rows[0]
    forecast = Forecast(
        enrolled_known=best["enrolled_known"],
        named_known=best["named_known"],
        strangers_known=best["strangers_known"],
        enrolled_unknown=_share(~near, votes),
        strangers_unknown=_share(~close, weights),
    )
    told = ("score", "named_known", "enrolled_known")
    return replace(
        horizon,
        strangers=strangers,
        score=best["score"],
        line=best["line"],
        classes=count,
        forecast=forecast,
        combined=combined[0] if combined is not None and best["score"] == "combined" else None,
        compared=tuple({key: row[key] for key in told} for row in rows),
    )


_ONE_CLASS = (
    "What is of no enrolled class can be told by leaving classes out, which takes two or more: known cannot be told "
    "with one class. Enrol more classes."
)


def _line(scores: np.ndarray, weights: np.ndarray, allowed: float) -> float:
    """The lowest line above which the scores (m,) weigh (m,) no more than is allowed; minus infinity if all do.

    Scores of minus infinity are below every line.
    """
    order = np.argsort(-scores, kind="stable")
    too_many = np.flatnonzero((np.cumsum(weights[order]) > allowed + 1e-9) & np.isfinite(scores[order]))
    return float(np.nextafter(scores[order[too_many[0]]], np.inf)) if len(too_many) else -math.inf


def _scores(name: str, fitted: Identification, rows: LeftOut) -> np.ndarray:
    return SCORES[name](fitted, rows.distances, rows.codes, rows.shares)


def _named(fitted: Identification, rows: LeftOut) -> np.ndarray:
    """The likeliest class of each (n,): that of the nearest item where there are no probabilities."""
    if fitted.temperature is None:
        nearest = np.where(present(rows.distances, rows.codes), rows.distances, np.inf).argmin(axis=1)
        return rows.codes[np.arange(len(rows.own)), nearest]
    return fitted.probabilities(rows.distances, rows.codes, rows.shares).best


def _share(flags: np.ndarray, votes: np.ndarray) -> float:
    return float(np.average(flags, weights=votes)) if len(flags) else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
