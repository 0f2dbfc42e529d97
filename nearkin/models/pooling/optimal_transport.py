"""Optimal transport pooling: each reference point averages the local features transported to it.

`sqrt(K) P^T x`, where P moves the mass 1/n of each position to references of mass 1/K each, similar ones first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nearkin.models.pooling.base import Pooling, pick_centers, poolings
from nearkin.registry import Count, Positive
from nearkin.spaces import Sphere
from nearkin.spaces.space import widen


@poolings.register("ot")
class OptimalTransportPooling(Pooling):
    """Weighted means of the local features, one a learned reference point, side by side: K D values.

    The plan P maximises `sum_ik P_ik cos(x_i, z_k) + eps entropy(P)` with row sums 1/n and column sums 1/K; by a fixed
    number of Sinkhorn steps, of which the last meets the column sums. The inner product of two results is the
    similarity of two images whose features are matched through the references. With one reference, or a large eps, it
    is average pooling. Cosines, where the paper has inner products, give eps one meaning at any scale of the features.

    Reference: Mialon et al. 2021.
    Needs: references initialised with `init_from`; a large embedding.
    Use when: images consist of parts to be compared like with like, and each part has its share of every image.

    Args:
        channels: channels of the map.
        references: how many reference points, K.
        dimension: to which a 1x1 convolution reduces the local features, D; None: they keep their channels.
        regularisation: eps; low moves each feature to few references, high spreads it.
        iterations: Sinkhorn steps; a low eps needs more.
    """

    keeps_coordinates = False

    def __init__(
        self,
        channels: int,
        references: Count = 64,
        dimension: Count | None = None,
        regularisation: Positive = 0.1,
        iterations: Count = 10,
    ) -> None:
        self._check(references=references, dimension=dimension, regularisation=regularisation, iterations=iterations)
        width = channels if dimension is None else dimension
        super().__init__(channels, references * width)
        self.regularisation = regularisation
        self.iterations = iterations
        self.reduction = nn.Identity() if dimension is None else nn.Conv2d(channels, width, 1, bias=False)
        self.references = nn.Parameter(torch.randn(references, width) / math.sqrt(width))

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, K D)."""
        local = self._local(features)
        with torch.autocast(features.device.type, enabled=False):
            pooled = math.sqrt(len(self.references)) * (self._plan(local) @ local)
        return pooled.flatten(1).to(features.dtype)

    def plan(self, features: Tensor) -> Tensor:
        """How much (B, K, H, W) of each position of a map (B, C, H, W) goes to each reference; all sum to 1."""
        return self._plan(self._local(features)).unflatten(2, features.shape[2:])

    @torch.no_grad()
    def init_from(self, features: Tensor, seed: int = 0) -> None:
        """Take the references from the directions of the local features of maps (B, C, H, W)."""
        points = Sphere().project(self._local(features).flatten(0, 1))
        self.references.copy_(pick_centers(points, len(self.references), seed, "references"))

    def _local(self, features: Tensor) -> Tensor:
        """Local features (B, N, D) of a map (B, C, H, W)."""
        return widen(self.reduction(features)).flatten(2).mT

    def _plan(self, local: Tensor) -> Tensor:
        """The plan (B, K, N) of local features (B, N, D)."""
        with torch.autocast(local.device.type, enabled=False):
            cosines = Sphere().project(widen(self.references)) @ Sphere().project(local).mT
            return _sinkhorn(cosines / self.regularisation, self.iterations)


def _sinkhorn(scores: Tensor, iterations: int) -> Tensor:
    """Scale exp(scores) (B, K, N) to sums 1/N over references and 1/K over positions."""
    _, references, positions = scores.shape
    # In logarithms: the scales themselves overflow for a small regularisation.
    rows = scores.new_zeros(())
    for _ in range(iterations):
        columns = -math.log(positions) - torch.logsumexp(scores + rows, dim=1, keepdim=True)
        rows = -math.log(references) - torch.logsumexp(scores + columns, dim=2, keepdim=True)
    return (scores + rows + columns).exp()
