"""Clusters: k-means that gives the same for the same seed, and whether the classes come out of it.

k-means for few clusters and for thousands, the same for the same seed.
Up to `FULL_PASS` multiplications a pass (points x clusters x dimensions) scikit-learn's KMeans runs to its end, twice,
and the tighter clustering is taken. Up to `BLOCKED_PASS` points find their centres by blocked search, which takes a few
passes from k-means++ seeds drawn here. These are drawn once, where scikit-learn takes the best of several draws for
every seed, so thousands of small classes are found less well than by the first way. Beyond, MiniBatchKMeans starts from
such seeds; it is worse still, because a centre that has averaged many points lies near the middle and attracts more.

Clustering: do the classes come out when the embeddings are grouped without labels?
With I the mutual information of classes Y and clusters C, H an entropy and E[I] the mean of I over all clusterings with
clusters of the same sizes: `NMI = 2 I / (H(Y) + H(C))` and `AMI = (I - E[I]) / ((H(Y) + H(C)) / 2 - E[I])`. Over pairs
of items, `F1 = 2 P R / (P + R)` with P the share of pairs of a cluster that share a class and R the share of pairs of a
class that share a cluster.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy import sparse

from nearkin.errors import DataError
from nearkin.metrics.labels import label_array, label_codes
from nearkin.search import as_vectors, exact

FULL_PASS = 2**32
"""Multiplications of a pass up to which k-means runs to its end; the 100 test classes of CUB need a fiftieth."""

BLOCKED_PASS = 2**38
"""Multiplications of a pass beyond which mini-batches are used: some seconds of two cores."""

_MOST_PASSES = 20
_SETTLED = 1e-3
_STARTS = 2
_BATCH = 4096
_PASSES = 5
_CANDIDATES = 64  # seeds drawn at once
_ROWS = 2**16  # points compared with them at once: 16 MB of distances


def cluster(points: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Clusters (n,) from 0 to k - 1 of points (n, d), k at most n.

    One thread: sums in another order could move a border. Memory beyond the points is a few copies of them and
    of the centres, and blocks of 16 MB.
    """
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with warnings.catch_warnings(), threadpool_limits(1):
        # Fewer distinct points than clusters is what a collapsed model gives; the low score says it.
        warnings.simplefilter("ignore", ConvergenceWarning)
        if points.size * k <= FULL_PASS:
            return KMeans(k, n_init=_STARTS, random_state=seed).fit_predict(points)
        # Float32 around zero and within one, so that squares keep their digits; clusters do not change by it.
        points = points - points.mean(axis=0, dtype=np.float64).astype(points.dtype)
        points = (points / (np.abs(points).max() or 1)).astype(np.float32, copy=False)
        centres = points[spread_seeds(points, k, np.random.default_rng(seed))]
        if points.size * k <= BLOCKED_PASS:
            return blocked_passes(points, centres)
        model = MiniBatchKMeans(
            k,
            init=centres,
            n_init=1,
            init_size=k,
            batch_size=_BATCH,
            max_iter=_PASSES,
            # With five points a cluster most clusters are missing from a batch; that does not make them superfluous.
            reassignment_ratio=0.0,
            random_state=seed,
        )
        return model.fit_predict(points)


def blocked_passes(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Clusters (n,) of points (n, d) by Lloyd's passes from centres (k, d), until hardly a point moves.

    A centre that loses all its points stays where it is.
    """
    clusters = np.full(len(points), -1)
    for _ in range(_MOST_PASSES):
        nearest = exact(points, centres, 1, space="euclidean")[1][:, 0].numpy()
        moved = np.count_nonzero(nearest != clusters)
        clusters = nearest
        if moved <= _SETTLED * len(points):
            break
        sums = sparse.csr_array((np.ones(len(points), points.dtype), clusters, np.arange(len(points) + 1))).T @ points
        counts = np.bincount(clusters, minlength=len(centres))[:, None]
        full = np.zeros_like(centres)
        full[: len(sums)] = sums
        centres = np.where(counts > 0, full / np.maximum(counts, 1), centres).astype(np.float32)
    return clusters


def spread_seeds(points: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Rows (k,) of points (n, d) chosen by k-means++: each with probability in proportion to `D^2`.

    `D^2` is the squared distance to the nearest seed so far. Random seeds would miss a third of thousands of small
    classes and never recover. scikit-learn's k-means++ reads all points again for each seed; here candidates are drawn
    in blocks from the `D^2` before the block, and a candidate is kept with probability `D^2 now / D^2 before`, which
    makes the draws exactly those of one at a time, at the price of one matrix product a block.
    """
    nearest = np.full(len(points), np.inf, dtype=points.dtype)
    chosen: list[int] = []
    new = [int(rng.integers(len(points)))]
    while True:
        chosen += new
        _shrink(nearest, points, new)
        mass = np.cumsum(nearest, dtype=np.float64)
        if len(chosen) == k or mass[-1] == 0:
            break
        drawn = np.searchsorted(mass, rng.random(_CANDIDATES) * mass[-1], side="right")
        new = _keep(points[drawn], nearest[drawn], drawn, rng)[: k - len(chosen)]
    # Only copies of seeds are left: any of them will do.
    rest = rng.permutation(np.setdiff1d(np.arange(len(points)), chosen))[: k - len(chosen)]
    return np.concatenate([np.array(chosen, np.int64), rest])


def _keep(candidates: np.ndarray, before: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> list[int]:
    """The candidates (c, d) to keep, given their D^2 (c,) before the block; the first always is."""
    between = _squared(candidates, candidates)
    between[rows[:, None] == rows] = 0
    now, limits = before.copy(), before * rng.random(len(before))
    kept = []
    for place, row in enumerate(rows):
        if now[place] > limits[place]:
            kept.append(int(row))
            np.minimum(now, between[place], out=now)
    return kept


def _shrink(nearest: np.ndarray, points: np.ndarray, seeds: list[int]) -> None:
    """Lower the squared distances (n,) to the nearest seed by new ones, in place."""
    for start in range(0, len(points), _ROWS):
        block = slice(start, start + _ROWS)
        np.minimum(nearest[block], _squared(points[block], points[seeds]).min(axis=1), out=nearest[block])
    nearest[seeds] = 0


def _squared(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Squared distances (n, m) of (n, d) and (m, d)."""
    products = x @ y.T
    products *= -2
    products += np.einsum("nd,nd->n", x, x)[:, None]
    products += np.einsum("md,md->m", y, y)
    return np.maximum(products, 0, out=products)


def clustering_metrics(embeddings: Any, labels: Any, *, seed: int = 0) -> dict[str, float]:
    """NMI, AMI and pairwise F1 between the labels and k-means clusters, k the number of classes.

    k-means compares by Euclidean distance and runs on the embeddings as they are: bring them into their space first
    (unit length for the sphere). Up to 2^32 multiplications a pass (n x k x d) it is scikit-learn's KMeans, up to 2^38
    a few passes of blocked search, beyond that MiniBatchKMeans (`nearkin.metrics.clusters`): the larger ways find small
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
    return agreement(codes, cluster(vectors.cpu().numpy(), int(codes.max()) + 1, seed))


def agreement(codes: np.ndarray, clusters: np.ndarray) -> dict[str, float]:
    """NMI, AMI and F1 of classes (n,) and clusters (n,), from the sizes of classes, clusters and their overlaps."""
    from scipy.stats import entropy
    from sklearn.metrics import mutual_info_score
    from sklearn.metrics.cluster import contingency_matrix

    table = contingency_matrix(codes, clusters, sparse=True)  # a cell only where a class and a cluster meet
    class_sizes, group_sizes = (np.asarray(table.sum(axis=axis)).ravel() for axis in (1, 0))
    if table.nnz == len(class_sizes) == len(group_sizes):  # each cluster is a class
        return {"NMI": 1.0, "AMI": 1.0, "F1": 1.0}
    mutual = max(0.0, float(mutual_info_score(None, None, contingency=table)))
    mean = float(entropy(class_sizes) + entropy(group_sizes)) / 2
    chance = _chance_information(class_sizes, group_sizes)
    alone = min(len(class_sizes), len(group_sizes)) == 1  # nothing to be informed of
    return {
        "NMI": 0.0 if alone else mutual / mean,
        "AMI": 0.0 if alone else (mutual - chance) / max(mean - chance, np.finfo(np.float64).eps),
        "F1": 2 * _pairs(table.data) / (_pairs(class_sizes) + _pairs(group_sizes)),
    }


def _pairs(sizes: np.ndarray) -> int:
    """How many pairs lie inside groups of these sizes: a Python integer, exact however many."""
    return sum(size * (size - 1) // 2 for size in sizes.tolist())


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
