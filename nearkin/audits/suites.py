"""Audit suites: each takes a subject and gives numbers, with intervals where queries can be resampled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from nearkin.audits.learned_similarity import COSINE, FUSED, SIM, ScoredTrials, score_trials
from nearkin.audits.result import AuditResult, SuiteResult
from nearkin.audits.subject import Subject, asked_and_searched, check_labels, shown
from nearkin.metrics import (
    RetrievalResult,
    VerificationResult,
    class_bootstrap,
    clustering_metrics,
    retrieval_metrics,
    verification_metrics,
)
from nearkin.metrics.retrieval import over_classes
from nearkin.recipe import AuditSection
from nearkin.registry import Registry
from nearkin.report import Figure, draw_det
from nearkin.search.rerank import make_reranker
from nearkin.spaces import Space, Sphere

Suite = Callable[[Subject, AuditSection], SuiteResult]

_MODULES = {
    "calibration": "calibration",
    "classification": "classification",
    "clustering": "suites",
    "corruption": "corruption",
    "domains": "domains",
    "fewshot": "fewshot",
    "geometry": "geometry",
    "hierarchy": "hierarchy",
    "pooling": "pooling_suite",
    "retrieval": "suites",
    "robustness": "robustness",
    "size": "sizes",
    "verification": "suites",
}
"""The module of each suite, imported when the suite is used."""


suites: Registry[Suite] = Registry(
    "audit suite", {name: f"nearkin.audits.{module}" for name, module in _MODULES.items()}
)


_PRIMARY = ("MAP@R", "EER", "5-way 1-shot", "macro F1, centroid", "ECE, NED", "accuracy, corrupted, NED")
"""What to judge by: the first of these that was measured, or what a suite names itself."""


def run_suites(subject: Subject, section: AuditSection, names: Sequence[str] | None = None) -> AuditResult:
    """Run suites on a subject and gather what they find.

    Args:
        subject: the embeddings under audit.
        section: the recipe's audit section.
        names: suites to run; None takes the section's.
    """
    chosen = [suites.get(name) for name in dict.fromkeys(names or section.suites)]
    check_labels(subject.embeddings, subject.labels)
    if section.rerank is not None:
        subject.facts["re-ranking"] = section.rerank
    found = [suite(subject, section) for suite in chosen]
    values = {name: value for part in found for name, value in part.values.items()}
    lower_is_better = tuple(name for part in found for name in part.lower_is_better)
    named = [*(name for name in _PRIMARY if name in values), *(part.primary for part in found if part.primary)]
    primary = named[0] if named else _PRIMARY[0]
    return AuditResult(
        values=values,
        intervals={name: pair for part in found for name, pair in part.intervals.items()},
        baseline={name: value for part in found for name, value in part.baseline.items()},
        per_class={name: values for part in found for name, values in part.per_class.items()},
        subject=subject,
        notes=[*subject.notes, *(note for part in found for note in part.notes)],
        primary=primary,
        higher_is_better=primary not in lower_is_better,
        lower_is_better=lower_is_better,
        numbers=tuple(name for part in found for name in part.numbers),
        details={name: detail for part in found for name, detail in part.details.items()},
        drawings=[drawing for part in found for drawing in part.drawings],
    )


_PER_CLASS_METRICS = ("MAP@R", "P@1", "R-precision")
_CLASS_MEANS = ("MAP@R", "P@1")
_TRIAL_METRICS = ("ROC-AUC", "EER", "minDCF")
"""What is told of the scores beside the learned similarity."""
_PAIRS = 2_000_000
"""Genuine pairs, and impostor pairs, that the verification suite compares at the most."""


@suites.register("retrieval")
def retrieval_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """P@1, R-precision, MAP@R, MAP@k, MRR, Recall@k and kNN-Acc, with intervals over classes and queries.

    With re-ranking, these are of the re-ranked order, and the main ones of the plain order stand beside them. Of a
    learned similarity, those of the cosine of the same embeddings do.
    """
    result = _retrieval(subject, subject.embeddings, subject.space, section, section.rerank)
    found = SuiteResult(
        dict(result.values),
        class_bootstrap(result.per_query, result.labels, resamples=section.resamples, seed=section.seed),
        per_class={name: result.per_class(name) for name in _PER_CLASS_METRICS},
    )
    _add_class_means(found.values, result)
    for name in _CLASS_MEANS:
        means = found.per_class[name]
        found.intervals[over_classes(name)] = class_bootstrap(
            list(means.values()), list(means), resamples=section.resamples, seed=section.seed
        )
    if subject.baseline is not None:
        untrained = _retrieval(subject, subject.baseline, Sphere(), section, section.rerank)
        found.baseline.update(untrained.values)
        _add_class_means(found.baseline, untrained)
    if result.dropped:
        found.notes.append(f"{result.dropped} queries have no other item of their class and were left out.")
    if section.rerank is not None:
        _add_plain_order(found, subject, section)
    if subject.learned is not None:
        plain = result
        if section.rerank is not None:
            plain = _retrieval(subject, subject.embeddings, subject.space, section, None)
        _add_cosine(found, subject, section, plain)
    return found


def _add_class_means(values: dict[str, float], result: RetrievalResult) -> None:
    """The mean over classes beside that over queries, which papers report and the plain names stand for."""
    for name in _CLASS_MEANS:
        means = result.per_class(name).values()
        values[over_classes(name)] = math.fsum(means) / len(means)


def _add_plain_order(found: SuiteResult, subject: Subject, section: AuditSection) -> None:
    """The main metrics of the order that was not re-ranked, under names that say so."""
    result = _retrieval(subject, subject.embeddings, subject.space, section, None)
    main = {name: result.per_query[name] for name in _PER_CLASS_METRICS}
    intervals = class_bootstrap(main, result.labels, resamples=section.resamples, seed=section.seed)
    found.values.update({_plain(name): result.values[name] for name in main})
    found.intervals.update({_plain(name): interval for name, interval in intervals.items()})
    if subject.baseline is not None:
        values = _retrieval(subject, subject.baseline, Sphere(), section, None).values
        found.baseline.update({_plain(name): values[name] for name in main})
    found.notes.append(
        f"Retrieval of model and baseline is measured on the order that {section.rerank} re-ranked, except where a "
        "metric says: not re-ranked."
    )


def _add_cosine(found: SuiteResult, subject: Subject, section: AuditSection, ours: RetrievalResult) -> None:
    """The main metrics by the cosine of the same embeddings, and how far the learned similarity is ahead of it."""
    theirs = _retrieval(subject, subject.embeddings, Sphere(), section, None)
    options: dict[str, Any] = {"resamples": section.resamples, "seed": section.seed}
    main = {name: theirs.per_query[name] for name in _PER_CLASS_METRICS}
    for name, interval in class_bootstrap(main, theirs.labels, **options).items():
        metric = f"{name}, {COSINE}"
        found.values[metric], found.intervals[metric] = theirs.values[name], interval
        found.per_class[metric] = theirs.per_class(name)
    gaps = {name: ours.per_query[name] - theirs.per_query[name] for name in main}
    ahead = {
        name: [ours.values[name] - theirs.values[name], *interval]
        for name, interval in class_bootstrap(gaps, ours.labels, **options).items()
    }
    found.details["retrieval"] = {"above cosine": ahead}
    found.notes.append(
        "Retrieval is by the learned similarity, except where a metric says cosine: that of the same embeddings. "
        f"In MAP@R the learned similarity is {_points(*ahead['MAP@R'])} with classes and queries drawn anew."
    )


def _points(difference: float, low: float, high: float) -> str:
    """A difference of shares in words."""
    return f"ahead by {100 * difference:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f},"


def _plain(metric: str) -> str:
    return f"{metric}, not re-ranked"


@suites.register("clustering")
def clustering_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """NMI, AMI and F1 of k-means with as many clusters as classes.

    k-means goes by the distance of embeddings, however else they are compared.
    """
    found = SuiteResult(clustering_metrics(subject.embeddings, subject.labels, seed=section.seed))
    if subject.baseline is not None:
        untrained = Sphere().project(torch.from_numpy(subject.baseline)).numpy()
        found.baseline.update(clustering_metrics(untrained, subject.labels, seed=section.seed))
    if subject.compared_by == "similarity":
        found.notes.append(
            "Clustering is by the distance of the embeddings, not by the learned similarity, to which k-means has no "
            "centres."
        )
    return found


@suites.register("verification")
def verification_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """ROC-AUC, EER, TPR at small FPRs and minDCF of pairs: all of them, or two million of each kind.

    Of a model with a learned similarity, by that; the cosine and the fusion of both decide the same pairs beside it.
    """
    if subject.learned is not None:
        return _by_scores(score_trials(subject, subject.learned, section, _PAIRS))
    results = {"this model": _verification(subject, subject.embeddings, subject.space, section)}
    if subject.baseline is not None:
        name = subject.baseline_name or "baseline"
        results[name] = _verification(subject, subject.baseline, Sphere(), section)
    result, *others = results.values()
    note = (
        f"Verification compares {result.genuine:,} genuine and {result.impostors:,} impostor pairs; "
        f"both errors are equal at the {subject.compared_by} {shown(subject.space, result.threshold):.3g}."
    )
    return SuiteResult(
        result.values,
        baseline=others[0].values if others else {},
        notes=[note, *result.notes],
        lower_is_better=result.lower_is_better,
        drawings=[partial(draw_errors, results, subject.compared_by, shown(subject.space, result.threshold))],
    )


def _by_scores(found: ScoredTrials) -> SuiteResult:
    """What the learned similarity decides as plain metrics, and what the other scores do as metrics that name them."""
    first = found.results[SIM]
    values, lower = dict(first.values), list(first.lower_is_better)
    intervals = {"EER": found.intervals[SIM]}
    for name in (COSINE, FUSED):
        for metric in _TRIAL_METRICS:
            values[f"{metric}, {name}"] = found.results[name].values[metric]
        intervals[f"EER, {name}"] = found.intervals[name]
        lower += [f"{metric}, {name}" for metric in first.lower_is_better]
    notes = [
        f"Verification compares {first.genuine:,} genuine and {first.impostors:,} impostor pairs by the learned "
        f"similarity ({SIM}), by the cosine, and by the mean of sigmoid({SIM}) and (1 + cosine) / 2 ({FUSED}). One "
        "item of a pair is enrolled and the other asks: that of the gallery is enrolled, and without a gallery a coin "
        f"says which. Both errors of {SIM} are equal at the similarity {first.threshold:.3g}.",
        "Intervals of the EER draw classes anew, the same for all scores. Below zero a score makes fewer errors than "
        "the cosine: "
        + "; ".join(
            f"{name} {100 * gap:+.2f} points, 95 % interval {100 * low:+.2f} to {100 * high:+.2f}"
            for name, (gap, low, high) in found.ahead.items()
        )
        + ".",
    ]
    return SuiteResult(
        values,
        intervals,
        baseline=dict(found.results[found.baseline].values) if found.baseline else {},
        notes=[*notes, *found.trials.notes, *first.notes],
        lower_is_better=tuple(lower),
        details={"verification": found.to_dict()},
        drawings=[partial(draw_errors, found.results, "similarity", first.threshold)],
    )


def draw_errors(results: dict[str, VerificationResult], what: str, threshold: float) -> Figure:
    """Both errors of verification against each other, of the model and what it is compared with.

    Args:
        results: by name, the model's first.
        what: the model decides by, a distance or a similarity.
        threshold: at which its errors are equal.
    """
    name, first = next(iter(results.items()))
    return Figure(
        "Errors of verification",
        f"For every threshold on the {what}, how many of {first.impostors:,} impostor pairs it accepts and how many "
        f"of {first.genuine:,} genuine pairs it refuses: the nearer to the lower left corner, the better. The marks "
        f"are where both errors are equal, for {name} at the {what} {threshold:.3g}.",
        draw_det(
            {name: result.det for name, result in results.items()},
            equal_errors={name: result.values["EER"] for name, result in results.items()},
        ),
        "DET curve: false negative rate against false positive rate on normal-deviate axes",
    )


def _verification(subject: Subject, embeddings: np.ndarray, space: Space, section: AuditSection) -> VerificationResult:
    options: dict[str, Any] = {"space": space, "pairs": _PAIRS, "seed": section.seed}
    return verification_metrics(**asked_and_searched(embeddings, subject.labels, subject.gallery), **options)


def _retrieval(
    subject: Subject, embeddings: np.ndarray, space: Space, section: AuditSection, rerank: str | None
) -> RetrievalResult:
    options: dict[str, Any] = {
        "recall_at": tuple(section.recall_at),
        "map_at": tuple(section.map_at),
        "knn": section.knn,
        "space": space,
    }
    if rerank is not None:
        options["rerank"] = make_reranker(rerank)
    return retrieval_metrics(**asked_and_searched(embeddings, subject.labels, subject.gallery), **options)
