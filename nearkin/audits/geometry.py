"""The geometry suite: how far classes lie apart, in how many directions they vary, and re-weighting of these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearkin.audits.result import gap_text, resampling
from nearkin.audits.subject import Subject, asked_and_searched, embed_items, leave_classes_out, training_rows
from nearkin.audits.suites import SuiteResult, suites
from nearkin.checks import is_real
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError
from nearkin.metrics import RetrievalResult, class_bootstrap, retrieval_metrics, verification_from_scores
from nearkin.metrics.geometry import (
    DistanceStructure,
    InputNorm,
    class_moments,
    feature_distances,
    floored_directions,
    geometry_metrics,
    input_distances,
    sampled_rows,
    separation_intervals,
    singular_spectrum,
)
from nearkin.metrics.labels import label_codes
from nearkin.models import Embedder
from nearkin.models.shorten import check_head, raw_embeddings, reweighted
from nearkin.models.similarity import LearnedSpace
from nearkin.recipe import AuditSection
from nearkin.report.geometry import correlation_title, draw_distance_pairs, draw_reweighting, draw_spectra
from nearkin.search import exact
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, PrincipalReweighting, Space, Sphere

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


def reweighting_of_training(
    embedder: Embedder,
    dataset: Dataset,
    power: float | str = "auto",
    weights: Sequence[float] | np.ndarray | None = None,
    *,
    cache_directory: Path,
    seed: int = 0,
    progress: bool = True,
) -> Embedder:
    """A copy of a model with the principal directions of its training items re-weighted.

    Args:
        embedder: the model; its card says which classes trained and validated it.
        dataset: data with items of these classes; others are not looked at, so that they stay unseen.
        power: how far directions are made alike; "auto": the one of `POWERS` with the best MAP@R of the validation
            classes, or of half of the training classes if the data has none of these.
        weights: of the directions (d,), instead of a power.
        cache_directory: where the features of a frozen backbone are kept.
        seed: of the half.
        progress: whether to show bars.

    Raises:
        DataError: with "auto", if no power beats the embeddings as they are.
    """
    check_head(embedder, "re-weighted")
    if weights is None and power != "auto" and not is_real(power):
        raise DataError(f"power must be a number, or auto, not {power!r}.")
    rows = training_rows(dataset, embedder.card)
    if len(rows) < 2:
        raise DataError(
            f"None of the {len(dataset.classes)} classes of the data is among the model's training classes: pass the "
            "data it was trained on."
        )
    raw = raw_embeddings(embedder)
    part = dataset.select(rows)
    points = embed_items(raw, part, cache_directory, progress)
    facts: dict[str, Any] = {}
    if weights is None and power == "auto":
        judged = dataset.select(np.setdiff1d(np.flatnonzero(np.isin(dataset.labels, embedder.card.classes.val)), rows))
        if len(set(judged.labels)) >= 2:
            theirs = embed_items(raw, judged, cache_directory, progress)
            power, facts = _best_power(points, theirs, judged.labels, embedder.space)
            facts["chosen_on"] = f"{len(set(judged.labels))} validation classes"
        else:
            known = leave_classes_out(part.labels, np.arange(len(part)), seed)
            power, facts = _best_power(points[known], points[~known], part.labels[~known], embedder.space)
            facts["chosen_on"] = f"{len(set(part.labels[~known]))} training classes left out"
    change = PrincipalReweighting(weights=weights) if power == "auto" else PrincipalReweighting(float(power), weights)
    words = f"items of {len(part.classes)} training classes of {dataset.name}"
    return reweighted(embedder, change.fit(points), fitted_on=words, items=len(part), **facts)


def _best_power(
    points: np.ndarray, judged: np.ndarray, labels: np.ndarray, space: Space
) -> tuple[float, dict[str, Any]]:
    """The best power for raw embeddings (m, d), fitted on others (n, d), and MAP@R with it and without."""

    def map_at_r(embeddings: np.ndarray) -> float:
        found = space.project(torch.from_numpy(np.ascontiguousarray(embeddings))).numpy()
        return retrieval_metrics(found, labels, metrics=("MAP@R",), space=space).values["MAP@R"]

    values = [map_at_r(PrincipalReweighting(power).fit(points).transform(judged)) for power in POWERS]
    best, unchanged = int(np.argmax(values)), map_at_r(judged)
    if values[best] <= unchanged:
        raise DataError(
            f"No re-weighting helps: MAP@R of classes left out is {100 * unchanged:.1f} % as the model is and "
            f"{100 * values[best]:.1f} % at best (power {POWERS[best]:g}). Keep the model, or set a power yourself."
        )
    return POWERS[best], {"MAP@R": values[best], "unchanged": unchanged}


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
CLARITY = "clarity AUC"
_DECIDED = 0.5
"""Share of rho from which on a reader is told that the floor decides it."""
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
    if note := _floor_note(spectra[THIS], found.values["rho"]):
        found.notes.append(note)
    if isinstance(subject.space, PoincareBall):
        _add_clarity(found, subject, subject.space)
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
    found.numbers = tuple(dict.fromkeys(name for name in (*found.values, *found.baseline) if name != CLARITY))
    found.primary = "phi" if "phi" in found.values else next(iter(found.values), "")
    return found


def _floor_note(spectrum: np.ndarray, rho: float) -> str:
    """A warning where rho is decided by directions that hold nothing; empty where it is not."""
    empty = floored_directions(spectrum)
    # What the empty directions alone add to the mean of ln(1 / ((d - 1) s_i)).
    share = empty / len(spectrum) * -math.log(len(spectrum) * float(spectrum[-1])) / rho if empty and rho else 0.0
    if share < _DECIDED:
        return ""
    return (
        f"Geometry: rho is decided by its floor. {empty:,} of {len(spectrum):,} directions hold nothing and count as "
        f"1e-6 of the largest each, which makes {100 * min(share, 1):.0f} % of rho: compare d_DoV, or models with as "
        "many directions."
    )


def _add_clarity(found: SuiteResult, subject: Subject, space: PoincareBall) -> None:
    """Whether items far from the centre of the ball are those whose nearest neighbour is of their class."""
    points = torch.from_numpy(np.ascontiguousarray(subject.embeddings))
    nearest = exact(subject.embeddings, k=1, space=space)[1][:, 0].numpy()
    right = subject.labels[nearest] == subject.labels
    if right.all() or not right.any():
        found.notes.append("Geometry: the clarity AUC is left out, as all nearest neighbours are right, or none is.")
        return
    found.add(CLARITY, verification_from_scores(space.clarity(points).numpy(), right).values["ROC-AUC"])
    found.notes.append(
        f"Geometry: {CLARITY} is how often an item whose nearest neighbour is of its class lies farther from the "
        "centre of the ball than one whose is not; 50 % is chance."
    )


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
