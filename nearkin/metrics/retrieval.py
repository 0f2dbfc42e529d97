"""Retrieval: is what lies near a query of its class?

With R the number of other items of the query's class and hit_i whether its i-th neighbour is one of them:
`P@1 = hit_1`, `R-precision = 1/R sum_{i<=R} hit_i`, `MAP@R = 1/R sum_{i<=R} P@i hit_i`, `MRR = 1/rank of first hit`,
`Recall@k = any hit_{i<=k}`, `kNN-Acc = more than half of hit_{i<=k}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import DataError
from nearkin.metrics.labels import label_array, label_codes
from nearkin.metrics.result import RetrievalResult
from nearkin.search import Ranking, as_pair, smallest
from nearkin.spaces import Space, Sphere

_SPHERE = Sphere()
_HIT_ENTRIES = 2**21


@torch.no_grad()
def retrieval_metrics(
    embeddings: Any,
    labels: Any,
    *,
    gallery: Any | None = None,
    gallery_labels: Any | None = None,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    knn: int = 5,
    space: Space = _SPHERE,
) -> RetrievalResult:
    """Retrieval metrics of embeddings, each against all others or against a gallery.

    Without a gallery a query is never its own neighbour, but its exact copies are. Equal distances go by the lower
    index. Queries that have no item of their class to find are dropped and counted. A k beyond the gallery's size means
    all of it.

    Args:
        embeddings: points of the space (q, d), array or tensor.
        labels: q labels of any hashable kind.
        gallery: points (n, d) to search instead of the other embeddings; needs `gallery_labels`.
        gallery_labels: n labels.
        recall_at: the k of Recall@k.
        knn: how many neighbours vote in kNN-Acc; a strict majority must share the query's label (3 of 5).
        space: whose distance orders the neighbours.
    """
    if min([knn, *recall_at]) < 1:
        raise DataError("The k of Recall@k and kNN-Acc must be at least 1.")
    if (gallery is None) != (gallery_labels is None):
        raise DataError("A gallery and its labels go together: give both or neither.")
    queries, points = as_pair(embeddings, gallery)
    query_labels = label_array(labels, len(queries))
    if points is None:
        (codes,) = (point_codes,) = label_codes(query_labels)
    else:
        codes, point_codes = label_codes(query_labels, label_array(gallery_labels, len(points), "gallery labels"))
    positives = np.bincount(point_codes, minlength=int(codes.max(initial=0)) + 1)[codes] - (points is None)
    kept = np.flatnonzero(positives > 0)
    if len(kept) == 0:
        raise DataError(
            "No query has another item of its class to find: give every class two items or more, or a gallery that "
            "shares the queries' classes."
        )
    scorer = _Scorer(Ranking(queries, points, space), codes, point_codes, positives, tuple(recall_at), knn)
    per_query = scorer.run(kept)
    return RetrievalResult(
        values={name: float(values.mean()) for name, values in per_query.items()},
        per_query={name: values.astype(np.float32) for name, values in per_query.items()},
        kept=kept,
        dropped=len(queries) - len(kept),
        labels=query_labels[kept],
    )


class _Scorer:
    """Metrics of single queries, a block at a time."""

    def __init__(
        self,
        ranking: Ranking,
        codes: np.ndarray,
        point_codes: np.ndarray,
        positives: np.ndarray,
        recall_at: tuple[int, ...],
        knn: int,
    ) -> None:
        self.ranking = ranking
        self.codes = torch.from_numpy(codes)
        self.point_codes = torch.from_numpy(point_codes)
        self.positives = torch.from_numpy(positives)
        self.recall_at = recall_at
        self.knn = knn
        self.names = ["P@1", "R-precision", "MAP@R", "MRR", *(f"Recall@{k}" for k in recall_at), "kNN-Acc"]

    def run(self, kept: np.ndarray) -> dict[str, np.ndarray]:
        """Metric name to float64 (kept,)."""
        # Classes of a size go together, so that one large class does not widen every block.
        order = np.argsort(self.positives.numpy()[kept], kind="stable")
        rows = torch.from_numpy(kept[order])
        # Written in place: small results kept between large blocks would leave the allocator holes it cannot fill.
        results = {name: np.empty(len(kept)) for name in self.names}
        start = 0
        while start < len(rows):
            some = rows[start : start + self.ranking.rows_at_once]
            some = some[: max(1, _HIT_ENTRIES // self._depth(some))]
            for name, values in self._block(some).items():
                results[name][order[start : start + len(some)]] = values.numpy()
            start += len(some)
        return results

    def _depth(self, rows: Tensor) -> int:
        """How many neighbours a block must see."""
        return min(self.ranking.size, max(*self.recall_at, self.knn, int(self.positives[rows].max())))

    def _block(self, rows: Tensor) -> dict[str, Tensor]:
        depth = self._depth(rows)
        scores = self.ranking.scores(rows)
        codes, total = self.codes[rows].unsqueeze(1), self.positives[rows].unsqueeze(1)
        hits = self.point_codes[smallest(scores, depth)[1].cpu()] == codes
        place = torch.arange(1, depth + 1)
        counted = hits & (place <= total)
        precision = hits.cumsum(dim=1).double() / place
        voters = min(self.knn, depth)
        return {
            "P@1": hits[:, 0].double(),
            "R-precision": counted.sum(dim=1).double() / total[:, 0],
            "MAP@R": (precision * counted).sum(dim=1) / total[:, 0],
            "MRR": 1 / self._first_rank(scores, hits, codes).double(),
            **{f"Recall@{k}": hits[:, :k].any(dim=1).double() for k in self.recall_at},
            "kNN-Acc": (hits[:, :voters].sum(dim=1) > voters // 2).double(),
        }

    def _first_rank(self, scores: Tensor, hits: Tensor, codes: Tensor) -> Tensor:
        """Rank (b,) of the first hit, counted in the whole gallery where the neighbours seen hold none."""
        rank = hits.int().argmax(dim=1) + 1
        late = (~hits.any(dim=1)).nonzero()[:, 0]
        if len(late):
            scores = scores[late].cpu()
            own = scores.masked_fill(self.point_codes != codes[late], torch.inf)
            best, column = own.min(dim=1, keepdim=True)
            column = (own == best).int().argmax(dim=1, keepdim=True)  # the lowest of equals
            earlier = torch.arange(scores.shape[1]) < column
            rank[late] = ((scores < best) | ((scores == best) & earlier)).sum(dim=1) + 1
        return rank
