"""What a loss of a learned similarity teaches besides the embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from nearkin.models.prototypes import PrototypeBank
from nearkin.models.similarity import PairSimilarity


@dataclass(frozen=True, eq=False)
class SimilarityParts:
    """Parts of a model that a loss is given.

    Attributes:
        network: the similarity of two embeddings.
        prototypes: what stands for each class.
        dense: the output layer of a standard classifier; None: there is none.
    """

    network: PairSimilarity
    prototypes: PrototypeBank
    dense: nn.Linear | None

    def class_scores(self, points: Tensor, by: Literal["sim", "dol"] = "sim", *, at_rest: bool = False) -> Tensor:
        """Scores (B, C) of embeddings (B, d): similarities to the prototypes, or what the dense layer gives.

        Args:
            points: points of the space.
            by: "sim" or "dol".
            at_rest: drop nothing out, even in training mode.
        """
        if by == "dol" and self.dense is not None:
            scores: Tensor = self.dense(points)
            return scores
        return self.network.table(points, self.prototypes.points.to(points.dtype), at_rest=at_rest)
