"""The classification suite: can items be named by the nearest centroid, or by a vote of their neighbours?"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from nearkin.audits.classification_pictures import draw_class_scores, draw_confused
from nearkin.audits.learned import DOL, NEAREST_MEAN, SIM, own_classifiers
from nearkin.audits.subject import Subject
from nearkin.audits.suites import SuiteResult, suites
from nearkin.metrics import class_bootstrap
from nearkin.metrics.classification import MEASURES, ClassificationResult, classification_metrics
from nearkin.models.similarity_model import SimilarityModel
from nearkin.recipe import AuditSection
from nearkin.spaces import Space, Sphere

_MACRO, _ACCURACY = MEASURES


@suites.register("classification")
def classification_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """Macro F1 and accuracy of the nearest centroid and of votes, F1 of each class, and the commonest confusions.

    Half of each class, or the published gallery, is the reference; the other half is classified. A model with a
    learned similarity that was trained on these classes also names that half by its own prototypes and dense layer.
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
    if subject.learned is not None:
        _add_own(found, subject, subject.learned, result, section)
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


def _add_own(
    found: SuiteResult,
    subject: Subject,
    learned: SimilarityModel,
    result: ClassificationResult,
    section: AuditSection,
) -> None:
    """What the model's own classifiers say of the same items, beside the nearest mean; nothing of unseen classes."""
    own = own_classifiers(subject, learned, result, section)
    if own is None:
        found.notes.append(
            f"Classification by the model's own prototypes ({SIM}) and dense layer ({DOL}) is left out: these know the "
            "classes that trained, and not all of those that are audited."
        )
        return
    found.values.update(own.values)
    found.intervals.update(own.intervals)
    found.per_class.update(own.per_class)
    found.notes.append(
        f"Classification: {SIM} is by the model's own prototypes, {DOL} by its dense layer, and {NEAREST_MEAN} by the "
        f"distance of the embeddings to the means of {own.means}; all name the same items."
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
