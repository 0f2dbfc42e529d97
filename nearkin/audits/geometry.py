"""The geometry suite: how far classes lie apart, in how many directions they vary, and re-weighting of these."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nearkin.audits.result import gap_text, resampling
from nearkin.audits.subject import Subject, asked_and_searched, leave_classes_out
from nearkin.audits.suites import SuiteResult, suites
from nearkin.errors import DataError
from nearkin.metrics import RetrievalResult, class_bootstrap, retrieval_metrics
from nearkin.metrics.geometry import (
    DistanceStructure,
    InputNorm,
    class_moments,
    feature_distances,
    geometry_metrics,
    input_distances,
    sampled_rows,
    separation_intervals,
    singular_spectrum,
)
from nearkin.metrics.labels import label_codes
from nearkin.models.similarity import LearnedSpace
from nearkin.recipe import AuditSection
from nearkin.report.geometry import correlation_title, draw_distance_pairs, draw_reweighting, draw_spectra
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
        return (
            f"with principal directions re-weighted by the power {self.chosen:g}, the best of {len(POWERS)} on "
            f"{self.classes[0]:,} of the classes, MAP@R of the other {self.classes[1]:,} changes by "
            f"{gap_text(self.gain, *self.interval)} with classes and queries drawn anew."
        )


def reweigh(subject: Subject, section: AuditSection) -> Reweighting:
    """Fit mean and directions on half of the classes, choose a power there, and measure all powers on the other half.

    Raises:
        DataError: if there are too few classes, or a half has nothing to find.
    """
    (codes,) = label_codes(subject.labels)
    found = int(codes.max()) + 1
    if found < _CLASSES:
        raise DataError(f"Fitting on some classes and measuring on others needs {_CLASSES}, not {found}: add some.")
    known = leave_classes_out(codes, np.arange(len(codes)), section.seed)
    # By their distance if that is how embeddings are compared now, else by angles.
    flat = isinstance(_distance_space(subject.space), Euclidean | LipschitzBall)
    space = Euclidean() if flat else Sphere()
    ours, theirs = _Half(subject, known, space), _Half(subject, ~known, space)
    changes = [PrincipalReweighting(power).fit(ours.embeddings) for power in POWERS]
    fitted = [ours.retrieval(change.transform(ours.embeddings)).values["MAP@R"] for change in changes]
    plain, unchanged = theirs.measured(theirs.embeddings)
    results, rows = zip(*(theirs.measured(change.transform(theirs.embeddings)) for change in changes), strict=True)
    best = int(np.argmax(fitted))
    gains = results[best].per_query["MAP@R"].astype(np.float64) - plain.per_query["MAP@R"]
    return Reweighting(
        {name: [row[name] for row in rows] for name in unchanged},
        unchanged,
        fitted,
        POWERS[best],
        float(gains.mean()),
        class_bootstrap(gains, plain.labels, **resampling(section)),
        (ours.classes, theirs.classes),
        space,
    )


class _Half:
    """Some of the items, by a mask (n,)."""

    def __init__(self, subject: Subject, mask: np.ndarray, space: Space) -> None:
        self.embeddings, self.labels, self.space = subject.embeddings[mask], subject.labels[mask], space
        self.gallery = None if subject.gallery is None else subject.gallery[mask]
        self.classes = len(np.unique(label_codes(self.labels)[0]))

    def retrieval(self, embeddings: np.ndarray) -> RetrievalResult:
        points = self.space.project(torch.from_numpy(np.ascontiguousarray(embeddings))).numpy()
        asked = asked_and_searched(points, self.labels, self.gallery)
        return retrieval_metrics(**asked, metrics=RETRIEVAL, space=self.space)

    def measured(self, embeddings: np.ndarray) -> tuple[RetrievalResult, dict[str, float]]:
        result = self.retrieval(embeddings)
        values = result.values | geometry_metrics(embeddings, self.labels)
        return result, {name: values[name] for name in (*RETRIEVAL, *SHAPE)}


NORMS: tuple[InputNorm, ...] = ("l2", "linf")
THIS = "this model"


@suites.register("geometry")
def geometry_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """D_inter, D_intra, phi, pi_ratio, R2, rho and d_DoV, and the mean correlation with distances of pixels.

    All are of embeddings brought to length 1, but for the mean correlations, which go by the model's own distance. What
    re-weighting of principal directions does is told in the notes, the details and a picture.
    """
    embeddings, labels = subject.embeddings, subject.labels
    items, dimension = embeddings.shape
    found = SuiteResult(
        geometry_metrics(embeddings, labels),
        separation_intervals(class_moments(embeddings, labels), **resampling(section)),
        details={"geometry": {}},
    )
    found.notes.append(
        f"Geometry: the measures are of all {items:,} embeddings, brought to length 1; their intervals draw classes "
        "anew. None of them is good or bad by itself."
    )
    if items < dimension:
        found.notes.append(
            f"Geometry: there are fewer items ({items:,}) than dimensions ({dimension:,}), which alone bounds rho and "
            "d_DoV."
        )
    spectra = {THIS: singular_spectrum(embeddings)}
    if subject.baseline is not None:
        name = subject.baseline_name or "baseline"
        try:
            found.baseline.update(geometry_metrics(subject.baseline, labels))
            spectra[name] = singular_spectrum(subject.baseline)
        except DataError as error:  # an item without a direction, such as an image of one colour
            found.notes.append(f"Geometry: there are no measures of {name}. {error}")
    found.details["geometry"]["spectra"] = {name: spectrum.tolist() for name, spectrum in spectra.items()}
    found.show(
        "Directions of variance",
        "Singular values of the embeddings, as multiples of their average. The flatter the line, the more directions "
        "carry something; d_DoV counts those above the average, rho tells how far the line is from flat.",
        "Singular values against directions on a log axis, model and baseline, with their average",
        draw_spectra,
        spectra,
    )
    if subject.pixels is not None and len(labels) >= 3:
        _add_inputs(found, subject, section)
    _add_reweighting(found, subject, section)
    _drop_infinite(found)
    found.numbers = tuple(dict.fromkeys([*found.values, *found.baseline]))
    found.primary = "phi" if "phi" in found.values else next(iter(found.values), "")
    return found


def _add_inputs(found: SuiteResult, subject: Subject, section: AuditSection) -> None:
    """How far distances of embeddings, and of the baseline, follow those of the pixels that the model sees."""
    assert subject.pixels is not None
    rows = sampled_rows(len(subject.labels), section.geometry_items, section.seed)
    pixels = subject.pixels(rows)
    features = feature_distances(subject.embeddings[rows], _distance_space(subject.space))
    untrained = None if subject.baseline is None else feature_distances(subject.baseline[rows], Sphere())
    panels = {}
    above = np.triu_indices(len(rows), 1)
    for norm in NORMS:
        inputs = input_distances(pixels, norm)
        value = DistanceStructure(inputs, features).correlation().value
        panels[correlation_title(f"Pixels by {norm}", value)] = (inputs[above], features[above])
        found.add(f"MC, input {norm}", value)
        if untrained is not None:
            found.baseline[f"MC, input {norm}"] = DistanceStructure(inputs, untrained).correlation().value
    found.details["geometry"]["compared items"] = len(rows)
    found.notes.append(
        f"Geometry: MC is the mean rank correlation of an item's distances to the others between embeddings and pixels "
        f"({' x '.join(map(str, pixels.shape[1:]))}, in [0, 1]), of {len(rows):,} items."
    )
    found.show(
        "Distances of pixels and of embeddings",
        "Each pair of sampled items: the darker, the more pairs. A rising line means that the embedding keeps "
        "distances of pixels, as models that withstand small changes of them do; MC is the mean rank correlation.",
        "Feature distances against input distances of pairs of items, by norm",
        draw_distance_pairs,
        panels,
    )


def _add_reweighting(found: SuiteResult, subject: Subject, section: AuditSection) -> None:
    """What re-weighting does to retrieval and geometry, by power."""
    try:
        result = reweigh(subject, section)
    except DataError as error:
        found.notes.append(f"Geometry: re-weighting of principal directions is left out. {error}")
        return
    found.details["geometry"]["re-weighting"] = result.to_dict()
    found.notes.append(f"Geometry: {result.note()}")
    fitted, measured = result.classes
    found.show(
        "Principal directions re-weighted",
        f"Mean and directions are found on {fitted:,} classes, and all is measured on the other {measured:,}. At power "
        "0 embeddings are only centred, at 1 all directions vary alike.",
        "MAP@R, P@1, phi, rho and d_DoV against the power of the re-weighting",
        draw_reweighting,
        POWERS,
        result.measures,
        unchanged=result.unchanged,
        shares=RETRIEVAL,
        chosen=result.chosen,
    )


def _distance_space(space: Any) -> Space:
    """How embeddings are far from each other; by a similarity they are not, and angles take its place."""
    if isinstance(space, LearnedSpace):
        return space.base
    return space if isinstance(space, Space) else Sphere()


def _drop_infinite(found: SuiteResult) -> None:
    """Leave out values that are no numbers, which a note tells."""
    lost = [name for name, value in found.values.items() if not math.isfinite(value)]
    for name in lost:
        del found.values[name]
        found.intervals.pop(name, None)
    found.baseline = {name: value for name, value in found.baseline.items() if math.isfinite(value)}
    if lost:
        found.notes.append(f"Geometry: left out, as they are not finite: {', '.join(lost)}.")
