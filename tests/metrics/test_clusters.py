"""Clustering metrics against scikit-learn, counted pairs and printed formulas."""

import itertools
import tracemalloc
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
from sklearn.metrics.cluster import pair_confusion_matrix

from nearkin.errors import DataError
from nearkin.metrics import clustering_metrics, clusters
from nearkin.metrics.clusters import _pairs, agreement


def blobs(noise, classes=5, items=20, seed=0, dimensions=None):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), items)
    centres = 3 * np.eye(classes) if dimensions is None else rng.normal(size=(classes, dimensions))
    return centres[labels] + noise * rng.normal(size=(len(labels), centres.shape[1])), labels


def naive_f1(codes, clusters):
    both = in_cluster = in_class = 0
    for i, j in itertools.combinations(range(len(codes)), 2):
        both += codes[i] == codes[j] and clusters[i] == clusters[j]
        in_cluster += clusters[i] == clusters[j]
        in_class += codes[i] == codes[j]
    if not both:
        return 1.0 if in_cluster == in_class == 0 else 0.0
    precision, recall = both / in_cluster, both / in_class
    return 2 * precision * recall / (precision + recall)


@pytest.fixture(params=[2**38, 0], ids=["blocked", "mini-batches"])
def large(request, monkeypatch):
    """Every data set is a large one, or a very large one."""
    monkeypatch.setattr(clusters, "FULL_PASS", 0)
    monkeypatch.setattr(clusters, "BLOCKED_PASS", request.param)


@pytest.fixture(params=["small", "blocked", "mini-batches"])
def size(request, monkeypatch):
    """Every way, whatever the size of the data set."""
    if request.param != "small":
        monkeypatch.setattr(clusters, "FULL_PASS", 0)
        monkeypatch.setattr(clusters, "BLOCKED_PASS", 2**38 if request.param == "blocked" else 0)


def test_blocked_passes_are_those_of_lloyd(monkeypatch):
    monkeypatch.setattr(clusters, "_SETTLED", 0)
    monkeypatch.setattr(clusters, "_MOST_PASSES", 300)
    x = np.random.default_rng(0).normal(size=(700, 5)).astype(np.float32)
    centres = x[clusters.spread_seeds(x, 40, np.random.default_rng(1))]
    theirs = KMeans(40, init=centres, n_init=1, tol=0, algorithm="lloyd").fit_predict(x)
    np.testing.assert_array_equal(clusters.blocked_passes(x, centres), theirs)


def test_a_centre_without_points_stays():
    x = np.array([[0.0], [1.0], [10.0]], np.float32)
    assert clusters.blocked_passes(x, np.array([[0.5], [10.0], [99.0]], np.float32)).tolist() == [0, 0, 1]


partitions = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 6), min_size=n, max_size=n).map(np.array)] * 2)
)


@settings(max_examples=200, deadline=None)
@given(partitions)
def test_agreement_is_that_of_scikit_learn_and_of_counted_pairs(both):
    codes, clusters = both
    ours = agreement(codes, clusters)
    assert ours["NMI"] == pytest.approx(normalized_mutual_info_score(codes, clusters), abs=1e-9)
    assert ours["F1"] == pytest.approx(naive_f1(codes, clusters), abs=1e-12)
    # Where chance leaves nothing to correct, scikit-learn divides rounding by rounding.
    if 1 < max(len(set(codes)), len(set(clusters))) < len(codes):
        assert ours["AMI"] == pytest.approx(adjusted_mutual_info_score(codes, clusters), abs=1e-9)


def test_agreement_of_many_classes_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    codes = rng.permutation(np.repeat(np.arange(300), rng.integers(1, 9, 300)))
    clusters = np.where(rng.random(len(codes)) < 0.4, rng.integers(0, 250, len(codes)), codes)
    ours = agreement(codes, clusters)
    (_, false), (missed, both) = pair_confusion_matrix(codes, clusters)
    assert ours == {
        "NMI": pytest.approx(normalized_mutual_info_score(codes, clusters), rel=1e-10),
        "AMI": pytest.approx(adjusted_mutual_info_score(codes, clusters), rel=1e-9),
        "F1": pytest.approx(2 * both / (2 * both + false + missed), rel=1e-14),
    }


def test_pairs_are_counted_exactly_beyond_what_floats_and_int64_hold():
    assert _pairs(np.array([2**31, 2**31, 3])) == 2 * (2**31 * (2**31 - 1) // 2) + 3
    assert _pairs(np.array([2**40])) == 2**39 * (2**40 - 1)


@pytest.mark.usefixtures("size")
def test_separate_blobs_are_found_and_noise_is_not():
    assert clustering_metrics(*blobs(0.05)) == {"NMI": 1, "AMI": 1, "F1": 1}
    noise = clustering_metrics(np.random.default_rng(0).normal(size=(200, 4)), np.arange(200) % 10)
    assert noise["AMI"] == pytest.approx(0, abs=0.1)
    assert noise["NMI"] > noise["AMI"]  # chance alone gives mutual information
    assert noise["F1"] == pytest.approx(0.1, abs=0.03)  # a cluster of 20 shares a class by chance one time in ten


def test_matches_scikit_learn():
    x, labels = blobs(1.2)
    clusters = KMeans(5, n_init=2, random_state=3).fit_predict(x)
    ours = clustering_metrics(x, labels, seed=3)
    assert ours["NMI"] == pytest.approx(normalized_mutual_info_score(labels, clusters, average_method="arithmetic"))
    assert ours["AMI"] == pytest.approx(adjusted_mutual_info_score(labels, clusters))
    assert ours["F1"] == pytest.approx(naive_f1(labels, clusters))


def test_nmi_is_the_printed_formula():
    """`2 I(Y;C) / (H(Y) + H(C))`, of clusters known beforehand."""
    x = np.array([[0.0], [0.0], [0.0], [9.0]])  # clusters {0, 1, 2} and {3}
    joint = np.array([[2, 0], [1, 1]]) / 4  # labels a, a, b, b
    y, c = joint.sum(axis=1), joint.sum(axis=0)
    inside = joint > 0
    mutual = (joint[inside] * np.log(joint[inside] / np.outer(y, c)[inside])).sum()
    expected = 2 * mutual / -((y * np.log(y)).sum() + (c * np.log(c)).sum())
    values = clustering_metrics(x, ["a", "a", "b", "b"])
    assert values["NMI"] == pytest.approx(expected)
    assert values["F1"] == pytest.approx(2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2))


@pytest.mark.usefixtures("size")
def test_same_seed_same_numbers_and_labels_may_be_anything():
    x, labels = blobs(1.5)
    first = clustering_metrics(x, labels, seed=1)
    assert clustering_metrics(torch.from_numpy(x), [f"class {c}" for c in labels], seed=1) == first
    assert all(type(value) is float for value in first.values())


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("labels", [[0] * 6, list(range(6)), [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2]])
@pytest.mark.parametrize("points", [np.ones((6, 2)), np.eye(2)[[0, 0, 0, 0, 0, 1]], 1e30 * np.eye(6, 3)])
def test_a_collapsed_model_gives_numbers_without_warnings(labels, points):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = clustering_metrics(points, labels)
    assert all(np.isfinite(value) for value in values.values())


def test_a_single_class_is_found_and_a_single_cluster_tells_nothing():
    assert clustering_metrics(np.random.default_rng(0).normal(size=(9, 2)), ["x"] * 9) == {"NMI": 1, "AMI": 1, "F1": 1}
    assert agreement(np.array([0, 0, 1, 1]), np.zeros(4, int)) == {"NMI": 0, "AMI": 0, "F1": pytest.approx(1 / 2)}


def test_the_limit_separates_the_two_methods(monkeypatch):
    """One multiplication below the limit the answer is that of KMeans, one above it that of the seeds drawn here."""
    x, labels = blobs(1.5, classes=6, items=10)
    drawn = []
    monkeypatch.setattr(
        clusters,
        "spread_seeds",
        lambda points, k, rng, draw=clusters.spread_seeds: drawn.append(k) or draw(points, k, rng),
    )
    monkeypatch.setattr(clusters, "FULL_PASS", x.size * 6)
    assert clustering_metrics(x, labels) == clustering_metrics(x, labels)
    assert drawn == []
    monkeypatch.setattr(clusters, "FULL_PASS", x.size * 6 - 1)
    clustering_metrics(x, labels)
    assert drawn == [6]


@pytest.mark.parametrize("limit", [2**38, 0])
def test_large_ways_lose_little_with_many_small_tight_classes(monkeypatch, limit):
    """300 classes of 5: random seeds would find two thirds of them."""
    x, labels = blobs(0.1, classes=300, items=5, dimensions=12)
    full = clustering_metrics(x, labels)
    monkeypatch.setattr(clusters, "FULL_PASS", 0)
    monkeypatch.setattr(clusters, "BLOCKED_PASS", limit)
    few = clustering_metrics(x, labels)
    assert few["NMI"] > full["NMI"] - 0.02
    assert few["F1"] > 0.8


def test_large_ways_make_no_matrix_of_points_and_clusters(large):
    x, labels = blobs(0.5, classes=1500, items=4, dimensions=4)
    x = x.astype(np.float32)
    clustering_metrics(x[:300], labels[:300])  # imports
    tracemalloc.start()
    clustering_metrics(x, labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(x) * 1500 * 4 / 4


def test_seeds_are_drawn_in_proportion_to_the_squared_distance():
    """Four points on a line: after a first seed, which second one? Against the exact probabilities."""
    points = np.array([[0.0], [1.0], [3.0], [3.5]])
    gaps = (points - points.T) ** 2
    expected = np.zeros((4, 4))
    for first in range(4):
        expected[first] = gaps[first] / gaps[first].sum() / 4
    counts, rng, draws = np.zeros((4, 4)), np.random.default_rng(0), 8000
    for _ in range(draws):
        first, second = clusters.spread_seeds(points, 2, rng)
        counts[first, second] += 1
    np.testing.assert_allclose(counts / draws, expected, atol=4 * np.sqrt(0.25 * 0.75 / draws))


def test_seeds_of_a_block_are_drawn_as_one_at_a_time():
    """Third seeds come from the block of candidates of the second, yet know of it: the exact probabilities."""
    points = np.array([[0.0], [1.0], [3.0], [3.5]])
    gaps = (points - points.T) ** 2
    expected = {}
    for i, j, k in itertools.permutations(range(4), 3):
        nearest = np.minimum(gaps[i], gaps[j])
        expected[i, j, k] = gaps[i, j] / gaps[i].sum() * nearest[k] / nearest.sum() / 4
    assert sum(expected.values()) == pytest.approx(1)
    rng, draws = np.random.default_rng(1), 8000
    found = [tuple(clusters.spread_seeds(points, 3, rng).tolist()) for _ in range(draws)]
    for order, probability in expected.items():
        assert found.count(order) / draws == pytest.approx(probability, abs=4.5 * np.sqrt(probability / draws) + 1e-3)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 200), distinct=st.integers(1, 200))
def test_seeds_are_different_rows_that_cover_every_distinct_point_first(seed, n, distinct):
    rng = np.random.default_rng(seed)
    points = rng.integers(0, distinct, size=(n, 1)).astype(np.float32)
    k = int(rng.integers(1, n + 1))
    rows = clusters.spread_seeds(points, k, rng)
    assert len(set(rows.tolist())) == k
    assert len(np.unique(points[rows])) == min(k, len(np.unique(points)))


@pytest.mark.parametrize(
    ("x", "labels", "message"),
    [
        (np.full((3, 1), np.nan), [0, 1, 1], "NaN"),
        (np.zeros((3, 1)), [0, 1], "labels"),
        (np.zeros((0, 1)), [], "embeddings"),
    ],
)
def test_bad_input(x, labels, message):
    with pytest.raises(DataError, match=message):
        clustering_metrics(x, labels)
