"""Audit suites: each takes a subject and gives numbers, with intervals where queries can be resampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

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
_PAIRS = 2_000_000
"""Genuine pairs, and impostor pairs, that the verification suite compares at the most."""


@suites.register("retrieval")
def retrieval_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """P@1, R-precision, MAP@R, MAP@k, MRR, Recall@k and kNN-Acc, with intervals over classes and queries.

    With re-ranking, these are of the re-ranked order, and the main ones of the plain order stand beside them.
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


def _plain(metric: str) -> str:
    return f"{metric}, not re-ranked"


@suites.register("clustering")
def clustering_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """NMI, AMI and F1 of k-means with as many clusters as classes."""
    values = clustering_metrics(subject.embeddings, subject.labels, seed=section.seed)
    if subject.baseline is None:
        return SuiteResult(values)
    untrained = Sphere().project(torch.from_numpy(subject.baseline)).numpy()
    return SuiteResult(values, baseline=clustering_metrics(untrained, subject.labels, seed=section.seed))


@suites.register("verification")
def verification_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """ROC-AUC, EER, TPR at small FPRs and minDCF of pairs: all of them, or two million of each kind."""
    results = {"this model": _verification(subject, subject.embeddings, subject.space, section)}
    if subject.baseline is not None:
        name = subject.baseline_name or "baseline"
        results[name] = _verification(subject, subject.baseline, Sphere(), section)
    result, *others = results.values()
    note = (
        f"Verification compares {result.genuine:,} genuine and {result.impostors:,} impostor pairs; "
        f"both errors are equal at the distance {result.threshold:.3g}."
    )
    return SuiteResult(
        result.values,
        baseline=others[0].values if others else {},
        notes=[note, *result.notes],
        lower_is_better=result.lower_is_better,
        drawings=[partial(draw_errors, results)],
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
