"""Split conformal prediction: sets of classes that hold the true one as often as stated, whatever the estimator.

A part of the support is set aside. Each point there has the nonconformity `1 - p(its class)` by an estimator fitted to
the other part, and with n of them the threshold is the `ceil((n + 1) coverage)`-th smallest. A query's set holds the
classes whose nonconformity is not above it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import torch

from nearkin.checks import all_or_nothing, check_between, check_whole
from nearkin.confidence.estimator import NeighbourEstimator, Support
from nearkin.confidence.ned import NED
from nearkin.confidence.probabilities import Prediction
from nearkin.confidence.prototypes import PrototypeEstimator
from nearkin.errors import DataError, suggestion


def covering_rank(points: int, coverage: float) -> int:
    """`ceil((points + 1) coverage)`: which order statistic of so many a new one stays below at least so often."""
    # 0.55 * 20 is a little more than 11, which must not ask for 12.
    return max(1, math.ceil(round((points + 1) * coverage, 9)))


def needed_points(coverage: float) -> int:
    """The least number of points of which one is a bound for a new one, at this coverage."""
    return max(1, math.ceil(round(1 / (1 - coverage), 6)) - 1)


_SMALL_CLASS = 30
"""Points a class, in the mean, from which on it hardly matters whether class sizes are chance."""


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """A set of classes for each of q queries.

    An empty set says that no class fits the query as well as the true class fits nearly every calibration point: it
    lies between classes or is of none, and is best answered by "I don't know". Empty sets are part of the share
    `1 - coverage` that may be missed.

    Attributes:
        classes: the names of all classes of the support (C,).
        offsets: where each query's entries begin, int64 (q + 1,).
        codes: class of each entry as an index into `classes`, int32 (e,), the likeliest of a query first.
        everything: which sets hold every class, bools (q,); these have no entries.
        coverage: the share of queries whose set is to hold their class.
        prediction: what the estimator said.
    """

    classes: np.ndarray
    offsets: np.ndarray = field(repr=False)
    codes: np.ndarray = field(repr=False)
    everything: np.ndarray = field(repr=False)
    coverage: float
    prediction: Prediction = field(repr=False)

    def __len__(self) -> int:
        return len(self.everything)

    @property
    def sizes(self) -> np.ndarray:
        """How many classes each set holds, int64 (q,)."""
        return np.where(self.everything, len(self.classes), np.diff(self.offsets))

    def labels(self, query: int) -> np.ndarray:
        """The names of the classes in one query's set (m,), the likeliest first; all of them in their usual order."""
        if not isinstance(query, (int, np.integer)) or not -len(self) <= query < len(self):
            raise DataError(f"There is no query {query!r} among {len(self):,}.")
        place = query % len(self)
        if self.everything[place]:
            return self.classes
        return self.classes[self.codes[self.offsets[place] : self.offsets[place + 1]]]

    def contains(self, labels: Any) -> np.ndarray:
        """Whether each query's set holds its own label among `labels` (q,), bools; never that of a foreign class."""
        wanted = replace(self.prediction.probabilities, classes=self.classes).find(labels)
        counts = np.diff(self.offsets)
        found = self.everything & (wanted >= 0)
        found[np.repeat(np.arange(len(self)), counts)[self.codes == np.repeat(wanted, counts)]] = True
        return found


@dataclass(eq=False, kw_only=True)
class ConformalSets:
    """Sets of classes in place of single labels, with a stated coverage.

    Reference: Vovk, Gammerman, Shafer 2005; Papadopoulos et al. 2002 (split); Sadinle et al. 2019 (this score).
    Needs: queries that are like the support, and enough points to set some aside: 9 for a coverage of 0.9.
    Use when: a guarantee is worth more than one label. It holds for a bad estimator too, whose sets are then large.

    The coverage is a mean over queries that could as well be points of the support (exchangeable with them). It is not
    that of each class, nor that of queries of unknown classes, whose sets never hold them. Over draws of n calibration
    points it varies by about `sqrt(coverage (1 - coverage) / n)`.

    `split="stratified"` gives smaller sets, but the queries must then be of the support's classes in just its shares,
    as when every class was divided alike. If it is chance how many points a class has, the estimator leans towards
    classes that happen to have more, and calibration points share the accident while queries do not: overlapping small
    classes then cost coverage.

    Example:
        >>> import torch
        >>> from nearkin.confidence.conformal import ConformalSets
        >>> from nearkin.confidence.ned import NED
        >>> points = torch.tensor([[0.0], [0.1], [0.2], [0.3], [5.0], [5.1], [5.2], [5.3]]).repeat(5, 1)
        >>> sets = ConformalSets(estimator=NED(k="all", space="euclidean"))
        >>> sets.fit(points, (["a"] * 4 + ["b"] * 4) * 5).predict([[0.15], [5.05]]).labels(0).tolist()
        ['a']

    Args:
        estimator: any of this package, such as NED() or PrototypeSoftmax(); a copy of it is fitted.
        coverage: the share of queries whose set is to hold their class, between 0 and 1.
        calibration: the share of the support that is set aside, between 0 and 1.
        split: which points these are: "random", any, or "stratified", the share of each class.
        seed: of their choice.

    Attributes:
        estimator_: fitted to the points that are not set aside.
        rows_: which support points are set aside, int64 (n,), ascending.
        least_: the least probability of a class in a set, 1 - threshold_.
        classes_: the names of all classes (C,): first those of the estimator, then those it has no point of.
        notes_: what a reader must know.
    """

    estimator: NeighbourEstimator | PrototypeEstimator = field(default_factory=NED)
    coverage: float = 0.9
    calibration: float = 0.5
    split: Literal["random", "stratified"] = "random"
    seed: int = 0
    estimator_: NeighbourEstimator | PrototypeEstimator = field(init=False, repr=False)
    rows_: np.ndarray = field(init=False, repr=False)
    least_: float = field(init=False, repr=False)
    classes_: np.ndarray = field(init=False, repr=False)
    notes_: list[str] = field(init=False, repr=False)

    def fit(self, support: Any, labels: Any, *, source: str | None = None) -> Self:
        """Set points aside, fit the estimator to the others, and find the threshold.

        A class with a single point loses it in a share `calibration` of the cases. No set but that of every class can
        then hold the class, and its point counts as one that was missed.

        Args:
            support: embeddings (n, d).
            labels: n labels of any hashable kind.
            source: what made the embeddings, such as `model.fingerprint()`; `predict` then refuses those of another.
        """
        with all_or_nothing(self):
            self._check_settings()
            whole = Support.of(support, labels, self.estimator.space, source)
            aside = _SPLITS[self.split](whole.codes, self.calibration, np.random.default_rng(self.seed))
            self._check_count(int(aside.sum()), len(whole))
            names = whole.classes[whole.codes]
            points = whole.points[torch.from_numpy(~aside)]
            try:
                self.estimator_ = replace(self.estimator).fit(points, names[~aside], source=source)
            except DataError as error:
                raise DataError(
                    f"With {aside.sum():,} points set aside, the other {len(points):,} are too few: {error}"
                ) from None
            self.rows_ = np.flatnonzero(aside)
            missing = np.setdiff1d(np.arange(len(whole.classes)), whole.codes[~aside])
            self.classes_ = np.concatenate([self.estimator_.classes_, whole.classes[missing]])
            found = self.estimator_.predict(whole.points[torch.from_numpy(aside)]).probabilities
            # Probabilities are compared, not nonconformities: 1 - p would round the small ones away.
            own = found.of(names[aside])
            self.least_ = float(np.sort(own)[::-1][covering_rank(len(own), self.coverage) - 1])
            self.notes_ = [*self.estimator_.notes_, *self._notes(own, np.bincount(whole.codes), len(missing))]
        return self

    @property
    def threshold_(self) -> float:
        """The largest nonconformity, `1 - p`, of a class in a set; at 1 every set holds every class."""
        return 1 - self.least_

    def predict(self, queries: Any, *, source: str | None = None) -> PredictionSets:
        """The sets of queries (q, d)."""
        try:
            estimator = self.estimator_
        except AttributeError:
            raise DataError("This ConformalSets has no support yet: call fit(embeddings, labels).") from None
        found = estimator.predict(queries, source=source)
        listed = found.probabilities
        rows = listed.rows
        # Every class is in a set in which even one that is not listed does well enough. Unlisted classes are no
        # likelier than the listed ones but by rounding; a set of them all holds these too, which only raises coverage.
        everything = np.full(len(found), self.least_ == 0)
        if self.least_ > 0 and listed.rest is not None:
            everything = (len(listed.classes) > listed.counts) & (listed.unlisted >= self.least_)
        inside = np.flatnonzero((listed.values >= self.least_) & ~everything[rows])
        order = inside[np.lexsort((listed.codes[inside], -listed.values[inside], rows[inside]))]
        offsets = np.zeros(len(found) + 1, np.int64)
        np.cumsum(np.bincount(rows[inside], minlength=len(found)), out=offsets[1:])
        return PredictionSets(self.classes_, offsets, listed.codes[order], everything, float(self.coverage), found)

    def _check_settings(self) -> None:
        if not isinstance(self.estimator, (NeighbourEstimator, PrototypeEstimator)):
            raise DataError(f"The estimator must be such as NED() or PrototypeSoftmax(), not {self.estimator!r}.")
        check_between(self.coverage, "coverage")
        check_between(self.calibration, "calibration")
        if self.split not in _SPLITS:
            raise DataError(f"There is no split '{self.split}'.{suggestion(str(self.split), _SPLITS)}")
        check_whole(self.seed, "seed", 0)

    def _check_count(self, aside: int, points: int) -> None:
        needed = needed_points(self.coverage)
        if aside < needed or aside == points:
            raise DataError(
                f"A coverage of {self.coverage:g} needs {needed:,} calibration points or more beside a support, and "
                f"calibration={self.calibration:g} sets aside {aside:,} of {points:,}: give more points, a lower "
                "coverage, or another share."
            )

    def _notes(self, own: np.ndarray, sizes: np.ndarray, missing: int) -> list[str]:
        notes = []
        if self.split == "stratified" and sizes.mean() < _SMALL_CLASS and sizes.min() < sizes.max():
            notes.append(
                f"Classes have {sizes.min():,} to {sizes.max():,} points: unless queries have them in these shares, "
                "the coverage is lower than stated, and split='random' is safe."
            )
        if missing:
            notes.append(
                f"{missing:,} classes have no point left beside those set aside: only a set of every class holds them."
            )
        if self.least_ == 0:
            notes.append(
                f"Every set holds every class: {int((own == 0).sum()):,} of {len(own):,} calibration points give their "
                f"own class no probability, too many for a coverage of {self.coverage:g}; an estimator with k='all' or "
                "a larger k, or a lower coverage, gives smaller sets."
            )
        return notes


def _stratified(codes: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Which points (n,) to set aside: `share` of each class, rounded up or down, each point equally often.

    Points are lined up class by class and taken at even steps from a random start, so that no rounding favours a class:
    the points set aside must be like the queries, of which small classes have their share too.
    """
    order = rng.permutation(len(codes))
    order = order[np.argsort(rng.permutation(int(codes.max()) + 1)[codes[order]], kind="stable")]
    steps = np.floor(np.arange(len(codes) + 1) * share + rng.random())
    aside = np.zeros(len(codes), bool)
    aside[order] = np.diff(steps) > 0
    return aside


def _random(codes: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Which points (n,) to set aside: `share` of all."""
    aside = np.zeros(len(codes), bool)
    aside[rng.permutation(len(codes))[: round(share * len(codes))]] = True
    return aside


_SPLITS: dict[str, Callable[[np.ndarray, float, np.random.Generator], np.ndarray]] = {
    "stratified": _stratified,
    "random": _random,
}
