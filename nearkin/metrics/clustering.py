"""Clustering: do the classes come out when the embeddings are grouped without labels?"""

from __future__ import annotations

import warnings
from typing import Any

from nearkin.errors import DataError
from nearkin.metrics.labels import label_array, label_codes
from nearkin.search import as_vectors

_STARTS = 2


def clustering_metrics(embeddings: Any, labels: Any, *, seed: int = 0) -> dict[str, float]:
    """NMI (arithmetic) and AMI between the labels and k-means clusters, k the number of classes.

    k-means runs on the embeddings (n, d) as they are, on one thread: sums in another order could move a border.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    vectors = as_vectors(embeddings)
    if len(vectors) == 0:
        raise DataError("There are no embeddings to cluster.")
    (codes,) = label_codes(label_array(labels, len(vectors)))
    model = KMeans(int(codes.max()) + 1, n_init=_STARTS, random_state=seed)
    with warnings.catch_warnings(), threadpool_limits(1):
        # Fewer distinct points than classes is what a collapsed model gives; the low score says it.
        warnings.simplefilter("ignore", ConvergenceWarning)
        clusters = model.fit_predict(vectors.cpu().numpy())
    return {
        "NMI": float(normalized_mutual_info_score(codes, clusters, average_method="arithmetic")),
        "AMI": float(adjusted_mutual_info_score(codes, clusters)),
    }
