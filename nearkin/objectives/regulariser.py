"""The base class of regularisers: what one is called with, how it learns, and what it tells the log."""

from __future__ import annotations

from typing import Literal

from torch import nn

Takes = Literal["embeddings", "attributes", "features", "proxies"]
"""Raw embeddings (B, d), the attributes (B, M) that the pooling gives, the features (B, F) that the head takes, or the
points (C, d) that stand for the classes in the loss."""


class Regulariser(nn.Module):
    """Base of the regularisers: called with what it takes and labels (B,), it gives a scalar.

    Attributes:
        takes: what it is called with.
        width: how many columns that must have; None: any.
        learns_as_head: whether its parameters learn at the head's rate, `training.lr`, and not at that of proxies.
    """

    takes: Takes = "embeddings"
    width: int | None = None
    learns_as_head: bool = False

    def readings(self, weight: float = 1.0) -> dict[str, float]:
        """What the log shall say of the steps since the last call; nothing by default.

        Args:
            weight: what the term is multiplied by.
        """
        return {}
