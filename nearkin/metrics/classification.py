"""Classification by the nearest centroid or a vote of the k nearest, and the mean error on corrupted inputs.

Of a class with `TP` items found, `FP` items of others taken for it and `FN` of its own missed,
`F1 = 2 TP / (2 TP + FP + FN)`; the macro F1 is its mean over classes.

Mean corruption error: how often a model errs on corrupted inputs, corruption by corruption, against a reference.
Reference: Hendrycks, Dietterich 2019, Benchmarking neural network robustness to common corruptions and perturbations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import check_whole
from nearkin.errors import DataError, suggestion
from nearkin.metrics.checks import as_plain, ascending_ks
from nearkin.metrics.labels import class_names, halves, label_array, label_codes
from nearkin.search import Scorer, as_scorer, as_vectors, exact
from nearkin.search.order import candidate_distances
from nearkin.spaces import Space, Sphere

CENTROID = "centroid"
MEASURES = ("macro F1", "accuracy")
_SPHERE = Sphere()


class Confusion(NamedTuple):
    """A class, another that its items were taken for, and the share of its evaluation items that were."""

    true: str
    predicted: str
    rate: float


@dataclass(frozen=True, eq=False)
class ClassificationResult:
    """How well an embedding classifies. Classifiers are called "centroid", "10-NN" and so on.

    Attributes:
        values: "macro F1, centroid", "accuracy, 10-NN", ... to their values in [0, 1], higher is better.
        f1: classifier to the F1 of each evaluated class, by class name.
        precision: the same of precision, 0 for a class that nothing was taken for.
        recall: the same of recall.
        predictions: classifier to the predicted labels (q,).
        labels: the true labels (q,).
        rows: which of the embeddings were evaluated, int64 (q,), ascending.
        reference_rows: which of the embeddings, or of the given reference, they were compared with, int64 (r,).
        radii: class name to the mean distance of its evaluated items from the centroid of its reference.
        notes: what a reader must know.
    """

    values: dict[str, float]
    f1: dict[str, dict[str, float]] = field(repr=False)
    precision: dict[str, dict[str, float]] = field(repr=False)
    recall: dict[str, dict[str, float]] = field(repr=False)
    predictions: dict[str, np.ndarray] = field(repr=False)
    labels: np.ndarray = field(repr=False)
    rows: np.ndarray = field(repr=False)
    reference_rows: np.ndarray = field(repr=False)
    radii: dict[str, float] = field(repr=False)
    notes: list[str] = field(default_factory=list)

    higher_is_better = True

    @property
    def classifiers(self) -> list[str]:
        """Their names, the centroid first."""
        return list(self.predictions)

    def confusions(self, classifier: str, top: int = 10) -> list[Confusion]:
        """The commonest mistakes, by their rate among the evaluated items of the true class, then by name.

        Args:
            classifier: such as "centroid" or "10-NN".
            top: how many at the most.
        """
        if classifier not in self.predictions:
            raise DataError(f"There is no classifier '{classifier}' here.{suggestion(classifier, self.predictions)}")
        truth, predicted = label_codes(self.labels, self.predictions[classifier])
        names = class_names(np.concatenate([self.labels, self.predictions[classifier]]), np.append(truth, predicted))
        wrong = np.stack([truth, predicted])[:, truth != predicted]
        pairs, counts = np.unique(wrong, axis=1, return_counts=True)
        rates = counts / np.bincount(truth, minlength=len(names))[pairs[0]]
        found = [Confusion(names[a], names[b], rate) for (a, b), rate in zip(pairs.T, rates.tolist(), strict=True)]
        return sorted(found, key=lambda one: (-one.rate, one.true, one.predicted))[:top]

    def to_dict(self, top: int = 10) -> dict[str, Any]:
        """Plain JSON values: all but the predictions, of which the `top` commonest confusions stay."""
        per_class = {"F1": self.f1, "precision": self.precision, "recall": self.recall}
        plain = {
            "values": self.values,
            "per_class": {name: {kind: per_class[kind][name] for kind in per_class} for name in self.classifiers},
            "confusions": {name: self.confusions(name, top) for name in self.classifiers},
            "radii": self.radii,
        }
        return as_plain(
            plain | {"evaluated": len(self.rows), "reference": len(self.reference_rows), "notes": self.notes}
        )


def classification_metrics(
    embeddings: Any,
    labels: Any,
    *,
    reference: Any | None = None,
    reference_labels: Any | None = None,
    k: Sequence[int] | np.ndarray = (10,),
    space: Any = _SPHERE,
    seed: int = 0,
) -> ClassificationResult:
    """Classify embeddings by the nearest centroid and by a vote of the k nearest reference items.

    Without a reference each class is halved by the seed: one half is known, the other is classified; of an odd number
    of items the reference has one more. Classes with a single item are then left out. Of classes with equal votes the
    one with the nearest item wins.

    Reference: Malde and Kim 2019 (Kim 2023, article I), section 2.4.

    Args:
        embeddings: points of the space (n, d), array or tensor.
        labels: n labels of any hashable kind.
        reference: points (r, d) whose classes are known; needs `reference_labels`. All embeddings are then classified,
            except those of classes that the reference does not have.
        reference_labels: r labels.
        k: how many neighbours vote, one classifier for each; those beyond the reference's size are left out.
        space: a space, its name, or any scorer as for `nearkin.search.exact`; one without a mean has no centroids.
        seed: of the halves, a whole number from 0 up.
    """
    if not (isinstance(k, Sequence) or (isinstance(k, np.ndarray) and k.ndim == 1)):
        raise DataError(f"k must be a list of whole numbers, such as [1, 10], not {k!r}.")
    scorer, ks = as_scorer(space), ascending_ks(k, "k-NN")
    check_whole(seed, "seed", 0)
    division = _divide(as_vectors(embeddings), labels, reference, reference_labels, int(seed))
    predicted: dict[str, np.ndarray] = {}
    distances = np.empty(0)
    notes = division.notes
    if isinstance(scorer, Space):
        grouped = torch.from_numpy(np.argsort(division.codes, kind="stable"))
        members = division.points[grouped].split(np.bincount(division.codes).tolist())
        centroids = torch.stack([scorer.mean(points) for points in members])
        predicted[CENTROID] = exact(division.queries, centroids, 1, space=scorer)[1][:, 0].cpu().numpy()
        own = torch.from_numpy(division.truth).to(centroids.device)[:, None]
        distances = candidate_distances(scorer, division.queries, centroids, own)[:, 0].cpu().numpy()
    else:
        notes.append("The space has no mean, so there are no centroids to classify by.")
    predicted |= _votes(scorer, division, ks)
    if not predicted:
        raise DataError(
            f"There is nothing to classify by: pass k of at most {len(division.codes):,}, the size of the reference, "
            "or a space that has a mean."
        )
    return _result(division, predicted, distances)


class _Division(NamedTuple):
    """Who is classified by whom; classes are numbered in the order in which the reference has them."""

    queries: Tensor  # (q, d)
    truth: np.ndarray  # their classes (q,) int64
    points: Tensor  # the reference (r, d)
    codes: np.ndarray  # its classes (r,) int64
    labels: np.ndarray  # the label of each class (C,)
    names: list[str]  # how these are spelt (C,)
    rows: np.ndarray  # the place of each query among the embeddings (q,)
    reference_rows: np.ndarray  # the place of each point among the embeddings, or in the reference that was given (r,)
    notes: list[str]  # what was left out


def _divide(vectors: Tensor, given: Any, reference: Any | None, reference_labels: Any | None, seed: int) -> _Division:
    if (reference is None) != (reference_labels is None):
        raise DataError("reference and reference_labels go together: pass both or neither.")
    labels = label_array(given, len(vectors))
    notes: list[str] = []
    if reference is None:
        points, point_labels = vectors, labels
        known, asked = _halved(labels, seed, notes)
    else:
        points = as_vectors(reference, "reference").to(vectors.device)
        if points.shape[1] != vectors.shape[1]:
            raise DataError(
                f"The embeddings have {vectors.shape[1]} dimensions and the reference has {points.shape[1]}: they must "
                "agree."
            )
        point_labels = label_array(reference_labels, len(points), "reference labels", "reference items")
        known, asked = np.arange(len(points)), np.arange(len(vectors))
    truth, codes = _by_appearance(*label_codes(labels[asked], point_labels[known]))
    if (strangers := int((truth < 0).sum())) > 0:
        notes.append(f"Left out for being of classes that the reference does not have: {strangers:,} items.")
        asked, truth = asked[truth >= 0], truth[truth >= 0]
    if not len(asked):
        raise DataError("No item is left to classify: pass items of classes that are in the reference.")
    if codes.max() == 0:
        others = f" ({notes[0][:-1].lower()})" if notes and reference is None else ""
        raise DataError(f"Classification needs at least two classes, but the reference has one{others}.")
    named = point_labels[known]
    classes = named[np.unique(codes, return_index=True)[1]]
    queries, points = vectors[torch.from_numpy(asked)], points[torch.from_numpy(known)]
    return _Division(queries, truth, points, codes, classes, class_names(named, codes), asked, known, notes)


def _halved(labels: np.ndarray, seed: int, notes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the reference and of what is classified, ascending."""
    (codes,) = label_codes(labels)
    sizes = np.bincount(codes)
    if not (sizes > 1).any():
        raise DataError("No class has two items: each class needs at least two, one as reference and one to classify.")
    if alone := int((sizes == 1).sum()):
        notes.append(f"Left out for having a single item: {alone:,} {'class' if alone == 1 else 'classes'}.")
    known, asked = halves(labels, seed)
    return known[sizes[codes[known]] > 1], asked


def _by_appearance(truth: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both codes anew, from 0 in the order of the second; -1 for classes that it does not have.

    Equal distances go by the lower number: it must not depend on how classes are called.
    """
    present, first = np.unique(codes, return_index=True)
    place = np.full(max(truth.max(initial=0), codes.max(initial=0)) + 1, -1)
    place[present[np.argsort(first)]] = np.arange(len(present))
    return place[truth], place[codes]


def _votes(scorer: Scorer, division: _Division, ks: Sequence[int]) -> dict[str, np.ndarray]:
    """Classifier to the classes (q,) that most of the k nearest have: one search for all k."""
    known = len(division.codes)
    if beyond := [f"{k}-NN" for k in ks if k > known]:
        division.notes.append(f"Left out, as there are only {known:,} reference items: {', '.join(beyond)}.")
    ks = [k for k in ks if k <= known]
    if not ks:
        return {}
    _, near = exact(division.queries, division.points, max(ks), space=scorer)
    neighbours = division.codes[near.cpu().numpy()]
    rows = np.arange(len(neighbours))
    votes = {}
    for k in ks:
        cells = rows[:, None] * (neighbours.max() + 1) + neighbours[:, :k]
        _, place, counts = np.unique(cells, return_inverse=True, return_counts=True)
        # The first of the commonest, which is the class of the nearest item.
        votes[f"{k}-NN"] = neighbours[rows, counts[place.reshape(cells.shape)].argmax(axis=1)]
    return votes


def _result(division: _Division, predicted: dict[str, np.ndarray], distances: np.ndarray) -> ClassificationResult:
    truth, size = division.truth, len(division.names)
    asked = np.bincount(truth, minlength=size)
    evaluated = sorted(np.flatnonzero(asked), key=lambda code: division.names[code])

    def named(values: np.ndarray) -> dict[str, float]:
        return {division.names[code]: float(values[code]) for code in evaluated}

    f1, precision, recall = {}, {}, {}
    values: dict[str, float] = {}
    for classifier, guesses in predicted.items():
        found = np.bincount(truth[guesses == truth], minlength=size)
        taken = np.bincount(guesses, minlength=size)
        f1[classifier] = named(2 * found / np.maximum(asked + taken, 1))
        precision[classifier] = named(found / np.maximum(taken, 1))
        recall[classifier] = named(found / np.maximum(asked, 1))
        scores = (float(np.mean(list(f1[classifier].values()))), float((guesses == truth).mean()))
        values |= {f"{measure}, {classifier}": score for measure, score in zip(MEASURES, scores, strict=True)}
    means = np.bincount(truth, weights=distances, minlength=size) / np.maximum(asked, 1) if len(distances) else None
    radii = {} if means is None else named(means)
    guessed = {classifier: division.labels[guesses] for classifier, guesses in predicted.items()}
    labels, rows, known = division.labels[truth], division.rows, division.reference_rows
    return ClassificationResult(values, f1, precision, recall, guessed, labels, rows, known, radii, division.notes)


def mean_corruption_error(errors: Any, reference: Any | None = None) -> float:
    """mCE: for each corruption the errors summed over severities, over those of a reference model; then the mean.

    Args:
        errors: shares of 1 (corruptions, severities).
        reference: errors of the reference in the same cells; None: nothing is divided by, and it is the mean error.
    """
    own = _cells(errors)
    return float(own.mean()) if reference is None else _mean_ratio(own, _cells(reference))


def relative_corruption_error(errors: Any, clean: float, reference: Any, reference_clean: float) -> float:
    """Relative mCE: the same of what corruption adds to the clean error.

    Args:
        errors: shares of 1 (corruptions, severities).
        clean: error on clean inputs.
        reference: errors of the reference in the same cells.
        reference_clean: its error on clean inputs.
    """
    return _mean_ratio(_cells(errors) - clean, _cells(reference) - reference_clean)


def _mean_ratio(own: np.ndarray, theirs: np.ndarray) -> float:
    """The mean over corruptions of ratios of sums over severities; NaN where one of the reference is not above 0."""
    if own.shape != theirs.shape:
        raise DataError(f"Errors {own.shape} and those of the reference {theirs.shape} must have the same shape.")
    above, below = own.sum(axis=1), theirs.sum(axis=1)
    return float(np.mean(above / below)) if (below > 0).all() else float("nan")


def _cells(errors: Any) -> np.ndarray:
    found = np.asarray(errors, dtype=np.float64)
    if found.ndim != 2 or not found.size:
        raise DataError(f"Errors are a table (corruptions, severities), not of shape {found.shape}.")
    return found
