"""Audit suites: each takes a subject and gives numbers, with intervals where queries can be resampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nearkin.audits.subject import Subject
from nearkin.metrics import RetrievalResult, class_bootstrap, clustering_metrics, retrieval_metrics
from nearkin.recipe import AuditSection
from nearkin.registry import Registry
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
    """

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    baseline: dict[str, float] = field(default_factory=dict)
    per_class: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


suites: Registry[Callable[[Subject, AuditSection], SuiteResult]] = Registry("audit suite")

_PER_CLASS_METRICS = ("MAP@R", "P@1", "R-precision")


@suites.register("retrieval")
def retrieval_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """P@1, R-precision, MAP@R, MRR, Recall@k and kNN-Acc, with intervals over classes and queries."""
    result = _retrieval(subject, subject.embeddings, subject.space, section)
    intervals = {
        name: class_bootstrap(values, result.labels, resamples=section.resamples, seed=section.seed)
        for name, values in result.per_query.items()
    }
    baseline = {}
    if subject.baseline is not None:
        baseline = _retrieval(subject, subject.baseline, Sphere(), section).values
    notes = []
    if result.dropped:
        notes.append(f"{result.dropped} queries have no other item of their class and were left out.")
    per_class = {name: result.per_class(name) for name in _PER_CLASS_METRICS}
    return SuiteResult(result.values, intervals, baseline, per_class, notes)


@suites.register("clustering")
def clustering_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """NMI and AMI of k-means with as many clusters as classes."""
    values = clustering_metrics(subject.embeddings, subject.labels, seed=section.seed)
    if subject.baseline is None:
        return SuiteResult(values)
    untrained = Sphere().project(torch.from_numpy(subject.baseline)).numpy()
    return SuiteResult(values, baseline=clustering_metrics(untrained, subject.labels, seed=section.seed))


def _retrieval(subject: Subject, embeddings: np.ndarray, space: Space, section: AuditSection) -> RetrievalResult:
    options: dict[str, Any] = {"recall_at": tuple(section.recall_at), "knn": section.knn, "space": space}
    if subject.gallery is None:
        return retrieval_metrics(embeddings, subject.labels, **options)
    query = ~subject.gallery
    return retrieval_metrics(
        embeddings[query],
        subject.labels[query],
        gallery=embeddings[subject.gallery],
        gallery_labels=subject.labels[subject.gallery],
        **options,
    )
