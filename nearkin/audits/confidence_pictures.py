"""The pictures of confidence: reliability, risk and coverage, sensitivity to k, unknown classes, corruptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nearkin.metrics import CalibrationResult, OpenSetResult
from nearkin.report import (
    Figure,
    draw_corruption,
    draw_rejection,
    draw_reliability,
    draw_risk_coverage,
    draw_sensitivity,
    draw_shift,
)

Results = Mapping[str, CalibrationResult]
Sweep = Mapping[str, Mapping[int, CalibrationResult]]


def draw_reliabilities(results: Results) -> Figure:
    """A reliability diagram of each estimator."""
    curves = {name: result.reliability for name, result in results.items()}
    return Figure(
        "Reliability",
        "Queries in bins of like confidence: how often the answer is right beside how sure it was. On the diagonal a "
        "confidence of 80 % means right in 80 of 100; below, the share of queries in each "
        "bin, each panel on its own scale.",
        draw_reliability(
            {name: (curve.edges, curve.counts, curve.confidence, curve.accuracy) for name, curve in curves.items()},
            errors={name: result.values["ECE"] for name, result in results.items()},
        ),
        "Reliability diagrams of all estimators",
    )


def draw_risk(results: Results) -> Figure:
    """Risk against coverage of all estimators."""
    return Figure(
        "Risk and coverage",
        "If only the surest answers are given, how many of them are wrong: the lower a curve stays, the better its "
        "confidence orders right before wrong.",
        draw_risk_coverage(
            {name: result.risk_coverage for name, result in results.items()},
            areas={name: result.values["AURC"] for name, result in results.items()},
        ),
        "Error among the answered queries against the share of queries answered",
    )


def draw_sweep(sweep: Sweep) -> Figure:
    """Accuracy and ECE of all estimators over neighbours, against k."""
    ks = sorted({k for found in sweep.values() for k in found})
    values = {
        metric: {
            name: np.array([found[k].values[metric] if k in found else np.nan for k in ks])
            for name, found in sweep.items()
        }
        for metric in ("accuracy", "ECE")
    }
    return Figure(
        "Sensitivity to k",
        "Accuracy and calibration error with ever more neighbours; NED's temperature is fitted anew for each k.",
        draw_sensitivity(ks, values["accuracy"], values["ECE"]),
        "Accuracy and ECE of the estimators against the number of neighbours",
    )


def draw_strangers(results: Mapping[str, OpenSetResult]) -> Figure:
    """Known accepted against unknown accepted, for each score."""
    first = next(iter(results.values()))
    return Figure(
        "Unknown classes",
        f"Half of the classes have no support. For every threshold on a score, how many of {first.known:,} queries of "
        f"known classes it accepts and how many of {first.unknown:,} of unknown ones.",
        draw_rejection(
            {name: (result.curve["FPR"], result.curve["TPR"]) for name, result in results.items()},
            areas={name: result.values["AUROC"] for name, result in results.items()},
        ),
        "Share of known queries accepted against share of unknown queries accepted",
    )


def draw_cells(
    names: Sequence[str], severities: Sequence[int], cells: Mapping[str, np.ndarray], clean: Mapping[str, float]
) -> Figure:
    """Every corruption at every severity, of NED."""
    return Figure(
        "Corrupted queries",
        "Accuracy and calibration error of NED when queries are corrupted, the darker, the worse; support and "
        "temperature are the clean ones.",
        draw_corruption(names, severities, cells, clean=clean, lower_is_better=("ECE",)),
        "Accuracy and ECE of each corruption and severity",
    )


def draw_severities(severities: Sequence[int], lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """The means over corruptions against the severity, of all estimators."""
    return Figure(
        "Corruption by severity",
        "Means over all corruptions; severity 0 is clean. The votes keep the k that did best on the clean support.",
        draw_shift(severities, lines),
        "Accuracy and ECE of the estimators against the severity of corruption",
    )
