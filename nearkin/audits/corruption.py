"""The corruption suite: the same confidence when queries are noisy, blurred or badly lit, with support and T clean."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.audits.calibration import OURS, divided, fit_estimators, tables_of
from nearkin.audits.result import resampling
from nearkin.audits.subject import Subject, draw_rows
from nearkin.audits.suites import SuiteResult, suites
from nearkin.confidence import NED, Estimator
from nearkin.data.corruptions import CORRUPTIONS, CorruptedDataset
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError
from nearkin.metrics.calibration import accuracy_and_ece, mean_intervals
from nearkin.metrics.classification import mean_corruption_error, relative_corruption_error
from nearkin.models import Embedder, Encoder
from nearkin.progress import Progress
from nearkin.recipe import AuditSection
from nearkin.report import draw_corruption, draw_shift
from nearkin.spaces import Sphere
from nearkin.storage import replacing

_METRICS = ("accuracy", "ECE")


@suites.register("corruption")
def corruption_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """Mean accuracy, ECE and corruption error over 15 corruptions of the queries, of NED and its rivals."""
    if subject.corrupted is None:
        raise DataError(
            "The corruption suite corrupts images and embeds them again, so it needs a model and image data, not "
            "embeddings or audio."
        )
    support, queries = divided(subject, section.seed)
    rows = draw_rows(queries, section.corrupted_queries, section.seed)
    fitted = fit_estimators(subject.embeddings[support], subject.labels[support], subject.space)
    truth = subject.labels[rows]
    clean = tables_of(fitted, subject.embeddings[rows], truth)
    tables = corrupted_tables(subject, fitted, rows, section.severities)
    found = _result(clean, tables, section, len(rows))
    if section.corruption_reference:
        _add_reference(found, subject, support, rows, section)
    return found


_SEVERITY_SIDE = 224
"""Pixels of the short side that the severities are made for: larger images are reduced to it first."""

_FORMAT = "nearkin.corrupted 1"


class CorruptedEncoder:
    """A model on corrupted images of one data set.

    Args:
        embedder: the model.
        dataset: the images.
        directory: where embeddings are kept; their name is a hash of model, images and corruption.
    """

    def __init__(self, embedder: Embedder, dataset: Dataset, directory: Path) -> None:
        self.embedder = embedder
        self.dataset = dataset
        self.directory = directory
        self._encoder: Encoder | None = None
        self._fingerprint = ""

    def __call__(self, name: str, severity: int, rows: np.ndarray) -> np.ndarray:
        """Embeddings (r, d) of the items `rows` (r,), corrupted by `name` at a severity from 1 to 5."""
        if self._encoder is None:
            self._encoder, self._fingerprint = Encoder(self.embedder), self.embedder.fingerprint()
        side = max(_SEVERITY_SIDE, self.embedder.spec.size)
        part = CorruptedDataset(self.dataset.select(rows), name, severity, side=side)
        key = hashlib.sha256(f"{_FORMAT} {self._fingerprint} {part.fingerprint()}".encode()).hexdigest()
        path = self.directory / f"{key[:32]}.npy"
        if not path.exists():
            found = self._encoder.encode(part, progress=False)
            with replacing(path) as temporary, open(temporary, "wb") as handle:
                np.save(handle, found)
        return np.load(path)


def _add_reference(
    found: SuiteResult, subject: Subject, support: np.ndarray, rows: np.ndarray, section: AuditSection
) -> None:
    """The errors of NED over the pretrained features in the same cells, and mCE and relative mCE against them."""
    if subject.corrupted_baseline is None or subject.baseline is None:
        raise DataError(
            "There are no pretrained features to compare corruption errors with: set audit.corruption_reference to "
            "false, or audit a model with a pretrained backbone, with its baseline."
        )
    reference = {OURS: NED(space=Sphere()).fit(subject.baseline[support], subject.labels[support])}
    other = subject.changed(corrupted=subject.corrupted_baseline)
    theirs = 1 - accuracy_and_ece(corrupted_tables(other, reference, rows, section.severities)[OURS].sum(axis=2))[0]
    their_clean = tables_of(reference, subject.baseline[rows], subject.labels[rows])[OURS]
    clean_error = 1 - float(accuracy_and_ece(their_clean.sum(axis=0))[0])
    cells = found.details["corruption"]
    ours = 1 - np.array(cells["cells"][OURS]["accuracy"])
    own_clean = 1 - float(cells["clean"][OURS]["accuracy"])
    values = {
        f"mCE, {OURS}": mean_corruption_error(ours, theirs),
        f"relative mCE, {OURS}": relative_corruption_error(ours, own_clean, theirs, clean_error),
    }
    found.values.update({name: value for name, value in values.items() if np.isfinite(value)})
    missing = [name for name, value in values.items() if not np.isfinite(value)]
    if missing:
        found.notes.append(
            f"{' and '.join(missing)} cannot be computed: under one of the corruptions the reference makes no errors, "
            "or none beyond those on clean images."
        )
    found.notes.append(
        f"mCE is the error of {OURS} under each corruption as a share of that of {OURS} over "
        f"{subject.baseline_name}, averaged over corruptions; the relative one is of what corruption adds. Below 100 % "
        "the model bears corruption better than they do."
    )


def corrupted_tables(
    subject: Subject, fitted: Mapping[str, Estimator], rows: np.ndarray, severities: Sequence[int]
) -> dict[str, np.ndarray]:
    """Every estimator's answers for corrupted queries `rows` as class tables (corruptions, severities, C, bins, 3)."""
    assert subject.corrupted is not None
    found: list[list[dict[str, np.ndarray]]] = []
    with Progress("Corrupting", len(CORRUPTIONS) * len(severities), subject.progress) as bar:
        for corruption in CORRUPTIONS:
            found.append([])
            for severity in severities:
                embeddings = subject.corrupted(corruption, severity, rows)
                found[-1].append(tables_of(fitted, embeddings, subject.labels[rows]))
                bar.advance(1, corruption)
    return {name: np.array([[tables[name] for tables in row] for row in found]) for name in fitted}


def _result(
    clean: dict[str, np.ndarray], tables: dict[str, np.ndarray], section: AuditSection, queries: int
) -> SuiteResult:
    """What class tables of clean and of corrupted queries say, in numbers and pictures."""
    errors = [f"mean corruption error, {name}" for name in tables]
    lower = [f"ECE, same queries clean, {OURS}", *(f"ECE, corrupted, {name}" for name in tables), *errors]
    found = SuiteResult(lower_is_better=(*lower, f"mCE, {OURS}", f"relative mCE, {OURS}"))
    cells = {name: accuracy_and_ece(table.sum(axis=2)) for name, table in tables.items()}
    before = {name: accuracy_and_ece(clean[name].sum(axis=0)) for name in tables}
    means = {f"same queries clean, {OURS}": clean[OURS][None]}
    for name in sorted(tables, key=lambda name: name != OURS):
        means[f"corrupted, {name}"] = tables[name].reshape(-1, *tables[name].shape[2:])
    for name, table in means.items():
        for metric, (value, interval) in mean_intervals(table, **resampling(section)).items():
            found.add(f"{metric}, {name}", value, interval)
    wrong = {name: 1 - accuracy for name, (accuracy, _) in cells.items()}
    for name, share in wrong.items():
        found.add(f"mean corruption error, {name}", mean_corruption_error(share))
    found.details["corruption"] = {
        "corruptions": list(CORRUPTIONS),
        "severities": list(section.severities),
        "clean": {name: _by_metric(pair) for name, pair in before.items()},
        "cells": {name: _by_metric(pair) for name, pair in cells.items()},
        "errors": {
            name: dict(zip(CORRUPTIONS, share.mean(axis=1).tolist(), strict=True)) for name, share in wrong.items()
        },
    }
    found.notes.append(
        f"Corruption: {queries:,} queries, {len(CORRUPTIONS)} corruptions, severities "
        f"{', '.join(map(str, section.severities))}; support and temperature stay clean."
    )
    found.show(
        "Corrupted queries",
        "Accuracy and calibration error of NED when queries are corrupted, the darker, the worse; support and "
        "temperature are the clean ones.",
        "Accuracy and ECE of each corruption and severity",
        draw_corruption,
        CORRUPTIONS,
        section.severities,
        dict(zip(_METRICS, cells[OURS], strict=True)),
        clean={metric: float(value) for metric, value in zip(_METRICS, before[OURS], strict=True)},
        lower_is_better=("ECE",),
    )
    found.show(
        "Corruption by severity",
        "Means over all corruptions; severity 0 is clean. The votes keep the k that did best on the clean support.",
        "Accuracy and ECE of the estimators against the severity of corruption",
        draw_shift,
        section.severities,
        {
            name: tuple(np.append(usual, worse.mean(axis=0)) for usual, worse in zip(before[name], pair, strict=True))
            for name, pair in cells.items()
        },
    )
    return found


def _by_metric(pair: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    return {metric: values.tolist() for metric, values in zip(_METRICS, pair, strict=True)}
