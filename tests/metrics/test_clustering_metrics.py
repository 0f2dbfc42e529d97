"""Clustering metrics against scikit-learn and pytorch-metric-learning."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from nearkin.errors import DataError
from nearkin.metrics import clustering_metrics


def blobs(noise, classes=5, items=20, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), items)
    return 3 * np.eye(classes)[labels] + noise * rng.normal(size=(len(labels), classes)), labels


def test_separate_blobs_are_found_and_noise_is_not():
    assert clustering_metrics(*blobs(0.05)) == {"NMI": pytest.approx(1), "AMI": pytest.approx(1)}
    noise = clustering_metrics(np.random.default_rng(0).normal(size=(200, 4)), np.arange(200) % 10)
    assert noise["AMI"] == pytest.approx(0, abs=0.1)
    assert noise["NMI"] > noise["AMI"]  # chance alone gives mutual information


def test_matches_scikit_learn():
    x, labels = blobs(1.2)
    clusters = KMeans(5, n_init=2, random_state=3).fit_predict(x)
    assert clustering_metrics(x, labels, seed=3) == {
        "NMI": pytest.approx(normalized_mutual_info_score(labels, clusters, average_method="arithmetic")),
        "AMI": pytest.approx(adjusted_mutual_info_score(labels, clusters)),
    }


def test_nmi_is_the_printed_formula():
    """`2 I(Y;C) / (H(Y) + H(C))`, of clusters known beforehand."""
    x = np.array([[0.0], [0.0], [0.0], [9.0]])  # clusters {0, 1, 2} and {3}
    joint = np.array([[2, 0], [1, 1]]) / 4  # labels a, a, b, b
    y, c = joint.sum(axis=1), joint.sum(axis=0)
    inside = joint > 0
    mutual = (joint[inside] * np.log(joint[inside] / np.outer(y, c)[inside])).sum()
    expected = 2 * mutual / -((y * np.log(y)).sum() + (c * np.log(c)).sum())
    assert clustering_metrics(x, ["a", "a", "b", "b"])["NMI"] == pytest.approx(expected)


def test_same_seed_same_numbers_and_labels_may_be_anything():
    x, labels = blobs(1.5)
    first = clustering_metrics(x, labels, seed=1)
    assert clustering_metrics(torch.from_numpy(x), [f"class {c}" for c in labels], seed=1) == first


@pytest.mark.parametrize("labels", [[0] * 6, list(range(6)), [0, 0, 0, 1, 1, 1]])
def test_a_collapsed_model_gives_numbers_without_warnings(labels):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = clustering_metrics(np.ones((6, 2)), labels)
    assert all(np.isfinite(value) for value in values.values())


@pytest.mark.parametrize(
    ("x", "labels", "message"),
    [
        (np.full((3, 1), np.nan), [0, 1, 1], "NaN"),
        (np.zeros((3, 1)), [0, 1], "2 labels for 3"),
        (np.zeros((0, 1)), [], "no embeddings"),
    ],
)
def test_bad_input(x, labels, message):
    with pytest.raises(DataError, match=message):
        clustering_metrics(x, labels)
