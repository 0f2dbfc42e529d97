"""The chance-constraints suite: its numbers, where its margins are from, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.audits import Subject, run_suites
from nearkin.audits.subject import subject_of_model
from nearkin.errors import NearkinError
from nearkin.metrics import mean_class_radius, pair_violations, verification_metrics
from nearkin.recipe import AuditSection, load_recipe
from nearkin.spaces import Euclidean, Sphere
from nearkin.training import Run, train

LABELS = np.repeat([f"c{i}" for i in range(12)], 10)
NAMES = ["chance-constraints"]


def clusters(noise, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(12, 8)), 10, axis=0)
    return (centres + noise * rng.normal(size=centres.shape)).astype(np.float32)


@pytest.fixture
def subject():
    return Subject(clusters(0.3), LABELS, Euclidean(), baseline=clusters(1.5), baseline_name="raw pixels")


def test_the_numbers_are_those_of_the_margins_given(subject):
    result = run_suites(subject, AuditSection(pair_margins=(1.0, 4.0)), NAMES)
    expected = pair_violations(subject.embeddings, LABELS, pos_margin=1.0, neg_margin=4.0, space=Euclidean()).values
    radius = mean_class_radius(subject.embeddings, LABELS)
    assert result.values == pytest.approx(expected | {"covering radius": radius})
    points = Sphere().project(torch.from_numpy(subject.baseline)).numpy()
    theirs = pair_violations(points, LABELS, pos_margin=1.0, neg_margin=4.0).values
    assert result.baseline["violation"] == pytest.approx(theirs["violation"])
    assert (result.primary, result.higher_is_better) == ("violation", False)
    assert "pair_margins" in result.notes[0]


def test_without_margins_pairs_are_parted_where_errors_are_equal(subject):
    result = run_suites(subject, AuditSection(), NAMES)
    threshold = verification_metrics(subject.embeddings, LABELS, space=Euclidean()).threshold
    assert result.to_dict()["details"]["chance-constraints"]["beta"] == pytest.approx(threshold, rel=1e-5)
    assert "as many" in result.notes[0]


def test_a_run_takes_the_margins_of_its_loss(patterns, tiny, tmp_path):
    recipe = load_recipe("contrastive", [*tiny, "training.max_steps=2", "objective.parameters.neg_margin=0.7"])
    cache = {"cache_directory": tmp_path, "progress": False}
    model = train(patterns, recipe, Run(tmp_path / "run"), source="patterns", **cache).embedder
    subject = subject_of_model(model, patterns, baseline=False, **cache)
    result = run_suites(subject, AuditSection(), NAMES)
    expected = pair_violations(subject.embeddings, subject.labels, neg_margin=0.7).values
    assert result["violation bound"] == pytest.approx(expected["violation bound"], abs=1e-6)
    assert any("'contrastive'" in note for note in result.notes)


def test_margins_the_wrong_way_round_are_refused():
    with pytest.raises((NearkinError, ValueError), match="pair_margins"):
        AuditSection(pair_margins=(1.0, 0.5))
