"""Short embeddings: how many first dimensions or principal components suffice, measured and made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.audits.subject import Subject, asked_and_searched, embed_items, leave_classes_out, training_rows
from nearkin.audits.suites import SuiteResult, suites
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError
from nearkin.metrics import SizeCurve, size_curve
from nearkin.metrics.intervals import Interval
from nearkin.metrics.labels import label_codes
from nearkin.models import Embedder, principal_components
from nearkin.models.shorten import check_shorter
from nearkin.recipe import AuditSection
from nearkin.report import Figure
from nearkin.report.curves import draw_sizes
from nearkin.spaces import PrincipalRotation
from nearkin.spaces.principal import check_turnable


def components_of_training(
    embedder: Embedder, dataset: Dataset, dimension: int, *, cache_directory: Path, progress: bool = True
) -> Embedder:
    """A copy of a model that gives the principal components of its embeddings of training items.

    Args:
        embedder: the model; its card says which classes trained it.
        dataset: data with items of these classes; others are not looked at, so that they stay unseen.
        dimension: how many dimensions are left.
        cache_directory: where the features of a frozen backbone are kept.
        progress: whether to show bars.
    """
    check_shorter(embedder, dimension)  # before anything is encoded
    check_turnable(embedder.space)
    rows = training_rows(dataset, embedder.card)
    if len(rows) == 0:
        raise DataError(
            f"None of the {len(dataset.classes)} classes of the data is among the model's training classes: pass the "
            "data it was trained on, or keep its first dimensions (method prefix)."
        )
    part = dataset.select(rows)
    points = embed_items(embedder, part, cache_directory, progress)
    words = f"items of {len(part.classes)} training classes of {dataset.name}"
    return principal_components(embedder, points, dimension, fitted_on=words)


FIRST, PCA = "first", "PCA"
METRICS = ("MAP@R", "P@1")
_CLASSES = 4
"""At least, if some are fitted on and others measured: two of each."""
_POINT = 0.01


@dataclass(frozen=True, eq=False)
class _ClassDivision:
    """What principal components are fitted on, and what is measured.

    Attributes:
        fitted: embeddings (m, d); None where there is nothing to fit on.
        measured: mask (n,) of the subject's items.
        words: what was fitted on, for readers.
    """

    fitted: np.ndarray | None
    measured: np.ndarray
    words: str


@suites.register("size")
def size_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """MAP@R and P@1 of embeddings cut short, by size, and what each size loses against the whole.

    Two ways to cut: the first dimensions, which is what trained prefixes are for, and principal components. These are
    fitted on items that the model was trained on; where there are none, on half of the classes, and then both ways are
    measured on the other half.
    """
    check_turnable(subject.space)
    division = _divide(subject, section)
    curves = {FIRST: _curve(subject, section, division, subject.embeddings)}
    if division.fitted is not None:
        rotation = PrincipalRotation(subject.space).fit(division.fitted)
        curves[PCA] = _curve(subject, section, division, rotation.transform(subject.embeddings))
    found = SuiteResult({}, notes=_notes(curves, division), primary=_name("MAP@R", "", curves[FIRST].sizes[-1]))
    for way, curve in curves.items():
        _add(found, way, curve)
    found.details["size"] = {
        **{way: curve.to_dict() for way, curve in curves.items()},
        "PCA fitted on": division.words,
        "smallest within a point of MAP@R": {way: curve.smallest_within(_POINT) for way, curve in curves.items()},
    }
    found.drawings.append(partial(draw_curves, curves, division.words))
    return found


def draw_curves(curves: dict[str, SizeCurve], fitted_on: str) -> Figure:
    """MAP@R and P@1 against the size, for each way of cutting."""
    named = {_in_words(way): curve for way, curve in curves.items()}
    series = {m: {way: (curve.sizes, curve.values[m]) for way, curve in named.items()} for m in METRICS}
    ends = {m: {way: _ends(curve.intervals[m]) for way, curve in named.items()} for m in METRICS}
    words = f" Principal components are fitted on {fitted_on}." if PCA in curves else ""
    return Figure(
        "How short may embeddings be?",
        f"Retrieval by embeddings cut short, with 95 % intervals over classes and queries.{words}",
        draw_sizes(series, intervals=ends, of="the audited classes"),
        "MAP@R and P@1 against the number of dimensions kept",
    )


def _ends(intervals: Sequence[Interval]) -> tuple[list[float], list[float]]:
    """The lower ends of intervals, and the upper ones."""
    return [low for low, _ in intervals], [high for _, high in intervals]


def _divide(subject: Subject, section: AuditSection) -> _ClassDivision:
    everything = np.ones(len(subject.labels), dtype=bool)
    if subject.trained is not None:
        trained = subject.trained()
        if len(trained) >= 2:
            return _ClassDivision(trained, everything, f"{len(trained):,} other items, which the model was trained on")
    (codes,) = label_codes(subject.labels)
    classes = int(codes.max()) + 1
    if classes < _CLASSES:
        return _ClassDivision(None, everything, "")
    known = leave_classes_out(codes, np.arange(len(codes)), section.seed)
    count = len(np.unique(codes[known]))
    words = f"{count:,} of the {classes:,} classes, and both ways are measured on the other {classes - count:,}"
    return _ClassDivision(subject.embeddings[known], ~known, words)


def _curve(subject: Subject, section: AuditSection, division: _ClassDivision, embeddings: np.ndarray) -> SizeCurve:
    measured = division.measured
    gallery = None if subject.gallery is None else subject.gallery[measured]
    options: dict[str, Any] = {"space": subject.space, "resamples": section.resamples, "seed": section.seed}
    return size_curve(
        **asked_and_searched(embeddings[measured], subject.labels[measured], gallery),
        sizes=section.sizes or None,
        metrics=METRICS,
        progress=subject.progress,
        **options,
    )


def _add(found: SuiteResult, way: str, curve: SizeCurve) -> None:
    """Every size's values; the whole once, for both ways."""
    for metric in METRICS:
        whole = curve.sizes[-1]
        for place, size in enumerate(curve.sizes):
            name = _name(metric, "" if size == whole else way, size)
            found.values.setdefault(name, curve.values[metric][place])
            found.intervals.setdefault(name, curve.intervals[metric][place])
            found.per_class.setdefault(name, curve.results[place].per_class(metric))


def _notes(curves: dict[str, SizeCurve], division: _ClassDivision) -> list[str]:
    notes = []
    for way, curve in curves.items():
        whole, size = curve.sizes[-1], curve.smallest_within(_POINT)
        if size == whole:
            notes.append(
                f"Size: by {_in_words(way)}, no smaller size measured is sure to lose at most 1 point of MAP@R."
            )
            continue
        lost, low, high = curve.losses["MAP@R"][curve.sizes.index(size)]
        notes.append(
            f"Size: by {_in_words(way)}, {size} of {whole} dimensions are the fewest measured that lose at most 1 "
            f"point of MAP@R: {100 * lost:.1f} points, 95 % interval {100 * low:.1f} to {100 * high:.1f}."
        )
    if division.fitted is None:
        notes.append(f"Size: principal components need {_CLASSES} classes, half of them to be fitted on: left out.")
    else:
        notes.append(f"Size: principal components are fitted on {division.words}.")
        items, dimension = division.fitted.shape
        if items < dimension:
            notes.append(f"Size: directions beyond the {items:,}th are arbitrary, as no more items were fitted on.")
    return notes


def _name(metric: str, way: str, size: int) -> str:
    return f"{metric}, {way} {size}" if way else f"{metric}, all {size}"


def _in_words(way: str) -> str:
    return "first dimensions" if way == FIRST else "principal components"
