"""The temperature of `exp(-energy / T)` that makes the support likeliest, one point left out at a time.

With energies e (squared distances), `p_i = sum_{j of i's class} exp(-e_ij/T) / sum_j exp(-e_ij/T)`, and T minimises the
mean of `-log p_i` over the points that have a neighbour of their class. Derivation: docs/methods/ned.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from scipy.optimize import brentq, minimize_scalar
from torch import Tensor

from nearkin.errors import DataError, FitError
from nearkin.metrics.calibration import FLOOR
from nearkin.search import Scorer
from nearkin.search.workers import Queue, run_workers
from nearkin.spaces.space import squarable, widen

Curve = Callable[[float], tuple[float, float]]
"""Value and derivative at a place."""

_TOLERANCE = 1e-3  # of the place
_REACH = 0.3
_NEAR = 0.02
_STEPS = 5
"""How far a top may be from where it is expected, and how to get there."""


def end_of_plateau(curve: Curve, places: list[float], least: float) -> float:
    """The last place of the run of places with at least so large a value that begins with the first."""
    inside = places[0]
    for outside in places[1:]:
        if curve(outside)[0] < least:
            while abs(outside - inside) > _TOLERANCE:
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if curve(middle)[0] >= least else (inside, middle)
            break
        inside = outside
    return float(inside)


def secant(curve: Curve, start: float, bend: float) -> tuple[float, float] | None:
    """Where the derivative is zero, and the value, by few steps from near the top; None if they lead away from it."""
    before, place = start, start
    for _ in range(_STEPS):
        value, slope = curve(place)
        if place != before:
            bend = (slope - curve(before)[1]) / (place - before)
        if not bend < 0 or abs(slope / bend) > _REACH:
            return None
        before, place = place, place - slope / bend
        if abs(place - before) < _TOLERANCE:
            return place, value - slope**2 / bend / 2  # that of the parabola, at so small a step
    return None


def climb(curve: Curve, top: float, low: float, high: float) -> tuple[float, float]:
    """The top of the hill that a place lies on, near which it should be, and its value."""
    reach = _REACH
    while True:
        left, right = max(low, top - reach), min(high, top + reach)
        rises, falls = curve(left)[1] > 0, curve(right)[1] < 0
        if (rises or left == low) and (falls or right == high):
            found = top_between(curve, left, right)
            return found, curve(found)[0]
        top += reach if rises else -reach
        reach *= 3


def top_between(curve: Curve, left: float, right: float) -> float:
    """The best place between two."""
    if curve(left)[1] > 0 > curve(right)[1]:
        return float(brentq(lambda place: curve(place)[1], left, right, xtol=_TOLERANCE))
    # Where a curve has corners, as a floor under probabilities makes them, its values decide.
    options = {"bounds": (left, right), "method": "bounded", "options": {"xatol": _TOLERANCE}}
    inside = float(minimize_scalar(lambda place: -curve(place)[0], **options).x)
    return max((left, inside, right), key=lambda place: curve(place)[0])


def energies(distances: Tensor, scorer: Scorer) -> Tensor:
    """Energies (q, k) of distances (q, k): `d^2` in a space, and `-S` where the distance is minus a similarity S.

    A scorer says that it is of the second kind by an attribute `similarity = True`, as cosine and inner product do:
    the cosine distance is half of a squared chord already, and a similarity may have any sign.
    """
    if getattr(scorer, "similarity", False):
        return widen(distances)
    wide = squarable(distances)
    if wide.numel() and float(wide.detach().min()) < 0:
        raise DataError(
            f"The {type(scorer).__name__} gives negative distances, which have no square to weigh by: give its class "
            "the attribute similarity = True if its distance is minus a similarity."
        )
    return wide.square()


_BEYOND = (2.0, 3.0)
"""Decades below the smallest gap and above the largest one in which T is looked for as well."""

_STEP = 1.2
"""Between two log T that are tried on a sample: half a decade."""

_SAMPLE = 512
"""Rows that show roughly where the optimum lies; all rows then say where exactly."""

_HARDEST = 128
"""How many of these are those farthest from their class: few wrong labels may decide which hill is the highest."""

_LEAST_EXPONENT = -60.0
"""Far below the floor, and far above the numbers so small that arithmetic with them is slow."""

_BLOCK = 2**18
"""Energies that are worked on together."""

_PLATEAU = 1e-6
"""Likelihoods that differ by less are equal."""

_HINT = 1e-3
"""What a sample must see of an end of the range for it to be tried on all rows."""

_SEPARATED = (
    "Every lower temperature is as likely: the support is so well separated, or holds copies of its points, that the "
    "nearest neighbour decides."
)
_ALIKE = "Every higher temperature is as likely: all neighbours count alike."
_NO_EFFECT = "All temperatures are equally likely; it is set to the largest difference of energies."


@dataclass(frozen=True)
class TemperatureFit:
    """What was found.

    Attributes:
        temperature: T.
        likelihood: mean log-likelihood of the points that count, natural logarithm.
        used: how many points count.
        left_out: how many have no neighbour of their class, for any T.
        notes: what a reader must know.
    """

    temperature: float
    likelihood: float
    used: int
    left_out: int
    notes: tuple[str, ...] = ()


def fit_temperature(
    energies: np.ndarray, positive: np.ndarray, *, lost: str = "have no neighbour of their class"
) -> TemperatureFit:
    """Fit T to energies (n, k) of every point's neighbours, of which `positive` (n, k) are of its class.

    Args:
        energies: finite numbers, such as squared distances.
        positive: bools.
        lost: what a note says of points without a positive, which are left out.

    Raises:
        FitError: if no point has a neighbour of its class.
        DataError: if the energies are not finite numbers.
    """
    shapes = [np.shape(part) for part in (energies, positive)]
    if not (isinstance(energies, np.ndarray) and isinstance(positive, np.ndarray)) or positive.dtype != bool:
        raise DataError("Fitting a temperature needs an array of energies (n, k) and one of bools (n, k).")
    if shapes[0] != shapes[1] or len(shapes[0]) != 2 or 0 in shapes[0]:
        raise DataError(f"Energies and bools must have the same shape (n, k), not {shapes[0]} and {shapes[1]}.")
    if energies.dtype.kind != "f":
        raise DataError(f"The energies must be floating-point numbers, not {energies.dtype}.")
    counted = np.asarray(positive.any(axis=1))
    left_out = len(counted) - int(counted.sum())
    if left_out == len(counted):
        raise FitError(
            "The temperature cannot be fitted: no support point has a neighbour of its own class among those that "
            "are looked at: add points to the classes, or pass a larger k or temperature=."
        )
    used = len(counted) - left_out
    likelihood = Likelihood.of(energies, positive, counted.astype(np.float64) if left_out else None)
    notes = []
    if left_out:
        notes.append(f"{left_out} support points {lost} and are left out of the fit.")
    if likelihood.scale == 0:
        notes.append("All neighbours are equally far, so the temperature has no effect; it is set to 1.")
        return TemperatureFit(1.0, likelihood(0.0)[0], used, left_out, tuple(notes))
    logarithm, value, note = _maximise(likelihood)
    if note:
        notes.append(note)
    temperature = math.exp(logarithm) * likelihood.scale
    return TemperatureFit(temperature, value, used, left_out, tuple(notes))


@dataclass(frozen=True)
class Likelihood:
    """Mean log-likelihood and its derivative, as a function of log T, where T counts in units of `scale`.

    Args:
        gaps: energies float32 (n, k) over the scale, the least of each row zero, the largest of all one.
        positive: 1 where the neighbour is of the point's class, float32 (n, k); at least one in each row that counts.
        scale: the largest gap.
        times: how often each row counts (n,); None: once.
    """

    gaps: np.ndarray
    positive: np.ndarray
    scale: float = 1.0
    times: np.ndarray | None = None

    @classmethod
    def of(cls, energies: np.ndarray, positive: np.ndarray, times: np.ndarray | None = None) -> Likelihood:
        """From energies as they are: a probability does not change when all energies of a row are shifted."""
        gaps = energies - energies.min(axis=1, keepdims=True)
        scale = float(gaps.max())
        if not math.isfinite(scale):
            raise DataError("The energies must be finite numbers: look for NaN or overflow in the distances.")
        if scale:
            np.divide(gaps, gaps.dtype.type(scale), out=gaps)
        return cls(gaps.astype(np.float32, copy=False), positive.astype(np.float32), scale, times)

    def sample(self) -> Likelihood:
        """The same of few rows: the hardest, and others spread evenly from hard to easy, which count for more."""
        rows = np.arange(len(self.gaps)) if self.times is None else np.flatnonzero(self.times)
        nearest = self.gaps[np.arange(len(self.gaps)), self.positive.argmax(axis=1)][rows]
        order = rows[np.argsort(-nearest, kind="stable")]
        others, count = len(order) - _HARDEST, _SAMPLE - _HARDEST
        chosen = order[np.append(np.arange(_HARDEST), _HARDEST + (np.arange(count) + 0.5) * others / count).astype(int)]
        times = np.append(np.ones(_HARDEST), np.full(count, others / count))
        return Likelihood(self.gaps[chosen], self.positive[chosen], self.scale, times)

    def bounds(self) -> tuple[float, float]:
        """Between which log T anything can change: below, only the nearest counts, above, all count alike."""
        smallest = np.where(self.gaps > 0, self.gaps, np.float32(1)).min(axis=1)
        low = max(float(np.quantile(smallest, 0.01)), float(np.finfo(np.float32).tiny))
        return math.log(low) - _BEYOND[0] * math.log(10), _BEYOND[1] * math.log(10)

    def __call__(self, logarithm: float) -> tuple[float, float]:
        """Value and derivative at log T."""
        inverse = min(math.exp(-logarithm), 1e38)
        rows = min(max(1, _BLOCK // self.gaps.shape[1]), len(self.gaps))
        starts = range(0, len(self.gaps), rows)
        found, parts = np.zeros((len(starts), 2)), Queue(enumerate(starts))

        def work(_: int) -> None:
            room = np.empty((rows, self.gaps.shape[1]), np.float32)
            for number, start in parts:
                place = slice(start, start + rows)
                times = 1.0 if self.times is None else self.times[place]
                found[number] = _terms(self.gaps[place], self.positive[place], inverse, times, room)

        if len(starts) == 1:
            work(0)
        else:
            run_workers(work, torch.device("cpu"))
        value, slope = found.sum(axis=0) / self.count
        return float(value), float(slope)

    @property
    def count(self) -> float:
        """How many rows count."""
        return len(self.gaps) if self.times is None else float(self.times.sum())


def _terms(
    gaps: np.ndarray, positive: np.ndarray, inverse: float, times: np.ndarray | float, room: np.ndarray
) -> np.ndarray:
    """The sums over rows (r, k) of the log-likelihood and of its derivative with respect to log T, float64 (2,).

    What is computed on the way goes into `room`: fresh memory would take as long as the arithmetic.
    """
    weights = np.multiply(gaps, np.float32(-inverse), out=room[: len(gaps)])
    if inverse > -_LEAST_EXPONENT:  # no gap is above 1
        np.maximum(weights, _LEAST_EXPONENT, out=weights)
    np.exp(weights, out=weights)
    ones = np.ones(gaps.shape[1], np.float32)
    total, own = weights @ ones, np.einsum("ij,ij->i", weights, positive)
    np.maximum(own, np.finfo(np.float32).tiny, out=own)
    # With respect to log T, log sum exp(-e/T) has the derivative (mean energy, so weighted) / T.
    weights *= gaps
    pull = np.einsum("ij,ij->i", weights, positive) / own - (weights @ ones) / total
    share = np.minimum(own / total, 1)  # rounding must not make certainty likelier than certain
    slope = (times * np.where(share >= FLOOR, pull, 0)).sum(dtype=np.float64) * inverse
    return np.array([(times * np.log(np.maximum(share, FLOOR))).sum(dtype=np.float64), slope])


def _maximise(likelihood: Likelihood) -> tuple[float, float, str]:
    """The best log T within the bounds, its likelihood, and a note if others are as good.

    A grid on a sample finds the right hill; all rows then find its top, where their derivative falls through zero. If
    all temperatures up to one are equally likely, or all from one on, that one is taken.
    """
    everyone: Curve = cache(likelihood)
    few = likelihood.count <= 2 * _SAMPLE
    sample = likelihood if few else likelihood.sample()
    scout: Curve = everyone if few else cache(sample)
    low, high = sample.bounds()
    grid = [float(place) for place in np.linspace(low, high, math.ceil((high - low) / _STEP) + 1)]
    best = max(range(len(grid)), key=lambda place: scout(grid[place])[0])
    # A hill between two places rises at the first and falls at the second, however low both are.
    hills = [(left, right) for left, right in pairwise(grid) if scout(left)[1] > 0 > scout(right)[1]]
    if not any(grid[best] in hill for hill in hills):
        hills.append((grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]))
    top = max((top_between(scout, *hill) for hill in hills), key=lambda place: scout(place)[0])
    value = summit = scout(top)[0]
    if not few:
        bend = (scout(top + _NEAR)[1] - scout(top - _NEAR)[1]) / (2 * _NEAR)
        top, value = secant(everyone, top, bend) or climb(everyone, top, low, high)
    for places, note in ((grid, _SEPARATED), (grid[::-1], _ALIKE)):
        if scout(places[0])[0] > summit - _HINT and everyone(places[0])[0] > value - _PLATEAU:
            end = end_of_plateau(everyone, places, max(value, everyone(places[0])[0]) - _PLATEAU)
            return (end, value, note) if end != places[-1] else (0.0, value, _NO_EFFECT)
    return top, value, ""
