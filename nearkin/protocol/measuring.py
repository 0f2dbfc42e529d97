"""Embeddings of the held-out items to numbers, one model at a time or the models of all folds together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearkin.audits.subject import asked_and_searched, published_gallery
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError
from nearkin.metrics import clustering_metrics, retrieval_metrics
from nearkin.search import Scorer
from nearkin.spaces import Euclidean, LipschitzBall, Space, Sphere

METRICS = ("MAP@R", "P@1", "R-precision")
"""What every line of a ledger has."""

PRIMARY = "MAP@R"
"""What recipes are compared by."""

KEPT = METRICS[:2]
"""The metrics of which single queries and classes are kept."""

COUNTED = ("Recall@2", "Recall@4", "Recall@8", "kNN-Acc")
"""Metrics that are right or wrong for a query, of which single queries are kept; ledgers of old lack them."""

CLUSTERED = "NMI"
"""Of k-means with as many clusters as test classes; ledgers of old lack it."""

_NEIGHBOURS = 5  # that vote in kNN-Acc
_SEED = 0  # of k-means


@dataclass(frozen=True, eq=False)
class Measured:
    """What one measurement found.

    Args:
        values: metric to its mean over the queries.
        per_query: values (2, n) of MAP@R and P@1, float32.
        hits: whether (4, n) each query is right by the counted metrics.
        per_class: metric to the means (c,) of the classes.
    """

    values: dict[str, float]
    per_query: np.ndarray
    hits: np.ndarray
    per_class: dict[str, np.ndarray]


class HeldOut:
    """The items that judge: which of them ask, and which are searched.

    Args:
        items: the items of the test classes.

    Attributes:
        classes: the classes that have queries, sorted.
        codes: the class of each query as an index into `classes`, int32 (n,).
        dropped: queries that were left out because nothing of their class is there to be found.
    """

    def __init__(self, items: Dataset) -> None:
        self.items = items
        self.gallery = published_gallery(items)
        labels = items.labels
        asking = labels if self.gallery is None else labels[~self.gallery]
        names, sizes = np.unique(labels if self.gallery is None else labels[self.gallery], return_counts=True)
        # A query without a gallery is one of its class's items itself.
        findable = names[sizes > (1 if self.gallery is None else 0)]
        answerable = np.isin(asking, findable)
        self.dropped = int((~answerable).sum())
        asking = asking[answerable]
        if not len(asking):
            raise DataError("No test class has two items, so nothing can be found: add items to the test classes.")
        classes, codes = np.unique(asking, return_inverse=True)
        self.classes = [str(name) for name in classes]
        self.codes = codes.astype(np.int32)

    def measure(self, embeddings: np.ndarray, space: Scorer) -> Measured:
        """Retrieval among the items, and clusters of all of them.

        Args:
            embeddings: points (m, d) in the data's order; of length one for the sphere, for k-means takes them as they
                are.
            space: how two of them are compared.
        """
        labels = self.items.labels
        asked = asked_and_searched(embeddings, labels, self.gallery)
        result = retrieval_metrics(**asked, metrics=(*METRICS, *COUNTED), knn=_NEIGHBOURS, space=space)
        clusters = clustering_metrics(embeddings, labels, seed=_SEED)
        sizes = np.bincount(self.codes)
        return Measured(
            result.values | {CLUSTERED: clusters[CLUSTERED]},
            np.stack([result.per_query[metric] for metric in KEPT]),
            np.stack([result.per_query[metric] > 0 for metric in COUNTED]),
            {metric: np.bincount(self.codes, weights=result.per_query[metric]) / sizes for metric in KEPT},
        )


@dataclass(frozen=True)
class Product:
    """Several spaces at once: `d(x, y)^2` is the sum of the squared distances of the parts.

    Args:
        space: the space of every part.
        parts: how many equally long parts a vector has.
    """

    space: Space
    parts: int

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (..., n, m) between (..., n, d) and (..., m, d)."""
        pairs = zip(x.chunk(self.parts, dim=-1), y.chunk(self.parts, dim=-1), strict=True)
        squares = [self.space.distance(left, right).square() for left, right in pairs]
        return torch.stack(squares).sum(dim=0).sqrt()


def concatenate(parts: Sequence[np.ndarray], space: Space) -> tuple[np.ndarray, Scorer]:
    """Points of several models, each (n, d), as one array (n, k d), and how these are compared.

    Everywhere the order is that of the product distance, the root of the summed squared distances of the models. On the
    sphere that is the renormalised concatenation; in Euclidean space and in the Lipschitz ball the concatenation as it
    is; in other spaces it is computed part by part.
    """
    joined = np.concatenate(parts, axis=1)
    if isinstance(space, Sphere):
        return Sphere().project(torch.from_numpy(joined)).numpy(), Sphere()
    if isinstance(space, Euclidean | LipschitzBall):
        return joined, Euclidean()
    return joined, Product(space, len(parts))
