"""The classification suite: can items be named by the nearest centroid, or by a vote of their neighbours?"""

from __future__ import annotations

from functools import partial

import numpy as np

from nearkin.audits.learned_similarity import own_classifiers
from nearkin.audits.result import resampling
from nearkin.audits.subject import Subject, asked_and_searched
from nearkin.audits.suites import SuiteResult, suites
from nearkin.metrics import class_bootstrap
from nearkin.metrics.classification import MEASURES, ClassificationResult, Confusion, classification_metrics
from nearkin.recipe import AuditSection
from nearkin.report import Figure
from nearkin.report.bars import draw_f1
from nearkin.report.grid import ConfusedPair, draw_confusions
from nearkin.search import exact
from nearkin.spaces import Space, Sphere

_PAIRS = 10
_THUMBNAIL = 224


def draw_confused(subject: Subject, result: ClassificationResult) -> Figure:
    """The commonest confusions of the vote of most neighbours, with an example of each where there are images."""
    classifier = result.classifiers[-1]
    pairs = result.confusions(classifier, _PAIRS)
    shown = "" if subject.picture is None else ": left such an item, right the nearest of those it is taken for"
    return Figure(
        "Commonest confusions",
        f"Of all items of a class, how many {classifier} takes for another{shown}.",
        draw_confusions([_pair(subject, result, classifier, pair) for pair in pairs]),
        "Table of true class, predicted class and rate",
    )


def _pair(subject: Subject, result: ClassificationResult, classifier: str, pair: Confusion) -> ConfusedPair:
    if subject.picture is None:
        return ConfusedPair(*pair)
    asked, known = subject.asked[result.rows], subject.searched[result.reference_rows]
    confused = (result.labels.astype(str) == pair.true) & (result.predictions[classifier].astype(str) == pair.predicted)
    item = asked[np.argmax(confused)]
    others = known[subject.labels[known].astype(str) == pair.predicted]
    _, near = exact(subject.embeddings[item][None], subject.embeddings[others], 1, space=subject.space)
    return ConfusedPair(*pair, *(subject.thumbnail(row, _THUMBNAIL) for row in (item, others[int(near[0, 0])])))


_MACRO, _ACCURACY = MEASURES


@suites.register("classification")
def classification_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """Macro F1 and accuracy of the nearest centroid and of votes, F1 of each class, and the commonest confusions.

    Half of each class, or the published gallery, is the reference; the other half is classified. A model with a
    learned similarity that was trained on these classes also names that half by its own prototypes and dense layer.
    """
    result = _classify(subject, subject.embeddings, subject.space, section)
    # Of the macro F1 classes are drawn, of the accuracy classes and then their items.
    options = resampling(section)
    right = {f"{_ACCURACY}, {name}": chosen == result.labels for name, chosen in result.predictions.items()}
    scores = {f"{_MACRO}, {name}": list(values.values()) for name, values in result.f1.items()}
    classes = list(next(iter(result.f1.values())))
    found = SuiteResult(
        dict(result.values),
        class_bootstrap(scores, classes, **options) | class_bootstrap(right, result.labels, **options),
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
        found.include(own_classifiers(subject, subject.learned, result, section))
    first, *others = result.classifiers
    told = f"{first} in black, {', '.join(others)} in grey" if others else first
    found.show(
        "F1 by class",
        f"How well the items of each class are named ({told}), classes sorted. F1 is high only if the class's items "
        "are found and no others are taken for them.",
        "F1 of each class as dots, by classifier",
        draw_f1,
        result.f1,
    )
    found.drawings.append(partial(draw_confused, subject, result))
    return found


def _classify(subject: Subject, embeddings: np.ndarray, space: Space, section: AuditSection) -> ClassificationResult:
    sides = asked_and_searched(embeddings, subject.labels, subject.gallery)
    return classification_metrics(
        sides["embeddings"],
        sides["labels"],
        reference=sides.get("gallery"),
        reference_labels=sides.get("gallery_labels"),
        k=section.classification_k,
        space=space,
        seed=section.seed,
    )


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
