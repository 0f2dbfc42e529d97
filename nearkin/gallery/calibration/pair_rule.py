"""The same or not: thresholds for a false accept rate, and a probability, from pairs of the gallery's own items."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from nearkin.errors import DataError
from nearkin.gallery.calibration.pairs import MOST_IMPOSTORS, PairDistances

LEAST_PAIRS = 30
"""Pairs of each kind without which nothing is learned."""

_RESOLVED = 3
"""Accepted impostors by which a rate is told from zero: the rule of three."""

_STEPS = 160
"""About how many thresholds are kept."""

_USUAL = np.array([1e-5, 1e-4, 1e-3, 1e-2, 1e-1])[:, None] * np.array([1, 2, 5])


@dataclass(frozen=True)
class Ruling:
    """Whether two are of one class.

    Attributes:
        same: whether they are no farther apart than the threshold; None without one.
        probability: that they are, if as many pairs are genuine as not; None if that was not learned.
        threshold: the largest distance that counts as the same; None if the rate cannot be promised.
        true_accept_rate: the share of genuine pairs of the gallery that this threshold accepts; None with it.
        reason: why something is None; empty if nothing is.
    """

    same: bool | None
    probability: float | None
    threshold: float | None
    true_accept_rate: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class PairRule:
    """What distances mean.

    Attributes:
        genuine: how many pairs of one class were compared.
        impostors: how many of two classes.
        thresholds: distances, ascending.
        accepted: how many impostor pairs are no farther apart than each threshold.
        true_accepts: the share of genuine pairs that are no farther apart.
        slope: of the log-odds over the distance, not positive; None if nothing was learned.
        offset: log-odds at distance 0; None with the slope.
        reason: why nothing was learned; empty if something was.
    """

    genuine: int = 0
    impostors: int = 0
    thresholds: tuple[float, ...] = ()
    accepted: tuple[int, ...] = ()
    true_accepts: tuple[float, ...] = ()
    slope: float | None = None
    offset: float | None = None
    reason: str = ""

    def judge(self, distance: float, rate: float) -> Ruling:
        """Judge a pair by its distance, so that the share `rate` of impostor pairs is accepted at the most."""
        if self.slope is None or self.offset is None:
            return Ruling(None, None, None, reason=self.reason)
        # No surer than so many pairs can make anyone.
        least = 1 / (min(self.genuine, self.impostors) + 2)
        probability = min(max(float(expit(self.offset + self.slope * distance)), least), 1 - least)
        allowed = self._allowed(rate)
        place = int(np.searchsorted(self.accepted, allowed, side="right")) - 1
        if allowed < _RESOLVED or place < 0:
            return Ruling(None, probability, None, reason=self._unresolved(rate, allowed))
        threshold = self.thresholds[place]
        return Ruling(distance <= threshold, probability, threshold, self.true_accepts[place])

    def _allowed(self, rate: float) -> int:
        """How many of the impostors may be accepted: the quotient decides, the product may round to either side."""
        allowed = math.floor(rate * self.impostors)
        return allowed + int((allowed + 1) / self.impostors <= rate) - int(allowed / self.impostors > rate)

    def _unresolved(self, rate: float, allowed: int) -> str:
        if allowed >= _RESOLVED:
            return (
                f"So many items of different classes are equal that no distance keeps the false accept rate at {rate:g}"
                ": look for copies with different labels."
            )
        more = ", or add items" if self.impostors < MOST_IMPOSTORS else ""
        return (
            f"A false accept rate of {rate:g} cannot be promised from {self.impostors:,} pairs of different classes: "
            f"ask for {_shown_above(_RESOLVED / self.impostors)} or more{more}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> PairRule:
        """The inverse of `to_dict`; keys of a newer version are left alone."""
        known: dict[str, Any] = {part: plain[part] for part in cls.__dataclass_fields__ if part in plain}
        for part in ("thresholds", "accepted", "true_accepts"):
            known[part] = tuple(known[part])
        return cls(**known)


def check_rate(rate: float) -> float:
    """A false accept rate as a plain number, or an error that says what it is."""
    if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < rate < 1:
        raise DataError(f"A false accept rate lies between 0 and 1, such as 0.001, not {rate!r}.")
    return float(rate)


def fit_pair_rule(pairs: PairDistances) -> PairRule:
    """Learn from distances of pairs: a table of thresholds, and the log-odds as a line over the distance."""
    genuine, impostors = len(pairs.genuine), len(pairs.impostors)
    if min(genuine, impostors) < LEAST_PAIRS:
        return PairRule(
            genuine,
            impostors,
            reason=(
                f"To tell whether two are the same takes {LEAST_PAIRS} pairs of one class and as many of different "
                f"classes, and the gallery has {genuine:,} and {impostors:,}: add more items to more classes."
            ),
        )
    thresholds, accepted = _thresholds(np.sort(pairs.impostors), pairs.least)
    order = np.argsort(pairs.genuine, kind="stable")
    shares = np.concatenate([[0.0], np.cumsum(pairs.weights[order]) / pairs.weights.sum()])
    reached = shares[np.searchsorted(pairs.genuine[order], thresholds, side="right")]
    return PairRule(
        genuine,
        impostors,
        tuple(thresholds.tolist()),
        tuple(accepted.tolist()),
        tuple(float(f"{min(share, 1.0):.5g}") for share in reached.tolist()),
        *_line(pairs),
    )


def _thresholds(impostors: np.ndarray, least: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Distances (m,), and how many of the sorted impostors (i,) each accepts (m,): dense where few are.

    Between two of them the lower one serves, which accepts a few percent fewer than it might and never more.
    """
    n = len(impostors)
    steps = np.geomspace(min(_RESOLVED, n), n, _STEPS)
    ranks = np.unique(np.floor(np.concatenate([steps, _USUAL.ravel() * n]) + 1e-9).astype(np.int64))
    values = np.unique(impostors[ranks[(ranks >= 1) & (ranks <= n)] - 1])
    values = np.union1d(impostors[:1], values)
    if values[0] > least:
        # Where even the nearest impostors are many and equal, only what is nearer still is accepted.
        values = np.concatenate([np.nextafter(values[:1], np.float32(least)), values])
    return values, np.searchsorted(impostors, values, side="right")


def _line(pairs: PairDistances) -> tuple[float, float]:
    """Slope and offset of the log-odds that make balanced pairs likeliest.

    The targets are those of Platt 1999, a little inside 0 and 1, so that pairs which a distance separates entirely
    have a finite slope. Fitted to half of the classes of CUB-200, CIFAR-100 and Omniglot and judged on the other half,
    the line was as likely as an isotonic curve with 10,000 items and likelier with fewer.
    """
    distances = np.concatenate([pairs.genuine, pairs.impostors]).astype(np.float64)
    genuine, impostors = len(pairs.genuine), len(pairs.impostors)
    centre, scale = float(distances.mean()), float(distances.std()) or 1.0
    places = (distances - centre) / scale
    targets = np.repeat([(genuine + 1) / (genuine + 2), 1 / (impostors + 2)], [genuine, impostors])
    weights = np.concatenate([pairs.weights / pairs.weights.sum() / 2, np.full(impostors, 0.5 / impostors)])

    def loss(line: np.ndarray) -> tuple[float, np.ndarray]:
        odds = line[0] * places + line[1]
        excess = weights * (expit(odds) - targets)
        value = float(weights @ (np.logaddexp(0, odds) - targets * odds))
        return value, np.array([excess @ places, excess.sum()])

    found = minimize(loss, np.array([-1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(None, 0.0), (None, None)]).x
    slope = float(found[0]) / scale
    return slope, float(found[1]) - slope * centre


def _shown_above(rate: float) -> str:
    """A rate in two digits, rounded up so that it can be asked for as it is shown."""
    size = 10.0 ** (1 - math.floor(math.log10(rate)))
    return f"{math.ceil(round(rate * size, 6)) / size:.2g}"
