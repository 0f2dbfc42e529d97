"""Selective answering: answers in order of a score, the surest first, and how wrong the first of them are.

`risk(i) = wrong answers among the i surest / i`, at coverage `i / n`; AURC is its mean over all coverages.
"""

from __future__ import annotations

import numpy as np


def expected_risk(counts: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """The error rate (n,) among the i = 1, 2, …, n surest answers.

    Where a coverage cuts through answers of equal confidence, any of them may be the ones answered: the risk is the
    expected one under a random order of them, in which the number of errors grows linearly.

    Args:
        counts: how many answers each level of confidence has (u,), the highest level first, none of them 0.
        errors: how many of them are wrong (u,).
    """
    answered = np.concatenate([[0], np.cumsum(counts)])
    wrong = np.concatenate([[0], np.cumsum(errors)])
    covered = np.arange(1, answered[-1] + 1)
    return np.interp(covered, answered, wrong) / covered


def risk_coverage(risk: np.ndarray, points: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Coverage and risk (p,) of at most `points` of the risks (n,), evenly spread, both ends among them."""
    chosen = np.arange(len(risk))
    if len(chosen) > points:
        chosen = np.linspace(0, len(risk) - 1, points).round().astype(np.int64)
    return (chosen + 1) / len(risk), risk[chosen]
