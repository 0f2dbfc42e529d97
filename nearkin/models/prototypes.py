"""What stands for each class of a learned similarity: a moving average of its embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearkin.errors import DataError


class PrototypeBank(nn.Module):
    """A point for each class, moved towards the class's mean in every batch it appears in, never by a gradient.

    `C <- momentum C + (1 - momentum) mean` of the batch's embeddings of the class; classes that are not in the batch
    stay where they are. The points are saved with the model.

    Reference: *Learning semantic similarities for prototypical classifiers* (submitted to ICLR 2021), section 3.1.

    Args:
        classes: how many.
        dimension: size of an embedding.
    """

    points: Tensor

    def __init__(self, classes: int, dimension: int) -> None:
        super().__init__()
        self.register_buffer("points", torch.randn(classes, dimension))

    def __len__(self) -> int:
        return len(self.points)

    @torch.no_grad()
    def update(self, embeddings: Tensor, labels: Tensor, momentum: float = 0.9) -> None:
        """Take in a batch.

        Args:
            embeddings: (B, d).
            labels: (B,) int64 in 0 ... classes - 1.
            momentum: share of the old point that is kept.
        """
        if embeddings.ndim != 2 or embeddings.shape[1] != self.points.shape[1]:
            raise DataError(
                f"The prototypes have {self.points.shape[1]} dimensions and were given embeddings of shape "
                f"{tuple(embeddings.shape)}: give those of the model they belong to."
            )
        sums = torch.zeros_like(self.points).index_add_(0, labels, embeddings.to(self.points.dtype))
        counts = torch.bincount(labels, minlength=len(self.points)).to(sums)
        seen = counts > 0
        means = sums[seen] / counts[seen, None]
        self.points[seen] = momentum * self.points[seen] + (1.0 - momentum) * means
