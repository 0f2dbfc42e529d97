"""The calibration suite: can a confidence be read as a probability, and are unknown classes told from known ones?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nearkin.audits.result import resampling
from nearkin.audits.subject import Subject, divide, leave_classes_out
from nearkin.audits.suites import SuiteResult, suites
from nearkin.confidence import (
    NED,
    DudaniVote,
    Estimator,
    GouVote,
    KNNVote,
    NearestNeighbour,
    NeighbourEstimator,
    PrototypeRatio,
    PrototypeSoftmax,
    SharpNED,
    best_k,
    evaluate,
    sweep_k,
    unknown_scores,
)
from nearkin.errors import DataError
from nearkin.metrics import CalibrationResult, OpenSetResult, open_set_metrics
from nearkin.metrics.calibration import class_table
from nearkin.metrics.labels import label_codes
from nearkin.recipe import AuditSection
from nearkin.report import draw_rejection, draw_reliability, draw_risk_coverage, draw_sensitivity
from nearkin.spaces import Space, Sphere

OURS, PAPERS = "NED", "NED (likelihood)"
AS_PUBLISHED: dict[str, Any] = {"criterion": "likelihood", "widening": 0.0}
_NUMBERS = ("NLL", "Brier")
_SHOWN = ("accuracy", "ECE")
"""What is told of the estimators that NED is compared with; the rest is in the details."""


def tables_of(fitted: Mapping[str, Estimator], queries: np.ndarray, truth: np.ndarray) -> dict[str, np.ndarray]:
    """Every estimator's answers to queries as a class table (C, bins, 3)."""
    (codes,) = label_codes(np.asarray(truth))
    found = {}
    for name, estimator in fitted.items():
        predicted = estimator.predict(queries)
        found[name] = class_table(predicted.confidence, predicted.labels == truth, codes)
    return found


@suites.register("calibration")
def calibration_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """Accuracy, ECE, NLL and more of NED, beside votes and prototypes; AUROC of telling unknown classes.

    Half of each class is the support, the other half asks. For unknown classes, half of the classes have no support.
    """
    support, queries = divided(subject, section.seed)
    fitted = fit_estimators(subject.embeddings[support], subject.labels[support], subject.space)
    x, truth = subject.embeddings[queries], subject.labels[queries]
    predicted = {name: estimator.predict(x) for name, estimator in fitted.items()}
    results = {name: evaluate(prediction, truth, **resampling(section)) for name, prediction in predicted.items()}
    correct = predicted[OURS].labels == truth
    found = SuiteResult(
        notes=_notes(fitted, len(support), len(queries)),
        numbers=tuple(f"{metric}, {OURS}" for metric in _NUMBERS),
        lower_is_better=tuple(f"{metric}, {name}" for name in results for metric in CalibrationResult.lower_is_better),
        per_class={f"accuracy, {OURS}": {str(name): float(correct[truth == name].mean()) for name in np.unique(truth)}},
        details={
            "calibration": {name: _without_curves(result) for name, result in results.items()},
            "fit": _fit(fitted[OURS]),
        },
    )
    for name in sorted(results, key=lambda name: name != OURS):
        for metric, value in results[name].values.items():
            if name == OURS or metric in _SHOWN:
                found.add(f"{metric}, {name}", value, results[name].intervals[metric])
    if subject.baseline is not None:
        ned = NED(space=Sphere()).fit(subject.baseline[support], subject.labels[support])
        values = evaluate(ned.predict(subject.baseline[queries]), truth).values
        found.baseline.update({f"{metric}, {OURS}": value for metric, value in values.items()})
    neighbours = {name: chosen for name, chosen in fitted.items() if isinstance(chosen, NeighbourEstimator)}
    sweep = sweep_k(neighbours, subject.embeddings[support], subject.labels[support], x, truth)
    _show_results(found, results, sweep)
    _add_strangers(found, tell_strangers(subject, support, queries, section.seed, section.resamples))
    return found


def _show_results(
    found: SuiteResult,
    results: Mapping[str, CalibrationResult],
    sweep: Mapping[str, Mapping[int, CalibrationResult]],
) -> None:
    """Pictures of all estimators: reliability, risk against coverage, and what k does to them."""
    curves = {name: result.reliability for name, result in results.items()}
    found.show(
        "Reliability",
        "Queries in bins of like confidence: how often the answer is right beside how sure it was. On the diagonal a "
        "confidence of 80 % means right in 80 of 100; below, the share of queries in each "
        "bin, each panel on its own scale.",
        "Reliability diagrams of all estimators",
        draw_reliability,
        {name: (curve.edges, curve.counts, curve.confidence, curve.accuracy) for name, curve in curves.items()},
        errors={name: result.values["ECE"] for name, result in results.items()},
    )
    found.show(
        "Risk and coverage",
        "If only the surest answers are given, how many of them are wrong: the lower a curve stays, the better its "
        "confidence orders right before wrong.",
        "Error among the answered queries against the share of queries answered",
        draw_risk_coverage,
        {name: result.risk_coverage for name, result in results.items()},
        areas={name: result.values["AURC"] for name, result in results.items()},
    )
    ks = sorted({k for by_k in sweep.values() for k in by_k})
    accuracy, ece = (
        {name: np.array([by_k[k].values[metric] if k in by_k else np.nan for k in ks]) for name, by_k in sweep.items()}
        for metric in ("accuracy", "ECE")
    )
    found.show(
        "Sensitivity to k",
        "Accuracy and calibration error with ever more neighbours; NED's temperature is fitted anew for each k.",
        "Accuracy and ECE of the estimators against the number of neighbours",
        draw_sensitivity,
        ks,
        accuracy,
        ece,
    )


def divided(subject: Subject, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the support and of the queries, if there are enough of both to fit and to ask."""
    support, queries = divide(subject, seed)
    if not len(queries) or not _has_pairs(subject.labels[support]):
        raise DataError(
            "Calibration needs classes with three items or more: two for the support, to fit a temperature, and one to "
            "ask with."
        )
    return support, queries


def fit_estimators(support: np.ndarray, labels: np.ndarray, space: Space) -> dict[str, Estimator]:
    """NED, as it is by default and as it was published, and what it is compared with, fitted.

    The votes have the k that does best on the support itself.

    Where distances are minus similarities, or have no mean, the estimators that need more are left out.
    """
    votes: dict[str, NeighbourEstimator] = {"kNN": KNNVote(space=space), "WkNN (Dudani)": DudaniVote(space=space)}
    prototypes: dict[str, Estimator] = {}
    similar = getattr(space, "similarity", False)  # minus a similarity may be negative, and has no ratio
    if not similar:
        votes["WkNN (Gou)"] = GouVote(space=space)
    if isinstance(space, Space):
        prototypes["prototypes (softmax)"] = PrototypeSoftmax(space=space)
        if not similar:
            prototypes["prototypes (ratio)"] = PrototypeRatio(space=space)
    chosen: dict[str, Estimator] = {"1NN": NearestNeighbour(space=space)}
    for name, vote in votes.items():
        chosen[name] = vote.with_k(best_k(vote, support, labels))
    chosen |= {OURS: NED(space=space), PAPERS: NED(space=space, **AS_PUBLISHED)}
    chosen |= {"SharpNED": SharpNED(space=space), **prototypes}
    for estimator in chosen.values():
        estimator.fit(support, labels)
    return chosen


def tell_strangers(
    subject: Subject, support: np.ndarray, queries: np.ndarray, seed: int, resamples: int = 0
) -> dict[str, OpenSetResult]:
    """How well each score tells queries of classes that have no support, when that is a random half of them.

    Empty where there are too few classes with several items to leave half of them out.
    """
    truth = subject.labels[queries]
    kept = support[leave_classes_out(subject.labels, support, seed)]
    known = np.isin(truth, subject.labels[kept])
    if not _has_pairs(subject.labels[kept]) or known.all() or not known.any():
        return {}
    ned = NED(space=subject.space, **AS_PUBLISHED).fit(subject.embeddings[kept], subject.labels[kept])
    predicted = ned.predict(subject.embeddings[queries])
    correct = predicted.labels == truth
    names = list(unknown_scores)
    if len(ned.classes_) == 1:  # nothing to be sure of one class against
        names = [name for name in names if name not in ("probability", "ratio")]
    return {
        name: open_set_metrics(
            unknown_scores.get(name)(ned, predicted), known, correct, labels=truth, resamples=resamples, seed=seed
        )
        for name in names
        if name != "ratio" or predicted.distances.min() >= 0
    }


def _add_strangers(found: SuiteResult, strangers: dict[str, OpenSetResult]) -> None:
    if not strangers:
        found.notes.append("Unknown classes are not measured: too few classes have several items.")
        return
    for name, result in strangers.items():
        found.add(f"unknown AUROC, {name}", result.values["AUROC"], result.intervals["AUROC"])
    found.details["unknown"] = {name: _without_curves(result) for name, result in strangers.items()}
    found.notes.append("Unknown classes: a random half of the classes has no support; their queries should be refused.")
    first = next(iter(strangers.values()))
    found.show(
        "Unknown classes",
        f"Half of the classes have no support. For every threshold on a score, how many of {first.known:,} queries of "
        f"known classes it accepts and how many of {first.unknown:,} of unknown ones.",
        "Share of known queries accepted against share of unknown queries accepted",
        draw_rejection,
        {name: (result.curve["FPR"], result.curve["TPR"]) for name, result in strangers.items()},
        areas={name: result.values["AUROC"] for name, result in strangers.items()},
    )


def _notes(fitted: dict[str, Estimator], support: int, queries: int) -> list[str]:
    ned = fitted[OURS]
    assert isinstance(ned, NED)
    votes = {name: vote for name, vote in fitted.items() if isinstance(vote, (KNNVote, DudaniVote)) and name != "1NN"}
    ks = ", ".join(f"{name} {vote.k}" for name, vote in votes.items())
    return [
        f"Calibration: {support:,} support items, {queries:,} queries of the same classes; NED is fitted "
        f"{ned.fitted_by} (temperature {ned.temperature_:.4g}, sharpness {ned.sharpness_:.3g}), on the support alone, "
        f"and the votes have the k that does best there ({ks}).",
        *ned.notes_,
    ]


def _fit(ned: Estimator) -> dict[str, Any]:
    """How NED was fitted."""
    assert isinstance(ned, NED)
    widening = ned.widening_
    return {
        "criterion": ned.criterion_,
        "temperature": ned.temperature_,
        "sharpness": ned.sharpness_,
        "widening": widening.power,
        "usual energy": widening.usual,
    }


def _without_curves(result: CalibrationResult | OpenSetResult) -> dict[str, Any]:
    """What is worth keeping in a file: the pictures have the curves."""
    return {name: part for name, part in result.to_dict().items() if name not in ("adaptive", "risk_coverage", "curve")}


def _has_pairs(labels: np.ndarray) -> bool:
    return bool(len(labels)) and bool((np.unique(labels, return_counts=True)[1] > 1).any())
