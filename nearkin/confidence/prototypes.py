"""Nearest prototypes: a class is the mean of its support points, and its probability falls with the distance to it.

SD-softmax has `p(c) ~ exp(-d_c^2 / T)`, the distance ratio `p(c) ~ d_c^-rho`; both are a softmax over energies, and T
and 1/rho are its temperature. Definitions: docs/methods/ned.md.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import check_positive
from nearkin.confidence.estimator import (
    ENERGIES,
    FIT_POINTS,
    SHOWN,
    Estimator,
    Neighbours,
    Support,
    as_queries,
    blocks,
    estimators,
)
from nearkin.confidence.probabilities import ClassProbabilities, Prediction
from nearkin.confidence.temperature import TemperatureFit, energies, fit_temperature
from nearkin.errors import DataError
from nearkin.spaces import Euclidean, Space, Sphere
from nearkin.spaces.scores import distance_ratio_scores
from nearkin.spaces.space import squarable

_BLOCK = 2**22
"""Distances, or coordinates of points whose mean is taken, that exist at once."""

_LINEAR = (Euclidean, Sphere)
"""Spaces whose mean is the projected arithmetic mean of projected points: one point can be taken out of a sum."""


@dataclass(eq=False, kw_only=True)
class PrototypeEstimator(Estimator):
    """Class probabilities from the distances to the classes' means.

    Args:
        space: a space, or the name of one; it must have a mean.
        points: fit on at most so many support points, drawn at random.
        seed: of that draw.

    Attributes:
        prototypes_: the means (C, d), in the order of `classes_`.
        temperature_: of the softmax.
        fit_: likelihood, counts and notes of the fit; None with a given temperature.
    """

    parameter: ClassVar[str]
    points: int = FIT_POINTS
    seed: int = 0
    prototypes_: Tensor = field(init=False, repr=False)
    temperature_: float = field(init=False, repr=False)
    fit_: TemperatureFit | None = field(init=False, repr=False)

    @abstractmethod
    def energy(self, distances: Tensor) -> Tensor:
        """What the softmax takes of distances (q, C), before its temperature: `p ~ exp(-energy / T)`."""

    @abstractmethod
    def _given(self) -> float | None:
        """The temperature that the user fixed, if any."""

    @torch.no_grad()
    def _learn(self, neighbours: Neighbours | None) -> None:
        """The means of the classes, and the temperature: each point against its class's mean without it."""
        self.prototypes_ = self._means()
        self.fit_, given = None, self._given()
        if given is not None or len(self.support_.classes) == 1:
            self.temperature_ = given or 1.0
            return
        exponents, own = self._left_out_energies()
        if not own.any():
            raise DataError(
                "The scale of the prototypes' probabilities cannot be fitted: every class has a single support point; "
                f"give classes more than one, or {self.parameter}=."
            )
        self.fit_ = fit_temperature(exponents, own, lost="are alone in their class")
        self.temperature_ = self.fit_.temperature
        self.notes_ += self.fit_.notes

    @torch.no_grad()
    def predict(self, queries: Any, *, source: str | None = None) -> Prediction:
        """Labels, confidence and class probabilities of queries (q, d); at most 200 classes are listed for each."""
        support = self._fitted()
        points = support.check_queries(queries, source)
        classes = len(support.classes)
        shown, parts = min(SHOWN, classes), []
        precision = torch.promote_types(points.dtype, self.prototypes_.dtype)
        points, prototypes = points.to(precision), self.prototypes_.to(precision)
        for rows in blocks(len(points), classes, _BLOCK):
            near, indices = self.scorer.distance(points[rows], prototypes).sort(dim=1, stable=True)
            table = self._log_softmax(near).exp().float()[:, :shown].cpu().numpy()
            best = indices[:, :shown].cpu().numpy()
            found = ClassProbabilities.of_neighbours(self.classes_, best, table)
            if shown < classes:  # what is missing to 1 is that of the other classes
                shares = table.sum(axis=1)
                values = found.values * np.repeat(shares, found.counts)
                found = replace(found, values=values, rest=np.maximum(0, 1 - shares))
            parts.append(Prediction(found, near[:, :shown].float().cpu().numpy(), best))
        return Prediction.joined(parts)

    def predict_proba(self, distances: Any, indices: Any) -> ClassProbabilities:
        """Class probabilities from distances (q, m), nearest first, to the prototypes `indices` (q, m).

        With fewer than all prototypes, those given share the whole probability.
        """
        classes = len(self._fitted().classes)
        length, near = Support.of(self.prototypes_, np.arange(classes), self.space).check_neighbours(distances, indices)
        table = self._log_softmax(torch.from_numpy(length)).exp().float()
        return ClassProbabilities.of_neighbours(self.classes_, near, table.numpy())

    def log_proba(self, queries: Any) -> Tensor:
        """Log-probabilities (q, C), differentiable with respect to the queries (q, d), in the order of `classes_`."""
        support = self._fitted()
        x = as_queries(queries, support.points)
        support.check_queries(x, None)
        return self._log_softmax(self.scorer.distance(x, self.prototypes_.to(x.dtype))).to(x.dtype)

    def _log_softmax(self, distances: Tensor) -> Tensor:
        """Log-probabilities (q, m) of prototypes at distances (q, m)."""
        energy = self.energy(distances)
        # Shifted before the division, which a low temperature would make overflow.
        return torch.log_softmax((energy.detach().amin(dim=1, keepdim=True) - energy) / self.temperature_, dim=1)

    @property
    def scorer(self) -> Space:
        """The space, which gives means as well as distances."""
        space = self._fitted().scorer
        if not isinstance(space, Space):
            raise DataError(
                f"A prototype is a mean, and {type(space).__name__} has none: use a space such as 'sphere' or "
                "'euclidean'."
            )
        return space

    @property
    def _linear(self) -> bool:
        """Whether one point can be taken out of a mean; that of a learned similarity is its base's."""
        return isinstance(getattr(self.scorer, "base", self.scorer), _LINEAR)

    def _means(self) -> Tensor:
        points, codes = self.support_.points, torch.from_numpy(self.support_.codes).long()
        if self._linear:
            sums = points.new_zeros(len(self.support_.classes), points.shape[1], dtype=torch.float64)
            sums.index_add_(0, codes.to(points.device), self.scorer.project(points).double())
            counts = torch.bincount(codes).to(points.device)[:, None]
            return self.scorer.project(sums / counts).to(points.dtype)
        return torch.stack([self.scorer.mean(points[torch.from_numpy(members)]) for members in self._members()])

    def _members(self) -> list[np.ndarray]:
        """The support points of each class."""
        codes = self.support_.codes
        return np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])

    def _left_out_energies(self) -> tuple[np.ndarray, np.ndarray]:
        """Energies (n, C) of points against all prototypes, their own without them, and which is their own (n, C).

        Points that are alone in their class have no other point to make a prototype of: their own is not marked.
        """
        support = self.support_
        classes = len(support.classes)
        rows = support.draw(min(self.points, max(1, ENERGIES // classes)), self.seed)
        own = np.zeros((len(rows), classes), bool)
        distances = np.empty((len(rows), classes), np.float32)
        for place in blocks(len(rows), classes, _BLOCK):
            near = self.scorer.distance(support.points[torch.from_numpy(rows[place])], self.prototypes_)
            distances[place] = near.cpu().numpy()
        for code, members in enumerate(self._members()):
            places = np.flatnonzero(support.codes[rows] == code)
            if len(members) > 1:
                distances[places, code] = self._to_the_others(rows[places], members)
                own[places, code] = True
        return self.energy(torch.from_numpy(distances)).numpy(), own

    def _to_the_others(self, rows: np.ndarray, members: np.ndarray) -> np.ndarray:
        """Distances (r,) of points `rows` (r,) of one class to the mean of that class's members (n,) without them."""
        points, found = self.support_.points, np.empty(len(rows), np.float32)
        if self._linear:
            total = self.scorer.project(points[torch.from_numpy(members)]).double().sum(dim=0)
            mine = points[torch.from_numpy(rows)].double()
            means = self.scorer.project((total - self.scorer.project(mine)) / (len(members) - 1))
            return self.scorer.distance(mine[:, None], means[:, None])[:, 0, 0].float().cpu().numpy()
        for place in blocks(len(rows), len(members) * points.shape[1], _BLOCK):
            some = rows[place]
            others = np.broadcast_to(members, (len(some), len(members)))
            others = others[others != some[:, None]].reshape(len(some), len(members) - 1)
            means = self.scorer.mean(points[torch.from_numpy(others)])
            near = self.scorer.distance(points[torch.from_numpy(some)][:, None], means[:, None])
            found[place] = near[:, 0, 0].cpu().numpy()
        return found


@estimators.register("prototype-softmax")
@dataclass(eq=False, kw_only=True)
class PrototypeSoftmax(PrototypeEstimator):
    """SD-softmax over the nearest prototypes: `p(c) = exp(-d_c^2/T) / sum_y exp(-d_y^2/T)`.

    Reference: Kim 2023, eq. 2.12, with a temperature.
    Needs: classes that are one cloud each.
    Use when: the support is large and one vector a class must do.

    Args:
        temperature: T; None fits it by the likelihood of the support, each point left out of its prototype.
        space: as in every estimator.
        points: as in every estimator.
        seed: as in every estimator.
    """

    parameter: ClassVar[str] = "temperature"
    temperature: float | None = None

    def energy(self, distances: Tensor) -> Tensor:
        """Squared distances, any shape."""
        return energies(distances, self.scorer)

    def _given(self) -> float | None:
        check_positive(self.temperature, "temperature")
        return self.temperature


@estimators.register("prototype-ratio")
@dataclass(eq=False, kw_only=True)
class PrototypeRatio(PrototypeEstimator):
    """Distance ratio over the nearest prototypes: `p(c) = d_c^-rho / sum_y d_y^-rho`.

    Reference: Kim 2023, article II.
    Needs: classes that are one cloud each; distances, not similarities.
    Use when: the scale of distances differs between places of the space; probabilities do not depend on it, as long as
        distances are well above 1e-5.

    Args:
        rho: None fits it by the likelihood of the support, each point left out of its prototype.
        space: as in every estimator.
        points: as in every estimator.
        seed: as in every estimator.
    """

    parameter: ClassVar[str] = "rho"
    rho: float | None = None

    @property
    def rho_(self) -> float:
        """The exponent that was given or fitted."""
        return 1 / self.temperature_

    def energy(self, distances: Tensor) -> Tensor:
        """Logarithms of distances, any shape."""
        if distances.numel() and float(distances.detach().min()) < 0:
            raise DataError(
                "A ratio of distances needs distances from 0 on, and minus a similarity may be negative: use another "
                "space, or PrototypeSoftmax."
            )
        return -distance_ratio_scores(squarable(distances), 1.0)

    def _given(self) -> float | None:
        check_positive(self.rho, "rho")
        return None if self.rho is None else 1 / self.rho
