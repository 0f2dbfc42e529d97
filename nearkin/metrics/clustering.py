"""Clustering: do the classes come out when the embeddings are grouped without labels?

With I the mutual information of classes Y and clusters C, H an entropy and E[I] the mean of I over all clusterings with
clusters of the same sizes: `NMI = 2 I / (H(Y) + H(C))` and `AMI = (I - E[I]) / ((H(Y) + H(C)) / 2 - E[I])`. Over pairs
of items, `F1 = 2 P R / (P + R)` with P the share of pairs of a cluster that share a class and R the share of pairs of a
class that share a cluster.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.metrics import kmeans
from nearkin.metrics.labels import label_array, label_codes
from nearkin.search import as_vectors


def clustering_metrics(embeddings: Any, labels: Any, *, seed: int = 0) -> dict[str, float]:
    """NMI, AMI and pairwise F1 between the labels and k-means clusters, k the number of classes.

    k-means compares by Euclidean distance and runs on the embeddings as they are: bring them into their space first
    (unit length for the sphere). Up to 2^32 multiplications a pass (n x k x d) it is scikit-learn's KMeans, up to 2^38
    a few passes of blocked search, beyond that MiniBatchKMeans (`nearkin.metrics.kmeans`): the larger ways find small
    classes less well, so compare only values of one way. NMI rises with the number of clusters by chance alone; AMI
    is corrected for it.

    A single class can only be found: it gives 1 for all three, as scikit-learn does.

    Args:
        embeddings: (n, d), array or tensor.
        labels: n labels of any hashable kind.
        seed: the same seed gives the same clusters.
    """
    vectors = as_vectors(embeddings)
    if len(vectors) == 0:
        raise DataError("There are no embeddings to cluster.")
    (codes,) = label_codes(label_array(labels, len(vectors)))
    return _agreement(codes, kmeans.cluster(vectors.cpu().numpy(), int(codes.max()) + 1, seed))


def _agreement(codes: np.ndarray, clusters: np.ndarray) -> dict[str, float]:
    """NMI, AMI and F1 of classes (n,) and clusters (n,), from the sizes of classes, clusters and their overlaps."""
    classes, class_sizes = np.unique(codes, return_inverse=True, return_counts=True)[1:]
    groups, group_sizes = np.unique(clusters, return_inverse=True, return_counts=True)[1:]
    # A cell is counted only where a class and a cluster meet, at most n times.
    cells, overlaps = np.unique(classes.astype(np.int64) * len(group_sizes) + groups, return_counts=True)
    if len(overlaps) == len(class_sizes) == len(group_sizes):  # each cluster is a class
        return {"NMI": 1.0, "AMI": 1.0, "F1": 1.0}
    rows, columns = np.divmod(cells, len(group_sizes))
    shares = overlaps / (class_sizes[rows] * (group_sizes[columns] / len(codes)))
    mutual = max(0.0, float((overlaps / len(codes) * np.log(shares)).sum()))
    entropy = (_entropy(class_sizes) + _entropy(group_sizes)) / 2
    chance = _chance_information(class_sizes, group_sizes)
    alone = min(len(class_sizes), len(group_sizes)) == 1  # nothing to be informed of
    return {
        "NMI": 0.0 if alone else mutual / entropy,
        "AMI": 0.0 if alone else (mutual - chance) / max(entropy - chance, np.finfo(np.float64).eps),
        "F1": 2 * _pairs(overlaps) / (_pairs(class_sizes) + _pairs(group_sizes)),
    }


def _pairs(sizes: np.ndarray) -> int:
    """How many pairs lie inside groups of these sizes: a Python integer, exact however many."""
    different, times = np.unique(sizes, return_counts=True)
    return sum(size * (size - 1) // 2 * count for size, count in zip(different.tolist(), times.tolist(), strict=True))


def _entropy(sizes: np.ndarray) -> float:
    shares = sizes / sizes.sum()
    return float(-(shares * np.log(shares)).sum())


def _chance_information(class_sizes: np.ndarray, group_sizes: np.ndarray) -> float:
    """E[I] for classes and clusters of these sizes (Vinh, Epps and Bailey, JMLR 2010).

    A class of a items and a cluster of b share m of them with the hypergeometric probability, and contribute
    `m/n log(n m / (a b))`. Equal sizes contribute equally: thousands of classes have few different sizes, at most
    `sqrt(2 n)`, and the sizes of one block below sum to at most n.
    """
    from scipy.special import gammaln

    n = int(class_sizes.sum())
    sizes, times = np.unique(group_sizes, return_counts=True)
    total = 0.0
    for a, a_times in zip(*np.unique(class_sizes, return_counts=True), strict=True):
        count = np.minimum(a, sizes)
        b = np.repeat(sizes, count)
        m = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + 1
        ways = gammaln(a + 1) + gammaln(b + 1) + gammaln(n - a + 1) + gammaln(n - b + 1) - gammaln(n + 1)
        # An overlap too small to be possible has the probability exp(-inf).
        ways -= gammaln(m + 1) + gammaln(a - m + 1) + gammaln(b - m + 1) + gammaln(n - a - b + m + 1)
        terms = np.repeat(times, count) * (m / n) * (np.log(m / a) + np.log(n / b)) * np.exp(ways)
        total += float(a_times * terms.sum())
    return total
