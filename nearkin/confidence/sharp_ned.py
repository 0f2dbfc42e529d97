"""NED with a sharpness: how wide the kernels are and how sure the answer is, fitted apart.

`S_c = sum_{i in kNN, y_i = c} exp(-d_i^2 / T)` and `p(c) = S_c^a / sum_y S_y^a`; a = 1 is NED. In many dimensions one T
cannot do both: wide kernels gather a class well but give probabilities that are too even. See docs/methods/ned.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from nearkin.checks import check_positive
from nearkin.confidence.estimator import Neighbours, estimators
from nearkin.confidence.ned import NED, fill_absent
from nearkin.confidence.probabilities import ClassProbabilities, ClassSums, powered, sum_by_class
from nearkin.confidence.temperature import energies
from nearkin.errors import DataError
from nearkin.metrics.calibration import FLOOR

_WIDTHS = (-1.0, 3.0)
"""How far log T may go from that of NED."""

_SHARPNESS = (-2.0, 3.0)
"""Where log a is looked for."""

_TOLERANCE = 0.02
_LEAST_EXPONENT = -700.0  # of float64


@estimators.register("ned-sharp")
@dataclass(eq=False, kw_only=True)
class SharpNED(NED):
    """NED whose class sums are raised to a power before they are divided by their total.

    Needs: what NED needs; about a second for 10,000 support points.
    Use when: NED's answers are right less often than those of a good vote, or it is surer or less sure than it should
        be. It costs one more number, fitted on the support alike.

    Args:
        sharpness: the power a; None fits it together with T by the likelihood of the support. With a given
            temperature it is fitted alone.
        k: as in NED, and so are the others; the bandwidth is shared.

    Attributes:
        sharpness_: a.
    """

    sharpness: float | None = None
    sharpness_: float = field(init=False, repr=False)

    def _learn(self, neighbours: Neighbours | None) -> None:
        check_positive(self.sharpness, "sharpness")
        if self.bandwidth != "shared":
            raise DataError("SharpNED has one bandwidth for all classes: use NED for bandwidth='per-class'.")
        self.sharpness_ = 1.0 if self.sharpness is None else float(self.sharpness)
        super()._learn(neighbours)
        if self.temperature is not None and self.sharpness is None:
            self._sharpen(*self._left_out(neighbours))

    def _fit_to(self, exponents: np.ndarray, codes: np.ndarray, own: np.ndarray) -> None:
        super()._fit_to(exponents, codes, own)
        if self.sharpness is None:
            self._sharpen(exponents, codes, own)

    def _sharpen(self, energies: np.ndarray, codes: np.ndarray, own: np.ndarray) -> None:
        """Fit the sharpness, and the temperature with it unless that is given; arguments as of `_fit_to`."""
        fit = fit_sharpened if self.temperature is None else fit_sharpness
        found = fit(energies, codes, own, self.temperature_)
        self.temperature_, self.sharpness_ = found.temperature, found.sharpness
        self.notes_ += found.notes
        if self.fit_ is not None:
            self.fit_ = replace(self.fit_, temperature=found.temperature, likelihood=found.likelihood)

    def predict_proba(self, distances: Any, indices: Any) -> ClassProbabilities:
        """Class probabilities from neighbours that were found already; arguments as of every estimator."""
        support = self._fitted()
        length, near = support.check_neighbours(distances, indices)
        # In float64: a small power makes much of little.
        energy = energies(torch.from_numpy(length).double(), support.scorer).numpy()
        found = sharpened_shares(energy, support.codes[near], self.temperature_, self.sharpness_)
        values = found.sums.astype(np.float32)
        return ClassProbabilities(support.classes, found.offsets, found.codes, values, found.best)

    def _log_by_class(self, distances: Tensor, codes: Tensor, classes: int) -> Tensor:
        plain = super()._log_by_class(distances, codes, classes)
        present = torch.zeros_like(plain, dtype=torch.bool).scatter(1, codes, True)
        scaled = self.sharpness_ * plain
        total = torch.logsumexp(torch.where(present, scaled, -math.inf), dim=1, keepdim=True)
        return fill_absent(scaled - total, present)


def sharpened_shares(
    energies: np.ndarray,
    codes: np.ndarray,
    temperature: float,
    sharpness: float,
    weights: np.ndarray | float = 1.0,
) -> ClassSums:
    """The probabilities of the classes among the neighbours of queries, float64, in the place of sums.

    Args:
        energies: of the neighbours (q, k), nearest first; anything where there is none.
        codes: their classes (q, k), negative where there is none; each query has one neighbour at least.
        temperature: T.
        sharpness: a.
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


def fit_sharpness(energies: np.ndarray, codes: np.ndarray, own: np.ndarray, temperature: float) -> SharpFit:
    """Fit a alone, at a given T; arguments as of `fit_sharpened`."""
    return _finished(_Profile(energies, codes, own), temperature, ())


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
