"""A model on data, suite by suite: which numbers, with which intervals, against which baseline."""

from nearkin.audits.result import AuditResult
from nearkin.audits.subject import Subject, subject_of_model, unseen_items
from nearkin.audits.suites import SuiteResult, run_suites, suites

__all__ = [
    "AuditResult",
    "Subject",
    "SuiteResult",
    "run_suites",
    "subject_of_model",
    "suites",
    "unseen_items",
]
