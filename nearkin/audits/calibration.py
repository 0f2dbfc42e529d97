"""The calibration suite: can a confidence be read as a probability, and are unknown classes told from known ones?"""

from __future__ import annotations

from functools import partial

import numpy as np

from nearkin.audits.confidence_pictures import draw_confidence, draw_strangers
from nearkin.audits.division import divide, leave_classes_out
from nearkin.audits.subject import Subject
from nearkin.audits.suites import SuiteResult, suites
from nearkin.confidence import NED, DudaniVote, GouVote, KNNVote, NearestNeighbour, NeighbourEstimator, unknown_scores
from nearkin.confidence.evaluation import USUAL_KS, best_k, evaluate, sweep_k
from nearkin.confidence.prototypes import PrototypeEstimator, PrototypeRatio, PrototypeSoftmax
from nearkin.confidence.sharpened import SharpNED
from nearkin.errors import DataError
from nearkin.metrics import CalibrationResult, OpenSetResult, open_set_metrics
from nearkin.recipe import AuditSection
from nearkin.spaces import Space, Sphere

Estimator = NeighbourEstimator | PrototypeEstimator

OURS = "NED"
_NUMBERS = ("NLL", "Brier")


@suites.register("calibration")
def calibration_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """Accuracy, ECE, NLL and more of NED, beside votes and prototypes; AUROC of telling unknown classes.

    Half of each class is the support, the other half asks. For unknown classes, half of the classes have no support.
    """
    support, queries = divided(subject, section.seed)
    fitted = fit_estimators(subject.embeddings[support], subject.labels[support], subject.space)
    x, truth = subject.embeddings[queries], subject.labels[queries]
    results = {
        name: evaluate(estimator.predict(x), truth, resamples=section.resamples, seed=section.seed)
        for name, estimator in fitted.items()
    }
    strangers = tell_strangers(subject, support, queries, section.seed)
    found = SuiteResult(
        dict(results[OURS].values),
        dict(results[OURS].intervals),
        notes=_notes(fitted, len(support), len(queries)),
        lower_is_better=(*results[OURS].lower_is_better, *(f"ECE, {name}" for name in results if name != OURS)),
        numbers=_NUMBERS,
        per_class={"accuracy": _by_class(fitted[OURS], x, truth)},
        details={"calibration": {name: result.to_dict() for name, result in results.items()}},
    )
    for name, result in results.items():
        if name != OURS:
            found.values.update({f"{metric}, {name}": result.values[metric] for metric in ("accuracy", "ECE")})
            found.intervals.update({f"{metric}, {name}": result.intervals[metric] for metric in ("accuracy", "ECE")})
    found.values.update({f"unknown AUROC, {name}": result.values["AUROC"] for name, result in strangers.items()})
    found.details["unknown"] = {name: result.to_dict() for name, result in strangers.items()}
    if subject.baseline is not None:
        found.baseline.update(_baseline(subject, support, queries))
    sweep = _sweep(fitted, subject, support, queries)
    found.drawings.extend(partial(draw, results, sweep) for draw in draw_confidence)
    found.drawings.append(partial(draw_strangers, strangers))
    return found


def divided(subject: Subject, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the support and of the queries, if there are enough of both to fit and to ask."""
    support, queries = divide(subject, seed)
    sizes = np.unique(subject.labels[support], return_counts=True)[1] if len(support) else np.zeros(1)
    if not len(queries) or sizes.max() < 2:
        raise DataError(
            "Calibration needs classes with three items or more: two for the support, to fit a temperature, and one to "
            "ask with."
        )
    return support, queries


def fit_estimators(support: np.ndarray, labels: np.ndarray, space: Space) -> dict[str, Estimator]:
    """NED and what it is compared with, fitted; the votes with the k that does best on the support itself."""
    votes: dict[str, NeighbourEstimator] = {
        "kNN": KNNVote(space=space),
        "WkNN (Dudani)": DudaniVote(space=space),
        "WkNN (Gou)": GouVote(space=space),
    }
    chosen: dict[str, Estimator] = {"1NN": NearestNeighbour(space=space)}
    for name, vote in votes.items():
        chosen[name] = vote.with_k(best_k(vote, support, labels))
    chosen |= {
        OURS: NED(space=space),
        "NED, sharpened": SharpNED(space=space),
        "prototypes (softmax)": PrototypeSoftmax(space=space),
        "prototypes (ratio)": PrototypeRatio(space=space),
    }
    for estimator in chosen.values():
        estimator.fit(support, labels)
    return chosen


def tell_strangers(subject: Subject, support: np.ndarray, queries: np.ndarray, seed: int) -> dict[str, OpenSetResult]:
    """How well each score tells queries of classes that have no support, when that is a random half of them."""
    known_support = leave_classes_out(subject.labels, support, seed)
    kept = support[known_support]
    known = np.isin(subject.labels[queries], subject.labels[kept])
    ned = NED(space=subject.space).fit(subject.embeddings[kept], subject.labels[kept])
    predicted = ned.predict(subject.embeddings[queries])
    correct = predicted.labels == subject.labels[queries]
    return {name: open_set_metrics(unknown_scores.get(name)(ned, predicted), known, correct) for name in unknown_scores}


def _notes(fitted: dict[str, Estimator], support: int, queries: int) -> list[str]:
    ned = fitted[OURS]
    assert isinstance(ned, NED)
    votes = {name: vote for name, vote in fitted.items() if type(vote) in (KNNVote, DudaniVote, GouVote)}
    ks = ", ".join(f"{name} {vote.k}" for name, vote in votes.items() if isinstance(vote, NeighbourEstimator))
    return [
        f"Calibration: {support:,} support items, {queries:,} queries of the same classes; NED has the temperature "
        f"{ned.temperature_:.4g}, fitted on the support alone, and the votes the k that does best there ({ks}).",
        "Unknown classes: a random half of the classes has no support, and their queries should be refused.",
        *ned.notes_,
    ]


def _by_class(ned: Estimator, queries: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    correct = ned.predict(queries).labels == truth
    return {str(name): float(correct[truth == name].mean()) for name in np.unique(truth)}


def _baseline(subject: Subject, support: np.ndarray, queries: np.ndarray) -> dict[str, float]:
    assert subject.baseline is not None
    ned = NED(space=Sphere()).fit(subject.baseline[support], subject.labels[support])
    return evaluate(ned.predict(subject.baseline[queries]), subject.labels[queries]).values


def _sweep(
    fitted: dict[str, Estimator], subject: Subject, support: np.ndarray, queries: np.ndarray
) -> dict[str, dict[int, CalibrationResult]]:
    neighbours = {name: estimator for name, estimator in fitted.items() if isinstance(estimator, NeighbourEstimator)}
    x, labels = subject.embeddings, subject.labels
    return sweep_k(neighbours, x[support], labels[support], x[queries], labels[queries], ks=USUAL_KS)
