"""What an audit reports, against the six numbers of Al-Kaabi, Monsefi and Zabihzadeh 2021, computed by hand.

NMI of k-means with as many clusters as test classes (eq. 26), Recall@1, 2, 4, 8, and kNN-Acc: a query is right if 3 or
more of its 5 nearest share its label.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score
from sklearn.neighbors import NearestNeighbors

import nearkin as nk
from nearkin.metrics.named import named_metrics

NAMES = ("NMI", "Recall@1", "Recall@2", "Recall@4", "Recall@8", "kNN-Acc")


def clustered(noise, seed, smallest=4, largest=14):
    """Unit vectors around centres, in classes of unequal size and in no order."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(17), rng.integers(smallest, largest, 17)))
    vectors = rng.normal(size=(17, 12))[codes] + noise * rng.normal(size=(len(codes), 12))
    return vectors.astype(np.float32), np.array([f"class {code}" for code in codes])


def unit(vectors):
    wide = vectors.astype(np.float64)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)


def printed_nmi(classes, clusters):
    """Eq. 26: twice the mutual information over the sum of the entropies, from counts."""
    n = len(classes)
    both, first, second = Counter(zip(classes, clusters, strict=True)), Counter(classes), Counter(clusters)
    information = sum(c / n * math.log(n * c / (first[y] * second[k])) for (y, k), c in both.items())
    entropies = sum(-c / n * math.log(c / n) for counts in (first, second) for c in counts.values())
    return 2 * information / entropies


def expected_values(vectors, labels):
    directions = unit(vectors)
    clusters = KMeans(len(set(labels)), n_init=2, random_state=0).fit_predict(directions.astype(np.float32))
    found = {"NMI": printed_nmi(labels, clusters)}
    assert found["NMI"] == pytest.approx(normalized_mutual_info_score(labels, clusters), abs=1e-12)
    ranked = []
    for place, query in enumerate(directions):
        order = sorted((np.linalg.norm(query - other), at) for at, other in enumerate(directions) if at != place)
        ranked.append([labels[at] == labels[place] for _, at in order])
    for k in (1, 2, 4, 8):
        found[f"Recall@{k}"] = sum(any(hits[:k]) for hits in ranked) / len(ranked)
    found["kNN-Acc"] = sum(sum(hits[:5]) >= 3 for hits in ranked) / len(ranked)
    return found


@pytest.mark.parametrize(("noise", "seed"), [(0.3, 0), (0.9, 1), (1.4, 2), (5.0, 3)])
def test_an_audit_reports_the_six_numbers(noise, seed):
    vectors, labels = clustered(noise, seed)
    expected = expected_values(vectors, labels)
    audited = nk.audit(vectors, labels)
    assert {name: audited[name] for name in NAMES} == pytest.approx(expected, abs=1e-9)
    assert audited["P@1"] == audited["Recall@1"]
    assert named_metrics(unit(vectors), labels, NAMES) == pytest.approx(expected, abs=1e-9)
    # The case is one in which the six are different numbers.
    assert len({round(value, 6) for value in expected.values()}) == (6 if noise > 0.5 else len(set(expected.values())))


def test_knn_accuracy_is_a_vote_of_five_for_the_own_class_not_for_the_most_frequent():
    """The k-nearest-neighbour classifier of scikit-learn is kinder: two of five can win a vote."""
    vectors, labels = clustered(1.2, 4)
    near = NearestNeighbors(n_neighbors=6).fit(unit(vectors)).kneighbors(unit(vectors), return_distance=False)[:, 1:]
    votes = labels[near] == labels[:, None]
    assert nk.audit(vectors, labels)["kNN-Acc"] == pytest.approx(np.mean(votes.sum(axis=1) >= 3))
    plural = [Counter(labels[row]).most_common(1)[0][0] for row in near]
    assert np.mean(np.array(plural) == labels) > np.mean(votes.sum(axis=1) >= 3)


def test_classes_too_small_for_three_votes_are_never_right():
    vectors, labels = clustered(0.01, 5, smallest=3, largest=4)
    audited = nk.audit(vectors, labels)
    assert (audited["Recall@1"], audited["kNN-Acc"]) == (1, 0)
