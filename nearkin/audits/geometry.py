"""The geometry suite: how far classes lie apart, in how many directions they vary, and what is kept of the pixels."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nearkin.audits.geometry_pictures import draw_kept_distances, draw_powers, draw_spectrum
from nearkin.audits.reweighting import reweigh
from nearkin.audits.subject import Subject
from nearkin.audits.suites import SuiteResult, suites
from nearkin.errors import DataError
from nearkin.metrics.distance_structure import DistanceStructure, feature_distances, input_distances, sampled_rows
from nearkin.metrics.geometry import geometry_metrics, separation_intervals
from nearkin.metrics.separation import Norm, class_moments
from nearkin.metrics.spectrum import singular_spectrum
from nearkin.models.learned_space import LearnedSpace
from nearkin.recipe import AuditSection
from nearkin.spaces import Space, Sphere

NORMS: tuple[Norm, ...] = ("l2", "linf")
THIS = "this model"


@suites.register("geometry")
def geometry_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """D_inter, D_intra, phi, pi_ratio, R2, rho and d_DoV, and the mean correlation with distances of pixels.

    All are of embeddings brought to length 1, but for the mean correlations, which go by the model's own distance. What
    re-weighting of principal directions does is told in the notes, the details and a picture.
    """
    embeddings, labels = subject.embeddings, subject.labels
    found = SuiteResult(
        geometry_metrics(embeddings, labels),
        separation_intervals(class_moments(embeddings, labels), resamples=section.resamples, seed=section.seed),
        notes=_notes(embeddings),
        details={"geometry": {}},
        primary="phi",
    )
    spectra = {THIS: singular_spectrum(embeddings)}
    if subject.baseline is not None:
        _add_baseline(found, spectra, subject, subject.baseline)
    found.details["geometry"]["spectra"] = {name: spectrum.tolist() for name, spectrum in spectra.items()}
    found.drawings.append(partial(draw_spectrum, spectra))
    if subject.pixels is not None:
        _add_inputs(found, subject, section)
    _add_reweighting(found, subject, section)
    return _finite(found)


def _notes(embeddings: np.ndarray) -> list[str]:
    items, dimension = embeddings.shape
    notes = [
        f"Geometry: the measures are of all {items:,} embeddings, brought to length 1; their intervals draw classes "
        "anew. None of them is good or bad by itself."
    ]
    if items < dimension:
        notes.append(
            f"Geometry: there are fewer items ({items:,}) than dimensions ({dimension:,}), which alone bounds rho and "
            "d_DoV."
        )
    return notes


def _add_baseline(found: SuiteResult, spectra: dict[str, np.ndarray], subject: Subject, untrained: np.ndarray) -> None:
    """The same of the baseline, unless it has an item without a direction, such as an image of one colour."""
    name = subject.baseline_name or "baseline"
    try:
        found.baseline.update(geometry_metrics(untrained, subject.labels))
        spectra[name] = singular_spectrum(untrained)
    except DataError as error:
        found.notes.append(f"Geometry: there are no measures of {name}. {error}")


def _add_inputs(found: SuiteResult, subject: Subject, section: AuditSection) -> None:
    """How far distances of embeddings, and of the baseline, follow those of the pixels that the model sees."""
    assert subject.pixels is not None
    if len(subject.labels) < 3:
        return
    rows = sampled_rows(len(subject.labels), section.geometry_items, section.seed)
    pixels = subject.pixels(rows)
    features = feature_distances(subject.embeddings[rows], _distance_space(subject.space))
    untrained = None if subject.baseline is None else feature_distances(subject.baseline[rows], Sphere())
    structures: dict[str, DistanceStructure] = {}
    for norm in NORMS:
        inputs = input_distances(pixels, norm)
        structures[norm] = DistanceStructure(inputs, features)
        found.values[f"MC, input {norm}"] = structures[norm].correlation().value
        if untrained is not None:
            found.baseline[f"MC, input {norm}"] = DistanceStructure(inputs, untrained).correlation().value
    found.details["geometry"]["compared items"] = len(rows)
    found.notes.append(
        f"Geometry: MC is the mean rank correlation of an item's distances to the others between embeddings and pixels "
        f"({' x '.join(map(str, pixels.shape[1:]))}, in [0, 1]), of {len(rows):,} items."
    )
    found.drawings.append(partial(draw_kept_distances, structures))


def _add_reweighting(found: SuiteResult, subject: Subject, section: AuditSection) -> None:
    try:
        result = reweigh(subject, section)
    except DataError as error:
        found.notes.append(f"Geometry: re-weighting of principal directions is left out. {error}")
        return
    found.details["geometry"]["re-weighting"] = result.to_dict()
    found.notes.append(f"Geometry: {result.note()}")
    found.drawings.append(partial(draw_powers, result))


def _distance_space(space: Any) -> Space:
    """How embeddings are far from each other; by a similarity they are not, and angles take its place."""
    if isinstance(space, LearnedSpace):
        return space.base
    return space if isinstance(space, Space) else Sphere()


def _finite(found: SuiteResult) -> SuiteResult:
    """The result without values that are no numbers, which a note tells."""
    lost = [name for name, value in found.values.items() if not math.isfinite(value)]
    for name in lost:
        del found.values[name]
        found.intervals.pop(name, None)
    for name in [name for name, value in found.baseline.items() if not math.isfinite(value)]:
        del found.baseline[name]
    if lost:
        found.notes.append(f"Geometry: left out, as they are not finite: {', '.join(lost)}.")
    primary = "phi" if "phi" in found.values else next(iter(found.values), "")
    return replace(found, numbers=tuple(dict.fromkeys([*found.values, *found.baseline])), primary=primary)
