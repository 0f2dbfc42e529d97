"""Where to draw the line: a threshold on a score for a wanted quality, how sure it is, and when not to draw one.

The same serves verification (a score for each pair, correct when the pair is genuine) and identification (a confidence
for each query, correct when the answer is; a query of an unknown class has no correct answer).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from nearkin.checks import check_between, check_whole
from nearkin.confidence.targets import Target, as_target
from nearkin.errors import DataError
from nearkin.metrics.checks import as_array, flag_column, number_column
from nearkin.metrics.intervals import Interval
from nearkin.metrics.labels import label_array, label_codes

_COUNTS_AT_ONCE = 2**20


@dataclass(frozen=True, eq=False)
class OperatingPoints:
    """The thresholds that tell items apart, strictest first; point j accepts the scores of the cells 0 to j.

    A cell is one distinct score, or several neighbouring ones after `around`.

    Attributes:
        highest: the highest score of each cell, float64 (u,), descending.
        lowest: the lowest score of each cell, float64 (u,), descending.
        right: how many correct items each point accepts, int64 (u,); the last is all of them.
        wrong: how many wrong items each point accepts, int64 (u,); the last is all of them.
        given: the float type in which the scores were given.
    """

    highest: np.ndarray
    lowest: np.ndarray
    right: np.ndarray
    wrong: np.ndarray
    given: np.dtype

    @classmethod
    def of(cls, scores: np.ndarray, correct: np.ndarray) -> tuple[OperatingPoints, np.ndarray]:
        """The points of finite scores (n,) and bools (n,), and the cell (n,) int64 of every item."""
        narrow = scores.dtype.kind == "f" and scores.dtype.itemsize < 8
        given = scores.dtype if narrow else np.dtype(np.float64)
        scores = scores.astype(np.float64)
        order = np.argsort(-scores, kind="stable")
        ranked = scores[order]
        last = np.append(ranked[1:] != ranked[:-1], True)
        right = np.cumsum(correct[order])[last]
        accepted = np.flatnonzero(last) + 1
        cells = np.empty(len(scores), np.int64)
        cells[order] = np.cumsum(last) - last
        return cls(ranked[last], ranked[last], right, accepted - right, given), cells

    def around(self, place: int, limit: int) -> tuple[OperatingPoints, np.ndarray]:
        """At most about `limit` of the points, the one at `place` among them, and the new cell (u,) of each old one.

        The distance between kept points grows with their distance from `place`: what is near it stays told apart, and
        what is far is resolved to a fixed share of how far it is.
        """
        points = len(self.right)
        if points <= limit:
            return self, np.arange(points)
        steps = np.unique(np.geomspace(1, points, limit // 2).astype(np.int64))
        kept = np.unique(np.concatenate([place - steps, [place], place + steps, [points - 1]]))
        kept = kept[(kept >= 0) & (kept < points)]
        highest = self.highest[np.concatenate([[0], kept[:-1] + 1])]
        thinned = OperatingPoints(highest, self.lowest[kept], self.right[kept], self.wrong[kept], self.given)
        return thinned, np.searchsorted(kept, np.arange(points))

    def value(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Thresholds (m,) that accept the cells up to `last`, when no item lies in the cells after `first` up to it.

        Each is halfway between the lowest score accepted and the highest one refused; where nothing is refused it is
        the lowest score itself. It is a number of the type the scores were given in, so that comparing in that type
        accepts the same items.
        """
        accepted = self.lowest[first]
        refused = self.highest[np.minimum(last + 1, len(self.highest) - 1)]
        middle = (accepted / 2 + refused / 2).astype(self.given).astype(np.float64)
        # Between two neighbouring floats there is no other, and halving may round onto the refused one.
        sound = (last + 1 < len(self.highest)) & (refused < middle) & (middle <= accepted)
        return np.where(sound, middle, accepted)


def resampled(
    cells: np.ndarray, correct: np.ndarray, groups: np.ndarray, resamples: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of resampled counts: how many correct and how many wrong items (r, u) each of u points accepts.

    Each resample draws as many groups as there are, with replacement, and then the items inside; a single group is
    drawn once. An item of a group that was drawn c times counts Poisson(c) times, which is drawing c times as many
    items as the group has, but for their exact number. Sums of Poisson numbers are Poisson numbers: only cells are
    drawn, and no item is touched again.

    Args:
        cells: the cell of each item, int64 (n,), all of 0 to u - 1.
        correct: bools (n,).
        groups: group codes int64 (n,), all of 0 to g - 1.
        resamples: how many to draw.
        seed: of the draws.
    """
    from scipy.sparse import csr_array

    points, total = int(cells.max()) + 1, int(groups.max()) + 1
    ones = np.ones(len(cells))
    table = csr_array((ones, (cells + points * ~correct, groups)), shape=(2 * points, total))  # equal places are summed
    rng = np.random.default_rng(seed)
    block = max(1, _COUNTS_AT_ONCE // max(2 * points, total))
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = rng.integers(total, size=(size, total)) + total * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * total).reshape(size, total)
        counts = rng.poisson((table @ times.T.astype(np.float64)).T).reshape(size, 2, points)
        yield tuple(np.cumsum(counts, axis=2).transpose(1, 0, 2))


def scored_items(scores: Any, correct: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores (n,) of any number type and bools (n,), checked."""
    given = number_column(scores, "scores")
    truth = flag_column(correct, "correct", len(given))
    if truth.all() or not truth.any():
        all_of, missing = ("correct", "wrong") if truth.all() else ("wrong", "correct")
        raise DataError(
            f"All {len(given):,} items are {all_of}, and a threshold is chosen between correct and wrong ones: "
            f"add items that are {missing}."
        )
    return given, truth


_MOST_POINTS = 2048
_FEW_GROUPS = 10


@dataclass(frozen=True)
class Threshold:
    """A chosen threshold: what scores at least `value` is accepted.

    Attributes:
        value: halfway between the lowest score accepted and the highest one refused; the lowest score if none is.
        interval: low and high end of the threshold over resamples; the high end is infinite where a resample reaches
            the target with no threshold.
        rates: of the items given. "precision": the share of the accepted that is correct. "recall": the share of the
            correct that is accepted. "false accept rate": the share of the wrong that is accepted. "coverage": the
            share of all that is accepted.
        intervals: of each rate, what this very threshold has on resampled items.
        target: what it was chosen for.
        correct: how many correct items it was chosen from.
        wrong: how many wrong ones.
        level: share of the resamples inside the intervals.
        notes: what a reader must know.
    """

    value: float
    interval: Interval
    rates: dict[str, float]
    intervals: dict[str, Interval]
    target: Target
    correct: int
    wrong: int
    level: float = 0.95
    notes: tuple[str, ...] = ()

    def accepts(self, scores: Any) -> np.ndarray:
        """Which of the scores, of any shape, are accepted; bools of that shape."""
        numbers = as_array(scores, "scores")
        if np.isnan(numbers).any():
            raise DataError("The scores contain NaN, which a threshold can neither accept nor reject.")
        return numbers.astype(np.float64) >= self.value

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; an infinite end of the interval, always the high one, is None."""
        low, high = self.interval
        return {part.name: getattr(self, part.name) for part in fields(self)} | {
            "interval": [low, high if math.isfinite(high) else None],
            "rates": dict(self.rates),
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "target": self.target.text,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Threshold:
        """The inverse of `to_dict`."""
        missing = [part.name for part in fields(cls) if part.name not in plain]
        if missing:
            raise DataError(f"This is not the output of Threshold.to_dict: it lacks {', '.join(missing)}.")
        low, high = plain["interval"]
        return cls(
            value=float(plain["value"]),
            interval=(float(low), math.inf if high is None else float(high)),
            rates={name: float(rate) for name, rate in plain["rates"].items()},
            intervals={name: (float(ends[0]), float(ends[1])) for name, ends in plain["intervals"].items()},
            target=as_target(plain["target"]),
            correct=int(plain["correct"]),
            wrong=int(plain["wrong"]),
            level=float(plain["level"]),
            notes=tuple(plain["notes"]),
        )


def choose_threshold(
    scores: Any,
    correct: Any,
    target: Target | str,
    *,
    groups: Any | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Threshold:
    """Choose the threshold on scores that meets a target, with bootstrap intervals, or refuse.

    The threshold meets the target on the items given. On new ones it meets it about half of the time, as `intervals`
    shows: ask for somewhat more than is needed. Choose it on other items than those the model was trained on.

    The scores may be millions: the threshold and its rates are exact, and beyond 2,048 distinct scores the resamples
    count items between about as many of them, densest around the threshold.

    Example:
        >>> import numpy as np
        >>> from nearkin.confidence.thresholds import choose_threshold
        >>> rng = np.random.default_rng(0)
        >>> same = np.arange(4000) < 1000
        >>> threshold = choose_threshold(rng.normal(3.0 * same), same, "far=0.01")
        >>> round(threshold.value, 2), round(threshold.rates["recall"], 2)
        (2.37, 0.73)

    Args:
        scores: one finite number for each item (n,), higher is more alike or more confident; give distances with a
            minus sign.
        correct: whether each pair is genuine, or each identification right (n,): True or False, 1 or 0.
        target: what the threshold is for: `Precision(0.99)`, `FalseAcceptRate(0.001)`, `EqualErrorRate()`,
            `FBeta(1.0)`, or the text of one, such as "precision=0.99", "far=0.001", "eer", "f1".
        groups: labels (n,) of items that succeed and fail together, as pairs or queries of one class do: resamples
            then draw groups, and items inside each. None draws items, and is too sure where there are such groups.
        resamples: how many resamples to draw.
        level: share of the resamples inside each interval.
        seed: the same seed gives the same intervals.

    Raises:
        DataError: if the data cannot support the target; the sentence says how much would, and what these support.
    """
    wanted = as_target(target)
    check_whole(resamples, "resamples", 1)
    check_between(level, "level")
    check_whole(seed, "seed", 0)
    given, truth = scored_items(scores, correct)
    points, cells = OperatingPoints.of(given, truth)
    wanted.check(points.right, points.wrong)
    place = int(wanted.pick(points.right, points.wrong))

    if isinstance(groups, np.ma.MaskedArray):
        raise DataError("The groups are a masked array: fill or remove the masked values.")
    codes = np.zeros(len(truth), np.int64)
    if groups is not None:
        (codes,) = label_codes(label_array(groups, len(truth), "groups", "scores"))
    kept, merged = points.around(place, _MOST_POINTS)
    values, rates = _bootstrap(
        wanted, kept, int(merged[place]), resampled(merged[cells], truth, codes, resamples, seed)
    )
    value = float(points.value(np.array([place]), np.array([place]))[0])
    grouped = None if groups is None else int(codes.max()) + 1
    totals = int(points.right[-1]), int(points.wrong[-1])
    counts = _counts(int(points.right[place]), int(points.wrong[place]), *totals)
    exact = {name: part / whole for name, (part, whole) in counts.items()}
    return Threshold(
        value=value,
        interval=_percentiles(values, value, level),
        rates=exact,
        intervals={name: _rate_interval(rates[name], *counts[name], level) for name in counts},
        target=wanted,
        correct=totals[0],
        wrong=totals[1],
        level=float(level),
        notes=tuple(_notes(points, kept, place, float(np.isinf(values).mean()), exact, grouped)),
    )


def _bootstrap(
    target: Target, points: OperatingPoints, place: int, draws: Iterable[tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The threshold chosen in each resample (b,), infinite where none will do, and the rates (b,) of the fixed one.

    A rate that is a share of nothing is NaN.
    """
    values, rates = [], []
    for right, wrong in draws:
        accepted = right + wrong
        last = target.pick(right, wrong)
        reached = np.take_along_axis(accepted, np.maximum(last, 0)[:, None], axis=1)
        # Points between which nothing was drawn accept the same items: the threshold is between what was drawn.
        first = np.minimum((accepted < reached).sum(axis=1), len(points.lowest) - 1)
        found = (last >= 0) & (reached[:, 0] > 0)
        values.append(np.where(found, points.value(first, last), np.inf))
        rates.append(_counts(right[:, place], wrong[:, place], right[:, -1], wrong[:, -1]))
    with np.errstate(invalid="ignore"):
        shares = {name: np.concatenate([np.divide(*block[name]) for block in rates]) for name in rates[0]}
    return np.concatenate(values), shares


def _counts(right: Any, wrong: Any, correct: Any, mistaken: Any) -> dict[str, tuple[Any, Any]]:
    """Numerator and denominator of each rate."""
    return {
        "precision": (right, right + wrong),
        "recall": (right, correct),
        "false accept rate": (wrong, mistaken),
        "coverage": (right + wrong, correct + mistaken),
    }


def _rate_interval(drawn: np.ndarray, part: int, whole: int, level: float) -> Interval:
    """The interval of a rate part / whole from its resamples (b,), of which some may be NaN.

    Resamples of items that are all alike are all alike as well, and would call a rate of 0 or 1 certain: its other end
    is then the exact binomial one (Clopper-Pearson).
    """
    if part in (0, whole):
        end = ((1 - level) / 2) ** (1 / whole)
        return (0.0, 1 - end) if part == 0 else (end, 1.0)
    return _percentiles(drawn[~np.isnan(drawn)], part / whole, level)


def _percentiles(drawn: np.ndarray, centre: float, level: float) -> Interval:
    """Low and high percentile of numbers (b,), never between two of them, and never without `centre` inside."""
    ranked = np.sort(np.append(drawn, centre) if len(drawn) == 0 else drawn)
    tail = (1 - level) / 2 * (len(ranked) - 1)
    low, high = float(ranked[math.floor(tail)]), float(ranked[len(ranked) - 1 - math.floor(tail)])
    return min(low, centre), max(high, centre)


def _notes(
    points: OperatingPoints,
    kept: OperatingPoints,
    place: int,
    unreached: float,
    rates: Mapping[str, float],
    groups: int | None,
) -> list[str]:
    """What a reader must know of a threshold at `place`, whose resamples tell apart the points that were kept."""
    notes, distinct, told = [], len(points.right), len(kept.right)
    if place == distinct - 1:
        notes.append("The threshold accepts every one of these items.")
    if unreached:
        notes.append(
            f"In {100 * unreached:.2g} % of the resamples no threshold met the target; they count as an infinite one."
        )
    certain = [name for name, rate in rates.items() if rate in (0.0, 1.0)]
    if certain:
        verb = "is" if len(certain) == 1 else "are"
        notes.append(
            f"The {' and '.join(certain)} {verb} 0 or 1 on these items, which resampling cannot vary: the other end of "
            "the interval is the exact binomial one for independent items."
        )
    if told < distinct:
        share = 100 * (distinct ** (2 / _MOST_POINTS) - 1)
        notes.append(
            f"The resamples tell apart {told:,} of the {distinct:,} distinct scores: an end of the interval is exact "
            f"to {share:.1f} % of the number of scores between it and the threshold."
        )
    if groups is not None and groups < _FEW_GROUPS:
        notes.append(f"With {groups} group{'' if groups == 1 else 's'} the intervals are too narrow; ten is a minimum.")
    return notes
