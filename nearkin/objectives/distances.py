"""What a loss or a miner compares raw vectors with, chosen by the space.

The library, pytorch-metric-learning, is imported here when a loss is built, never before.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from nearkin.errors import require
from nearkin.objectives.registry import Given
from nearkin.spaces import Space


def library(part: str) -> ModuleType:
    """A part of pytorch-metric-learning: "losses", "miners", "distances"."""
    return require(f"pytorch_metric_learning.{part}", extra="train")


def distance_in(space: Space) -> Any:
    """The distance object of a space. On the sphere margins are chord lengths, whatever its search measures by."""
    if space.name == "sphere":
        return library("distances").LpDistance()
    return _ours().SpaceDistance(space)


def similarity_in(space: Space) -> Any:
    """The similarity object of a space: the cosine on the sphere, the inner product elsewhere."""
    if space.name == "sphere":
        return library("distances").CosineSimilarity()
    return _ours().SpaceInnerProduct(space)


def scaled_product_in(space: Space, scale: float) -> Any:
    """The inner product of a space times `scale`, as a similarity object."""
    return _ours().SpaceInnerProduct(space, scale)


def ratio_in(space: Space) -> Any:
    """`-ln d` with a space's own distance, as a similarity object."""
    return _ours().SpaceRatio(space)


def contrastive_in(space: Space, pos_margin: float, neg_margin: float, *, squared: bool) -> Any:
    """The library's contrastive loss in a space, with distances beyond margins as they are or squared."""
    kind = _ours().SquaredContrastive if squared else library("losses").ContrastiveLoss
    return kind(pos_margin=pos_margin, neg_margin=neg_margin, distance=distance_in(space))


class OnSphere(nn.Module):
    """Hand unit vectors to a loss or miner of the library that normalises only some of those it compares."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(
        self, embeddings: Tensor, labels: Tensor, *choice: Any, ref_emb: Given = None, ref_labels: Given = None
    ) -> Any:
        """What the module makes of F.normalize(embeddings) (B, d) and labels (B,), and of references likewise."""
        if ref_emb is None:
            return self.module(F.normalize(embeddings), labels, *choice)
        unit = F.normalize(ref_emb)
        return self.module(F.normalize(embeddings), labels, *choice, ref_emb=unit, ref_labels=ref_labels)


def _ours() -> ModuleType:
    library("distances")  # says which extra is missing before our subclasses fail on it
    from nearkin.objectives import space_distances

    return space_distances
