"""The classification suite: can items be named by the nearest centroid, or by a vote of their neighbours?"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from nearkin.audits.classification_pictures import draw_class_scores, draw_confused
from nearkin.audits.subject import Subject
from nearkin.audits.suites import SuiteResult, suites
from nearkin.metrics import class_bootstrap
from nearkin.metrics.classification import MEASURES, ClassificationResult, classification_metrics
from nearkin.recipe import AuditSection
from nearkin.spaces import Space, Sphere

_MACRO, _ACCURACY = MEASURES


@suites.register("classification")
def classification_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """Macro F1 and accuracy of the nearest centroid and of votes, F1 of each class, and the commonest confusions.

    Half of each class, or the published gallery, is the reference; the other half is classified.
    """
    result = _classify(subject, subject.embeddings, subject.space, section)
    found = SuiteResult(
        dict(result.values),
        _intervals(result, section),
        notes=_notes(subject, result),
        details={"classification": {**result.to_dict(), "seen": dict(subject.seen)}},
    )
    for classifier in result.classifiers:
        # The mean of right and wrong inside a class is its recall.
        found.per_class[f"{_MACRO}, {classifier}"] = result.f1[classifier]
        found.per_class[f"{_ACCURACY}, {classifier}"] = result.recall[classifier]
    if subject.baseline is not None:
        found.baseline.update(_classify(subject, subject.baseline, Sphere(), section).values)
    found.drawings.extend([partial(draw_class_scores, result), partial(draw_confused, subject, result)])
    return found


def _classify(subject: Subject, embeddings: np.ndarray, space: Space, section: AuditSection) -> ClassificationResult:
    options: dict[str, Any] = {"k": section.classification_k, "space": space, "seed": section.seed}
    if subject.gallery is None:
        return classification_metrics(embeddings, subject.labels, **options)
    asked, known = ~subject.gallery, subject.gallery
    return classification_metrics(
        embeddings[asked],
        subject.labels[asked],
        reference=embeddings[known],
        reference_labels=subject.labels[known],
        **options,
    )


def _intervals(result: ClassificationResult, section: AuditSection) -> dict[str, tuple[float, float]]:
    """Of the macro F1 classes are drawn, of the accuracy classes and then their items."""
    options: dict[str, Any] = {"resamples": section.resamples, "seed": section.seed}
    right = {f"{_ACCURACY}, {name}": found == result.labels for name, found in result.predictions.items()}
    scores = {f"{_MACRO}, {name}": list(values.values()) for name, values in result.f1.items()}
    classes = list(next(iter(result.f1.values())))
    return class_bootstrap(scores, classes, **options) | class_bootstrap(right, result.labels, **options)


def _notes(subject: Subject, result: ClassificationResult) -> list[str]:
    whose = "the published gallery" if subject.gallery is not None else "half of each class, drawn by the seed"
    notes = [
        f"Classification: {len(result.rows):,} items are named by {len(result.reference_rows):,} of known class, "
        f"{whose}."
    ]
    if subject.seen:
        trained, validated = (list(subject.seen.values()).count(role) for role in ("train", "val"))
        notes.append(
            f"Classification: {trained} of these {len(set(subject.labels))} classes trained the model and {validated} "
            "chose its weights; the JSON file beside the report lists them."
        )
    return [*notes, *(f"Classification: {note[0].lower()}{note[1:]}" for note in result.notes)]
