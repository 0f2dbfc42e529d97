"""Parts for pytorch-metric-learning: distance objects that work in our spaces, and the contrastive loss with squares.

A loss of the library takes a distance object, and that object also prepares the vectors it is given: the library's
normalise, these project into the space. So raw embeddings and raw proxies meet in the same place.
This module needs the library: reach it through `nearkin.objectives.distances`.
"""

from __future__ import annotations

from typing import Any

from pytorch_metric_learning.distances import BaseDistance, DotProductSimilarity
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor

from nearkin.spaces import Space, distance_ratio_scores


class SpaceDistance(BaseDistance):
    """A space's own distance between raw vectors."""

    def __init__(self, space: Space) -> None:
        super().__init__(normalize_embeddings=True)
        self.space = space

    def normalize(self, embeddings: Tensor, dim: int = 1, **kwargs: Any) -> Tensor:
        """Project (B, d) into the space; the library calls this before it compares."""
        return self.space.project(embeddings)

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Distances (B, R) of projected vectors (B, d) and (R, d)."""
        return self.space.distance(query_emb, ref_emb)

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Distances (B,) of projected vectors (B, d) and (B, d), row by row."""
        return self.space.distance(query_emb.unsqueeze(1), ref_emb.unsqueeze(1)).reshape(-1)


class SpaceInnerProduct(DotProductSimilarity):
    """Inner products of vectors projected into a space, times `scale`; on the sphere, scaled cosines."""

    def __init__(self, space: Space, scale: float = 1.0) -> None:
        super().__init__(normalize_embeddings=True)
        self.space = space
        self.scale = scale

    def normalize(self, embeddings: Tensor, dim: int = 1, **kwargs: Any) -> Tensor:
        """Project (B, d) into the space; the library calls this before it compares."""
        return self.space.project(embeddings)

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Products (B, R) of projected vectors (B, d) and (R, d)."""
        return self.scale * super().compute_mat(query_emb, ref_emb)


class SpaceRatio(BaseDistance):
    """`-ln d` as a similarity, with a space's own distance between raw vectors: its softmax are distance ratios."""

    def __init__(self, space: Space) -> None:
        super().__init__(normalize_embeddings=True, is_inverted=True)
        self.space = space

    def normalize(self, embeddings: Tensor, dim: int = 1, **kwargs: Any) -> Tensor:
        """Project (B, d) into the space; the library calls this before it compares."""
        return self.space.project(embeddings)

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Similarities (B, R) of projected vectors (B, d) and (R, d)."""
        return distance_ratio_scores(self.space.distance(query_emb, ref_emb), 1.0)

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Similarities (B,) of projected vectors (B, d) and (B, d), row by row."""
        apart = self.space.distance(query_emb.unsqueeze(1), ref_emb.unsqueeze(1)).reshape(-1)
        return distance_ratio_scores(apart, 1.0)


class SquaredContrastive(ContrastiveLoss):
    """The contrastive loss with half the square of what a pair is beyond its margin."""

    def get_per_pair_loss(self, pair_dists: Tensor, pos_or_neg: str) -> Tensor:
        """Losses of pairs by their distances; the library calls this."""
        beyond: Tensor = super().get_per_pair_loss(pair_dists, pos_or_neg)
        return beyond.square() / 2
