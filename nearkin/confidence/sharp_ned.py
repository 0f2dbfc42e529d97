"""NED with a sharpness: how wide the kernels are and how sure the answer is, fitted apart.

`S_c = sum_{i in kNN, y_i = c} exp(-d_i^2 / T)` and `p(c) = S_c^a / sum_y S_y^a`; a = 1 is NED. In many dimensions one T
cannot do both: wide kernels gather a class well but give probabilities that are too even. See docs/methods/ned.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from nearkin.confidence.probabilities import ClassSums, powered, sum_by_class
from nearkin.metrics.calibration import FLOOR, accuracy_and_ece, class_table

_WIDTHS = (-1.0, 3.0)
"""How far log T may go from that of NED."""

_SHARPNESS = (-2.0, 3.0)
"""Where log a is looked for."""

_TOLERANCE = 0.02
_LEAST_EXPONENT = -700.0  # of float64


def sharpened_shares(
    energies: np.ndarray,
    codes: np.ndarray,
    temperature: float,
    sharpness: float | np.ndarray,
    weights: np.ndarray | float = 1.0,
) -> ClassSums:
    """The probabilities of the classes among the neighbours of queries, float64, in the place of sums.

    Args:
        energies: of the neighbours (q, k), nearest first; anything where there is none.
        codes: their classes (q, k), negative where there is none; each query has one neighbour at least.
        temperature: T.
        sharpness: a, or one for each query (q,).
        weights: what each neighbour counts besides its kernel (q, k), such as one over the size of its class.
    """
    there = codes >= 0
    wide = np.where(there, energies, np.inf)
    gaps = wide - wide.min(axis=1, keepdims=True)
    kernels = np.exp(np.maximum(gaps / -temperature, _LEAST_EXPONENT))
    found = sum_by_class(np.where(there, codes, -1), np.where(there, kernels * weights, 0.0))
    kept = found.codes >= 0
    rows = np.repeat(np.arange(len(codes)), np.diff(found.offsets))[kept]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(codes)))])
    return ClassSums(offsets, found.codes[kept], powered(found.sums[kept], offsets, sharpness), found.best)


@dataclass(frozen=True)
class SharpFit:
    """What was found.

    Attributes:
        temperature: T.
        sharpness: a.
        likelihood: mean log-likelihood of the points that have a neighbour of their class, natural logarithm.
        notes: what a reader must know.
    """

    temperature: float
    sharpness: float
    likelihood: float
    notes: tuple[str, ...] = ()


def fit_sharpened(
    energies: np.ndarray, codes: np.ndarray, own: np.ndarray, temperature: float, weights: np.ndarray | None = None
) -> SharpFit:
    """Fit T and a together to the neighbours of points that are left out one at a time.

    Args:
        energies: of the neighbours (n, k), finite.
        codes: classes of the neighbours (n, k), from 0 on.
        own: class of each point (n,); one of them at least has a neighbour of its class.
        temperature: where to begin, such as the T of NED.
        weights: what each neighbour counts besides its kernel (n, k), such as one over the size of its class; None: 1.
    """
    profile = _Profile(energies, codes, own, weights)
    options = {"bounds": _WIDTHS, "method": "bounded", "options": {"xatol": _TOLERANCE}}
    start = math.log(temperature)
    width = float(minimize_scalar(lambda place: profile(start + place)[0], **options).x)
    return _finished(profile, temperature * math.exp(width), _end_notes(width, _WIDTHS, "temperature"))


def fit_sharpness(
    energies: np.ndarray, codes: np.ndarray, own: np.ndarray, temperature: float, weights: np.ndarray | None = None
) -> SharpFit:
    """Fit a alone, at a given T; arguments as of `fit_sharpened`."""
    return _finished(_Profile(energies, codes, own, weights), temperature, ())


def _finished(profile: _Profile, temperature: float, notes: tuple[str, ...]) -> SharpFit:
    loss, sharpness = profile(math.log(temperature))
    notes += _end_notes(math.log(sharpness), _SHARPNESS, "sharpness")
    return SharpFit(temperature, sharpness, -loss, notes)


def _end_notes(found: float, bounds: tuple[float, float], name: str) -> tuple[str, ...]:
    if min(found - bounds[0], bounds[1] - found) < 2 * _TOLERANCE:
        return (f"The {name} stopped at the end of the range that is searched.",)
    return ()


class _Profile:
    """The loss at a temperature with the sharpness that suits it best, over points left out one at a time.

    Args:
        energies: of the neighbours (n, k).
        codes: classes of the neighbours (n, k).
        own: class of each point (n,).
        weights: as of `fit_sharpened`.
    """

    def __init__(
        self, energies: np.ndarray, codes: np.ndarray, own: np.ndarray, weights: np.ndarray | None = None
    ) -> None:
        counted = (codes == own[:, None]).any(axis=1)
        gaps = (energies - energies.min(axis=1, keepdims=True)).astype(np.float64)
        self.gaps, self.codes, self.own = gaps[counted], codes[counted], own[counted]
        self.weights = 1.0 if weights is None else weights[counted]

    def __call__(self, logarithm: float) -> tuple[float, float]:
        """Mean negative log-likelihood and sharpness at log T."""
        kernels = np.exp(np.maximum(self.gaps * -math.exp(-logarithm), _LEAST_EXPONENT))
        found = sum_by_class(self.codes, kernels * self.weights)
        own = found.codes == np.repeat(self.own, np.diff(found.offsets))

        def loss(power: float) -> float:
            shares = powered(found.sums, found.offsets, math.exp(power))
            return -float(np.log(np.maximum(shares[own], FLOOR)).mean(dtype=np.float64))

        options = {"bounds": _SHARPNESS, "method": "bounded", "options": {"xatol": _TOLERANCE / 4}}
        best = minimize_scalar(loss, **options)
        return float(best.fun), math.exp(float(best.x))


_TRIED = np.exp(np.linspace(-1.5, 1.5, 31))
"""What the temperature of the likelihood is multiplied by in search of the best calibrated one."""


def fit_calibrated(
    energies: np.ndarray,
    codes: np.ndarray,
    own: np.ndarray,
    temperature: float,
    sharpness: float = 1.0,
    weights: np.ndarray | None = None,
) -> float:
    """The T with the lowest ECE over points left out one at a time; arguments as of `fit_sharpened`.

    A flat answer is calibrated too: a T counts only if it names no fewer points right than the T of the likelihood,
    but for one standard error. Of equally good ones that nearest to the likelihood's is taken.
    """
    zero = np.zeros(len(own), np.int64)
    found = []
    for factor in _TRIED:
        shares = sharpened_shares(energies, codes, factor * temperature, sharpness, 1.0 if weights is None else weights)
        confidence = np.maximum.reduceat(shares.sums, shares.offsets[:-1])
        table = class_table(confidence, shares.best == own, zero).sum(axis=0)
        found.append(accuracy_and_ece(table))
    accuracy, ece = np.array(found).T
    usual = accuracy[len(_TRIED) // 2]
    least = usual - math.sqrt(usual * (1 - usual) / len(own))
    order = np.lexsort([np.abs(np.log(_TRIED)), np.round(ece, 6), accuracy < least])
    return float(_TRIED[order[0]] * temperature)
