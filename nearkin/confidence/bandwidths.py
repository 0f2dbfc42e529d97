"""A bandwidth for each class: eq. 18 of the paper on NED, and whether it is worth it.

The kernel around a point of class c is `exp(-e/T_c) / T_c^(d/2)` in d dimensions; a wide kernel is a low one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from nearkin.confidence.temperature import fit_temperature
from nearkin.errors import FitError
from nearkin.metrics.calibration import FLOOR

_REACH = math.log(100.0)
"""How far a class's log T may go from the shared one."""

_ITERATIONS = 60
_BLOCK = 2**18


@dataclass(frozen=True)
class BandwidthComparison:
    """Mean log-likelihoods of points that the bandwidths were not fitted to: of each half, by those of the other.

    Attributes:
        shared: of one T.
        per_class: of one T for each class.
        points: how many points were judged.
    """

    shared: float
    per_class: float
    points: int

    @property
    def winner(self) -> str:
        """The likelier kind: "shared" or "per-class"; shared, the simpler one, if they are equal."""
        return "per-class" if self.per_class > self.shared else "shared"

    def __str__(self) -> str:
        return (
            f"On {self.points:,} support points it was not fitted to, a shared bandwidth has a mean log-likelihood of "
            f"{self.shared:.4f} and one for each class {self.per_class:.4f}: {self.winner} wins."
        )


def compare_bandwidths(
    energies: np.ndarray, codes: np.ndarray, own: np.ndarray, classes: int, dimensions: int, seed: int = 0
) -> BandwidthComparison:
    """Fit both kinds to either half of the points, and judge each by the other half.

    Args:
        energies: of every point's neighbours (n, k), the point itself left out.
        codes: classes of the neighbours (n, k).
        own: class of each point (n,).
        classes: how many classes there are.
        dimensions: of the embedding.
        seed: of the halves.
    """
    counted = (codes == own[:, None]).any(axis=1)
    energies, codes, own = energies[counted], codes[counted], own[counted]
    if len(own) < 2:
        raise FitError("To compare bandwidths takes two support points or more that have a neighbour of their class.")
    halves = np.random.default_rng(seed).permutation(len(own)) % 2 == 0
    sums = np.zeros(2)
    for fitted, judged in ((halves, ~halves), (~halves, halves)):
        one = fit_temperature(energies[fitted], codes[fitted] == own[fitted][:, None]).temperature
        many = fit_bandwidths(energies[fitted], codes[fitted], own[fitted], classes, dimensions, one)
        test = _Terms(energies[judged], codes[judged], own[judged], dimensions)
        for place, temperatures in enumerate((np.full(classes, one), many)):
            sums[place] -= judged.sum() * test(np.log(temperatures))[0]
    shared, per_class = sums / len(own)
    return BandwidthComparison(float(shared), float(per_class), len(own))


def fit_bandwidths(
    energies: np.ndarray, codes: np.ndarray, own: np.ndarray, classes: int, dimensions: int, shared: float
) -> np.ndarray:
    """The T of each class (C,) that make the points likeliest, beginning at the shared one; arguments as above.

    A class without a point that has a neighbour of its class keeps the shared T.
    """
    counted = (codes == own[:, None]).any(axis=1)
    terms = _Terms(energies[counted], codes[counted], own[counted], dimensions)
    start = np.full(classes, math.log(shared))
    spoken = np.isin(np.arange(classes), own[counted])
    bounds = [(place - _REACH * free, place + _REACH * free) for place, free in zip(start, spoken, strict=True)]
    options = {"maxiter": _ITERATIONS}
    found: Any = minimize(terms, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return np.exp(found.x if found.fun < terms(start)[0] else start)


class _Terms:
    """Mean negative log-likelihood of points and its gradient, as a function of the classes' log T."""

    def __init__(self, energies: np.ndarray, codes: np.ndarray, own: np.ndarray, dimensions: int) -> None:
        self.energies = energies.astype(np.float64)
        self.codes = codes
        self.positive = codes == own[:, None]
        self.half = dimensions / 2

    def __call__(self, logarithms: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = 0.0, np.zeros(len(logarithms))
        rows = max(1, _BLOCK // self.codes.shape[1])
        for start in range(0, len(self.codes), rows):
            part = slice(start, start + rows)
            codes, positive = self.codes[part], self.positive[part]
            scaled = self.energies[part] * np.exp(-logarithms)[codes]
            exponents = -scaled - self.half * logarithms[codes]
            weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            ours = weights * positive
            share = ours.sum(axis=1, keepdims=True)
            low = share < FLOOR
            loss -= float(np.log(np.maximum(share, FLOOR)).sum())
            pull = np.where(low, 0.0, weights - ours / np.maximum(share, FLOOR)) * (scaled - self.half)
            gradient += np.bincount(codes.ravel(), weights=pull.ravel(), minlength=len(logarithms))
        return loss / len(self.codes), gradient / len(self.codes)
