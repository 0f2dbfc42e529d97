"""The verification suite: its numbers, their direction, its picture, and how many pairs it takes."""

from __future__ import annotations

import json
from importlib import import_module

import numpy as np
import pytest

import nearkin as nk
from nearkin.audits import Subject, run_suites
from nearkin.metrics import verification_metrics
from nearkin.recipe import AuditSection
from nearkin.spaces import Euclidean, Sphere


def clusters(noise, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(12, 8)), 10, axis=0)
    return (centres + noise * rng.normal(size=centres.shape)).astype(np.float32)


LABELS = np.repeat([f"c{i}" for i in range(12)], 10)


@pytest.fixture
def subject():
    return Subject(
        clusters(0.4),
        LABELS,
        Euclidean(),
        baseline=clusters(1.5),
        baseline_name="raw pixels",
        facts={"classes": "12", "items": "120"},
    )


def test_its_numbers_are_those_of_all_pairs_of_model_and_baseline(subject):
    result = run_suites(subject, AuditSection(), ["verification"])
    expected = verification_metrics(subject.embeddings, LABELS, space=Euclidean())
    assert result.values == expected.values
    assert result.baseline == verification_metrics(subject.baseline, LABELS, space=Sphere()).values
    assert result["EER"] < result.baseline["EER"]
    assert result["ROC-AUC"] > result.baseline["ROC-AUC"]
    (note,) = result.notes
    for number in ("540", "6,600", f"{expected.threshold:.3g}"):
        assert number in note


def test_its_directions_are_told(subject):
    result = run_suites(subject, AuditSection(), ["verification"])
    assert {row.name for row in result.rows() if row.lower_is_better} == {"EER", "minDCF"}
    assert (result.primary, result.higher_is_better) == ("EER", False)
    assert result.verdict().startswith("EER ")
    assert "raw pixels" in result.verdict()
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["lower_is_better"] == ["EER", "minDCF"]
    assert plain["higher_is_better"] is False


def test_with_retrieval_map_at_r_stays_the_primary_metric(subject):
    result = run_suites(subject, AuditSection(), ["verification", "retrieval"])
    assert (result.primary, result.higher_is_better) == ("MAP@R", True)
    assert {"MAP@R", "EER"} <= set(result)


def test_the_report_shows_the_curve_only_when_the_suite_ran(subject, tmp_path):
    with_curve = run_suites(subject, AuditSection(), ["verification"]).report(tmp_path / "a.html").read_text("utf-8")
    without = run_suites(subject, AuditSection(), ["clustering"]).report(tmp_path / "b.html").read_text("utf-8")
    assert "Errors of verification" in with_curve
    assert "Errors of verification" not in without
    assert with_curve.count("data:image/png") == without.count("data:image/png") + 1
    assert "lower is better" in with_curve
    assert "lower is better" not in without


def test_it_is_not_run_unless_asked_for():
    assert "EER" not in set(nk.audit(clusters(0.4), LABELS))
    assert AuditSection().suites == ["retrieval", "clustering"]


def test_queries_are_compared_with_the_gallery_where_there_is_one():
    vectors, gallery = clusters(0.4), np.arange(120) % 3 == 0
    result = run_suites(Subject(vectors, LABELS, Sphere(), gallery=gallery), AuditSection(), ["verification"])
    expected = verification_metrics(
        vectors[~gallery], LABELS[~gallery], gallery=vectors[gallery], gallery_labels=LABELS[gallery]
    )
    assert result.values == expected.values


def test_many_pairs_are_sampled_by_the_seed_and_the_notes_say_so(subject, monkeypatch):
    monkeypatch.setattr(import_module("nearkin.audits.suites"), "_PAIRS", 1000)
    result = run_suites(subject, AuditSection(seed=3), ["verification"])
    assert (
        result.values == verification_metrics(subject.embeddings, LABELS, space=Euclidean(), pairs=1000, seed=3).values
    )
    assert any("6,600" in note for note in result.notes[1:])
