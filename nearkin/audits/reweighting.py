"""What re-weighting the principal directions of embeddings does, fitted on some classes and measured on others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nearkin.audits.division import leave_classes_out
from nearkin.audits.subject import Subject, asked_and_searched
from nearkin.errors import DataError
from nearkin.metrics import RetrievalResult, class_bootstrap, geometry_metrics, retrieval_metrics
from nearkin.metrics.labels import label_codes
from nearkin.recipe import AuditSection
from nearkin.spaces import Euclidean, LipschitzBall, PrincipalReweighting, Space, Sphere

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
RETRIEVAL = ("MAP@R", "P@1")
SHAPE = ("phi", "rho", "d_DoV")
_CLASSES = 4
"""At least: two to fit on, and two to measure."""


@dataclass(frozen=True, eq=False)
class Reweighting:
    """Measures by power, of classes that neither the directions nor the choice of the power have seen.

    Attributes:
        measures: measure to its value at each of `POWERS`.
        unchanged: measure to its value of the embeddings as they are.
        fitted: MAP@R of the fitting classes at each of `POWERS`, which the choice is by.
        chosen: the power that is best there.
        gain: MAP@R with it minus that of the embeddings as they are, on the other classes.
        interval: of the gain, with classes and queries drawn anew.
        classes: how many classes were fitted on, and how many measured.
        space: how embeddings were compared.
    """

    measures: dict[str, list[float]]
    unchanged: dict[str, float]
    fitted: list[float]
    chosen: float
    gain: float
    interval: tuple[float, float]
    classes: tuple[int, int]
    space: Space = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "powers": list(POWERS),
            "measures": self.measures,
            "unchanged": self.unchanged,
            "MAP@R, fitting classes": self.fitted,
            "chosen power": self.chosen,
            "gain in MAP@R": [self.gain, *self.interval],
            "classes": list(self.classes),
            "space": self.space.name,
        }

    def note(self) -> str:
        """The effect in a sentence."""
        low, high = self.interval
        return (
            f"with principal directions re-weighted by the power {self.chosen:g}, the best of {len(POWERS)} on "
            f"{self.classes[0]:,} of the classes, MAP@R of the other {self.classes[1]:,} changes by "
            f"{100 * self.gain:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f} with classes and "
            "queries drawn anew."
        )


def reweigh(subject: Subject, section: AuditSection) -> Reweighting:
    """Fit mean and directions on half of the classes, choose a power there, and measure all powers on the other half.

    Raises:
        DataError: if there are too few classes, or a half has nothing to find.
    """
    (codes,) = label_codes(subject.labels)
    found = int(codes.max()) + 1
    if found < _CLASSES:
        raise DataError(f"Classes to fit on and others to measure need {_CLASSES}, and there are {found}: add some.")
    known = leave_classes_out(codes, np.arange(len(codes)), section.seed)
    space = _flat_space(subject.space)
    ours, theirs = _Half(subject, known, space), _Half(subject, ~known, space)
    changes = [PrincipalReweighting(power).fit(ours.embeddings) for power in POWERS]
    fitted = [ours.retrieval(change.transform(ours.embeddings)).values["MAP@R"] for change in changes]
    plain = theirs.retrieval(theirs.embeddings)
    unchanged = theirs.measures(theirs.embeddings, plain)
    best = int(np.argmax(fitted))
    rows = []
    for place, change in enumerate(changes):
        points = change.transform(theirs.embeddings)
        result = theirs.retrieval(points)
        rows.append(theirs.measures(points, result))
        if place == best:
            gains = result.per_query["MAP@R"].astype(np.float64) - plain.per_query["MAP@R"]
    return Reweighting(
        {name: [row[name] for row in rows] for name in (*RETRIEVAL, *SHAPE)},
        unchanged,
        fitted,
        POWERS[best],
        float(gains.mean()),
        class_bootstrap(gains, plain.labels, resamples=section.resamples, seed=section.seed),
        (ours.classes, theirs.classes),
        space,
    )


class _Half:
    """Some of the items, by a mask (n,)."""

    def __init__(self, subject: Subject, mask: np.ndarray, space: Space) -> None:
        self.embeddings = subject.embeddings[mask]
        self.labels = subject.labels[mask]
        self.gallery = None if subject.gallery is None else subject.gallery[mask]
        self.space = space
        self.classes = int(label_codes(self.labels)[0].max()) + 1

    def retrieval(self, embeddings: np.ndarray) -> RetrievalResult:
        points = self.space.project(torch.from_numpy(np.ascontiguousarray(embeddings))).numpy()
        asked = asked_and_searched(points, self.labels, self.gallery)
        return retrieval_metrics(**asked, metrics=RETRIEVAL, space=self.space)

    def measures(self, embeddings: np.ndarray, result: RetrievalResult) -> dict[str, float]:
        shape = geometry_metrics(embeddings, self.labels)
        return {name: (result.values | shape)[name] for name in (*RETRIEVAL, *SHAPE)}


def _flat_space(space: Any) -> Space:
    """Where re-weighted embeddings are compared: by their distance if that is how it is done now, else by angles."""
    own = getattr(space, "base", space)
    return Euclidean() if isinstance(own, Euclidean | LipschitzBall) else Sphere()
