"""Metrics by name: those of both rooms, in the order asked for, and nothing that was not."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import UnknownNameError
from nearkin.metrics import clustering_metrics, named, retrieval_metrics
from nearkin.metrics.named import check_metric_name, named_metrics


@pytest.fixture
def clouds():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(9), 7)
    return rng.normal(size=(9, 5))[labels] + 0.6 * rng.normal(size=(63, 5)), labels


def test_values_and_order_are_those_of_the_functions(clouds):
    names = ["AMI", "Recall@2", "NMI", "MAP@R", "kNN-Acc", "F1", "P@3"]
    found = named_metrics(*clouds, names, space="euclidean", knn=3, seed=4)
    retrieved = retrieval_metrics(*clouds, metrics=["Recall@2", "MAP@R", "kNN-Acc", "P@3"], space="euclidean", knn=3)
    assert list(found) == names
    assert found == retrieved.values | clustering_metrics(*clouds, seed=4)


def test_what_is_not_named_is_not_computed(clouds, monkeypatch):
    monkeypatch.setattr(named, "clustering_metrics", lambda *_, **__: pytest.fail("clustered"))
    assert list(named_metrics(*clouds, ["MRR", "MRR"])) == ["MRR"]
    monkeypatch.undo()
    monkeypatch.setattr(named, "retrieval_metrics", lambda *_, **__: pytest.fail("searched"))
    assert list(named_metrics(*clouds, ["NMI"])) == ["NMI"]
    assert named_metrics(*clouds, []) == {}


@pytest.mark.parametrize("name", ["NMI", "AMI", "F1", "MAP@R", "R-precision", "MRR", "kNN-Acc", "P@7", "Recall@1000"])
def test_known_names_are_taken(name):
    check_metric_name(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nmi", "NMI"),
        ("Recal@4", "Recall@4"),
        ("recall@16", "Recall@16"),
        ("MAP@", "MAP@R"),
        ("MAP", "MAP@R"),
        ("knn-acc", "kNN-Acc"),
    ],
)
def test_a_misspelt_name_is_told_with_the_nearest(name, meant, clouds):
    with pytest.raises(UnknownNameError, match=f"'{meant}'"):
        check_metric_name(name, " here")
    with pytest.raises(UnknownNameError, match=f"'{name}'"):
        named_metrics(*clouds, ["NMI", name])


@pytest.mark.parametrize("name", ["Recall", "recall", "Recall@", "Recall@0", "Recall@-1", "Recall@1.5", "Recall@01"])
def test_a_recall_without_a_proper_k_is_told_which_there_are(name):
    with pytest.raises(UnknownNameError, match="Recall@1"):
        check_metric_name(name)


@pytest.mark.parametrize("name", ["", "accuracy", "P@0", "@"])
def test_what_resembles_nothing_is_refused_too(name):
    with pytest.raises(UnknownNameError, match="metric"):
        check_metric_name(name)
