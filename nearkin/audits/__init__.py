"""A model on data, suite by suite: which numbers, with which intervals, against which baseline."""

from __future__ import annotations

from collections.abc import Sequence

from nearkin.audits import (  # noqa: F401  (enter)
    calibration,
    classification,
    corruption,
    domains,
    fewshot,
    geometry,
    hierarchy,
    pooling,
    robustness,
    sizes,
)
from nearkin.audits.result import AuditResult
from nearkin.audits.subject import Subject, check_labels, subject_of_model, unseen_items
from nearkin.audits.suites import SuiteResult, suites
from nearkin.recipe import AuditSection

__all__ = [
    "AuditResult",
    "Subject",
    "SuiteResult",
    "run_suites",
    "subject_of_model",
    "suites",
    "unseen_items",
]

_PRIMARY = ("MAP@R", "EER", "5-way 1-shot", "macro F1, centroid", "ECE, NED", "accuracy, corrupted, NED")
"""What to judge by: the first of these that was measured, or what a suite names itself."""


def run_suites(subject: Subject, section: AuditSection, names: Sequence[str] | None = None) -> AuditResult:
    """Run suites on a subject and gather what they find.

    Args:
        subject: the embeddings under audit.
        section: the recipe's audit section.
        names: suites to run; None takes the section's.
    """
    chosen = [(name, suites.get(name)) for name in dict.fromkeys(names or section.suites)]
    check_labels(subject.embeddings, subject.labels)
    if section.rerank is not None:
        subject.facts["re-ranking"] = section.rerank
    found = [suite(subject, section) for _, suite in chosen]
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
