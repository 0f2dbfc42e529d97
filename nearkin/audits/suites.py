"""Audit suites: each takes a subject and gives numbers, with intervals where queries can be resampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from nearkin.audits.learned import COSINE, FUSED, SIM, ScoredTrials, compared_by, score_trials, shown
from nearkin.audits.pictures import draw_errors
from nearkin.audits.subject import Subject, asked_and_searched
from nearkin.metrics import (
    RetrievalResult,
    VerificationResult,
    class_bootstrap,
    clustering_metrics,
    retrieval_metrics,
    verification_metrics,
)
from nearkin.recipe import AuditSection
from nearkin.registry import Registry
from nearkin.report import Figure
from nearkin.search.rerank import make_reranker
from nearkin.spaces import Space, Sphere


@dataclass(frozen=True)
class SuiteResult:
    """One suite's findings.

    Args:
        values: metric to value.
        intervals: metric to (low, high), for the metrics that are means over queries.
        baseline: metric to the value of the subject's baseline embeddings.
        per_class: metric to the mean of each class, for paired comparisons.
        notes: what a reader must know.
        lower_is_better: the metrics of which less is better.
        numbers: the metrics that are plain numbers, not shares of 1.
        details: what is too much for a table, as JSON can hold it.
        drawings: pictures of the suite's own, drawn when a report is written.
        primary: what to judge by if nothing better was measured; empty: nothing of this suite.
    """

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    baseline: dict[str, float] = field(default_factory=dict)
    per_class: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lower_is_better: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    drawings: list[Callable[[], Figure]] = field(default_factory=list)
    primary: str = ""


suites: Registry[Callable[[Subject, AuditSection], SuiteResult]] = Registry("audit suite")

_PER_CLASS_METRICS = ("MAP@R", "P@1", "R-precision")
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
    if subject.baseline is not None:
        found.baseline.update(_retrieval(subject, subject.baseline, Sphere(), section, section.rerank).values)
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
    if compared_by(subject.space) == "similarity":
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
        f"both errors are equal at the {compared_by(subject.space)} {shown(subject.space, result.threshold):.3g}."
    )
    return SuiteResult(
        result.values,
        baseline=others[0].values if others else {},
        notes=[note, *result.notes],
        lower_is_better=result.lower_is_better,
        drawings=[partial(draw_errors, results, compared_by(subject.space), shown(subject.space, result.threshold))],
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
