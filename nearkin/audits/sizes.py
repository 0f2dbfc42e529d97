"""Short embeddings: how many first dimensions or principal components suffice, measured and made."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearkin.audits.result import resampling
from nearkin.audits.subject import Subject, asked_and_searched, embed_items, leave_classes_out, training_rows
from nearkin.audits.suites import SuiteResult, suites
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError
from nearkin.metrics import SizeCurve, size_curve
from nearkin.metrics.labels import label_codes
from nearkin.models import Embedder, principal_components
from nearkin.models.shorten import check_shorter
from nearkin.recipe import AuditSection
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
_WORDS = {FIRST: "first dimensions", PCA: "principal components"}
METRICS = ("MAP@R", "P@1")
_CLASSES = 4
"""At least, if some are fitted on and others measured: two of each."""
_POINT = 0.01


@suites.register("size")
def size_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """MAP@R and P@1 of embeddings cut short, by size, and what each size loses against the whole.

    Two ways to cut: the first dimensions, which is what trained prefixes are for, and principal components. These are
    fitted on items that the model was trained on; where there are none, on half of the classes, and then both ways are
    measured on the other half.
    """
    check_turnable(subject.space)
    fitted, measured, words = _divide(subject, section)

    def curve_of(embeddings: np.ndarray) -> SizeCurve:
        gallery = None if subject.gallery is None else subject.gallery[measured]
        return size_curve(
            **asked_and_searched(embeddings[measured], subject.labels[measured], gallery),
            sizes=section.sizes or None,
            metrics=METRICS,
            progress=subject.progress,
            space=subject.space,
            **resampling(section),
        )

    curves = {FIRST: curve_of(subject.embeddings)}
    if fitted is not None:
        rotation = PrincipalRotation(subject.space).fit(fitted)
        curves[PCA] = curve_of(rotation.transform(subject.embeddings))
    found = SuiteResult(notes=_notes(curves, fitted, words), primary=_name("MAP@R", "", curves[FIRST].sizes[-1]))
    for way, curve in curves.items():
        for metric in METRICS:
            for place, size in enumerate(curve.sizes):
                name = _name(metric, "" if size == curve.sizes[-1] else way, size)
                if name not in found.values:  # the whole once, for both ways
                    per_class = curve.results[place].per_class(metric)
                    found.add(name, curve.values[metric][place], curve.intervals[metric][place], per_class)
    found.details["size"] = {
        **{way: curve.to_dict() for way, curve in curves.items()},
        "PCA fitted on": words,
        "smallest within a point of MAP@R": {way: curve.smallest_within(_POINT) for way, curve in curves.items()},
    }
    named = {_WORDS[way]: curve for way, curve in curves.items()}
    found.show(
        "How short may embeddings be?",
        "Retrieval by embeddings cut short, with 95 % intervals over classes and queries."
        + (f" Principal components are fitted on {words}." if PCA in curves else ""),
        "MAP@R and P@1 against the number of dimensions kept",
        draw_sizes,
        {metric: {way: (curve.sizes, curve.values[metric]) for way, curve in named.items()} for metric in METRICS},
        intervals={
            metric: {way: tuple(map(list, zip(*curve.intervals[metric], strict=True))) for way, curve in named.items()}
            for metric in METRICS
        },
        of="the audited classes",
    )
    return found


def _divide(subject: Subject, section: AuditSection) -> tuple[np.ndarray | None, np.ndarray, str]:
    """What to fit on (m, d) or None, which items are measured (n,), and what is fitted on, in words."""
    everything = np.ones(len(subject.labels), dtype=bool)
    if subject.trained is not None:
        trained = subject.trained()
        if len(trained) >= 2:
            return trained, everything, f"{len(trained):,} other items, which the model was trained on"
    (codes,) = label_codes(subject.labels)
    classes = int(codes.max()) + 1
    if classes < _CLASSES:
        return None, everything, ""
    known = leave_classes_out(codes, np.arange(len(codes)), section.seed)
    count = len(np.unique(codes[known]))
    words = f"{count:,} of the {classes:,} classes, and both ways are measured on the other {classes - count:,}"
    return subject.embeddings[known], ~known, words


def _notes(curves: dict[str, SizeCurve], fitted: np.ndarray | None, words: str) -> list[str]:
    notes = []
    for way, curve in curves.items():
        whole, size = curve.sizes[-1], curve.smallest_within(_POINT)
        if size == whole:
            notes.append(f"Size: by {_WORDS[way]}, no smaller size measured is sure to lose at most 1 point of MAP@R.")
            continue
        lost, low, high = curve.losses["MAP@R"][curve.sizes.index(size)]
        notes.append(
            f"Size: by {_WORDS[way]}, {size} of {whole} dimensions are the fewest measured that lose at most 1 "
            f"point of MAP@R: {100 * lost:.1f} points, 95 % interval {100 * low:.1f} to {100 * high:.1f}."
        )
    if fitted is None:
        notes.append(f"Size: principal components need {_CLASSES} classes, half of them to be fitted on: left out.")
    else:
        notes.append(f"Size: principal components are fitted on {words}.")
        items, dimension = fitted.shape
        if items < dimension:
            notes.append(f"Size: directions beyond the {items:,}th are arbitrary, as no more items were fitted on.")
    return notes


def _name(metric: str, way: str, size: int) -> str:
    return f"{metric}, {way} {size}" if way else f"{metric}, all {size}"
