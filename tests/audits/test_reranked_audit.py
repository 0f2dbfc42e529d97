"""Audits of a re-ranked order: which numbers are whose, and names that do not exist."""

from __future__ import annotations

import numpy as np
import pytest

import nearkin as nk
from nearkin.audits import Subject, run_suites
from nearkin.errors import RecipeError, UnknownNameError
from nearkin.metrics import class_bootstrap, retrieval_metrics
from nearkin.recipe import AuditSection, load_recipe
from nearkin.spaces import Sphere

PLAIN = ("MAP@R", "P@1", "R-precision")


@pytest.fixture
def subject():
    rng = np.random.default_rng(0)
    labels = np.repeat([f"c{i}" for i in range(10)], 8)
    centres = np.repeat(rng.normal(size=(10, 6)), 8, axis=0)
    vectors, baseline = ((centres + noise * rng.normal(size=centres.shape)).astype(np.float32) for noise in (0.9, 2.0))
    return Subject(vectors, labels, Sphere(), baseline=baseline, baseline_name="raw pixels")


def test_map_at_k_is_measured_as_asked(subject):
    result = run_suites(subject, AuditSection(map_at=[3, 20]), ["retrieval"])
    expected = retrieval_metrics(subject.embeddings, subject.labels, map_at=(3, 20))
    assert {"MAP@3", "MAP@20"} <= set(result)
    assert {name: result.values[name] for name in expected.values} == expected.values
    assert "MAP@10" in set(run_suites(subject, AuditSection(), ["retrieval"]))


@pytest.mark.parametrize("name", ["average-query-expansion", "k-reciprocal"])
def test_both_orders_are_measured_and_told_apart(subject, name):
    from nearkin.search.rerank import make_reranker

    result = run_suites(subject, AuditSection(rerank=name), ["retrieval"])
    plain = retrieval_metrics(subject.embeddings, subject.labels)
    better = retrieval_metrics(subject.embeddings, subject.labels, rerank=make_reranker(name))
    baseline = retrieval_metrics(subject.baseline, subject.labels, rerank=make_reranker(name))
    assert better.values["MAP@R"] != plain.values["MAP@R"]
    assert {metric: result[metric] for metric in better.values} == better.values
    assert {metric: result.baseline[metric] for metric in baseline.values} == baseline.values
    for metric in PLAIN:
        assert result[f"{metric}, not re-ranked"] == plain.values[metric]
        interval = class_bootstrap(plain.per_query[metric], plain.labels)
        assert result.intervals[f"{metric}, not re-ranked"] == interval
        assert result.baseline[f"{metric}, not re-ranked"] < result[f"{metric}, not re-ranked"]
    assert any(name in note and "not re-ranked" in note for note in result.notes)


def test_without_re_ranking_there_is_one_order(subject):
    result = run_suites(subject, AuditSection(), ["retrieval"])
    assert not any("re-ranked" in metric for metric in result)
    assert not any("re-ranked" in note for note in result.notes)


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(RecipeError, match="average-query-expansion") as error:
        load_recipe(overrides=["audit.rerank=k-reciprocl"])
    assert "k-reciprocl" in str(error.value)
    assert load_recipe(overrides=["audit.rerank=k-reciprocal"]).audit.rerank == "k-reciprocal"
    assert load_recipe(overrides=["audit.rerank=null"]).audit.rerank is None


def test_the_k_of_map_at_k_starts_at_one():
    with pytest.raises(RecipeError, match=r"audit\.map_at"):
        load_recipe(overrides=["audit.map_at=[0]"])


def test_a_name_asked_for_wins_over_the_recipe_and_is_told_in_the_facts(subject):
    embeddings, labels = subject.embeddings, subject.labels
    result = nk.audit(embeddings, labels, suites=["retrieval"], rerank="average-query-expansion")
    assert result.subject.facts["re-ranking"] == "average-query-expansion"
    assert result["MAP@R, not re-ranked"] == nk.audit(embeddings, labels, suites=["retrieval"])["MAP@R"]
    with pytest.raises(UnknownNameError, match="k-reciprocal"):
        nk.audit(embeddings, labels, rerank="k-reciprocl")
