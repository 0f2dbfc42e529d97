"""The pictures of classification: F1 class by class, and what is taken for what."""

from __future__ import annotations

import numpy as np
from PIL import Image

from nearkin.audits.subject import Subject
from nearkin.metrics.classification import ClassificationResult, Confusion
from nearkin.report import Figure
from nearkin.report.confusions import ConfusedPair, draw_confusions
from nearkin.report.f1 import draw_f1
from nearkin.search import exact

_PAIRS = 10
_THUMBNAIL = 224


def draw_class_scores(result: ClassificationResult) -> Figure:
    """The F1 of each class, of all classifiers."""
    first, *others = result.classifiers
    told = f"{first} in black, {', '.join(others)} in grey" if others else first
    return Figure(
        "F1 by class",
        f"How well the items of each class are named ({told}), classes sorted. F1 is high only if the class's items "
        "are found and no others are taken for them.",
        draw_f1(result.f1),
        "F1 of each class as dots, by classifier",
    )


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
    every = np.arange(len(subject.labels))
    asked, known = (every, every) if subject.gallery is None else (every[~subject.gallery], every[subject.gallery])
    asked, known = asked[result.rows], known[result.reference_rows]
    confused = (result.labels.astype(str) == pair.true) & (result.predictions[classifier].astype(str) == pair.predicted)
    item = asked[np.argmax(confused)]
    others = known[subject.labels[known].astype(str) == pair.predicted]
    _, near = exact(subject.embeddings[item][None], subject.embeddings[others], 1, space=subject.space)
    return ConfusedPair(*pair, _thumbnail(subject, item), _thumbnail(subject, others[int(near[0, 0])]))


def _thumbnail(subject: Subject, row: int) -> Image.Image:
    assert subject.picture is not None
    image = subject.picture(int(row)).convert("RGB")
    image.thumbnail((_THUMBNAIL, _THUMBNAIL), Image.Resampling.LANCZOS)
    return image
