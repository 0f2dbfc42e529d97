"""NetVLAD: where local features lie relative to the centers they belong to.

`V_k = sum_i a_ik (x_i - c_k)` with `a_i = softmax_k(w_k . x_i + b_k)`; each V_k, then all of them, at length one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.models.pooling.base import Pooling, pick_centers, poolings
from nearkin.registry import Count, Positive
from nearkin.spaces import Sphere, euclidean_distance
from nearkin.spaces.space import widen

_ALPHA = 10.0
"""Sharpness where no features tell a better one."""
_RATIO = 100.0
"""How many times more the nearest center gets than the next, on average, after `init_from`."""
_CLOSEST = 1e-3
"""Smallest difference of squared distances that alpha is chosen by: it stays finite where all features are equal."""
_FADE = 1e-5
"""The direction of a sum shorter than this is rounding."""


@poolings.register("netvlad")
class NetVladPooling(Pooling):
    """Sums of residuals to learned centers, one a center, side by side: K D values of length one together.

    Local features are normalised first, as in the paper. Assignment weights and centers are learned apart from each
    other. They start as `w_k = 2 alpha c_k`, `b_k = -alpha |c_k|^2`: features are assigned by their distances to the
    centers, and the larger alpha, the more to the nearest alone (VLAD).

    Reference: Arandjelović et al. 2016.
    Needs: centers initialised with `init_from`; a large embedding.
    Use when: places and scenes, whose parts tell more than their mean; size of the embedding does not matter.

    Args:
        channels: channels of the map.
        clusters: how many centers, K.
        dimension: to which a 1x1 convolution reduces the local features, D; None: they keep their channels.
        alpha: sharpness of the first assignment; None: `init_from` chooses it so that the nearest center gets 100 times
            as much as the next, as in the paper, and until then it is 10.
    """

    keeps_coordinates = False
    only_directions = True

    def __init__(
        self, channels: int, clusters: Count = 64, dimension: Count | None = None, alpha: Positive | None = None
    ) -> None:
        self._check(clusters=clusters, dimension=dimension, alpha=alpha)
        width = channels if dimension is None else dimension
        super().__init__(channels, clusters * width)
        self.alpha = alpha
        self.reduction = nn.Identity() if dimension is None else nn.Conv2d(channels, width, 1, bias=False)
        self.centers = nn.Parameter(torch.randn(clusters, width) / math.sqrt(width))
        self.assignment = nn.Linear(width, clusters)
        self._assign_by_distance(_ALPHA if alpha is None else alpha)

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, K D)."""
        local = self._local(features)
        # A large alpha turns the rounding of half precision into other assignments.
        with torch.autocast(features.device.type, enabled=False):
            shares = torch.softmax(
                functional.linear(local, widen(self.assignment.weight), widen(self.assignment.bias)), dim=2
            )
            sums = shares.mT @ local - shares.sum(dim=1).unsqueeze(2) * widen(self.centers)
        return _direction(_direction(sums).flatten(1)).to(features.dtype)

    @torch.no_grad()
    def init_from(self, features: Tensor, seed: int = 0) -> None:
        """Take the centers, and the assignment by distance to them, from the local features of maps (B, C, H, W)."""
        local = self._local(features).flatten(0, 1)
        centers = pick_centers(local, len(self.centers), seed, "clusters")
        self.centers.copy_(centers)
        self._assign_by_distance(_alpha(local, centers) if self.alpha is None else self.alpha)

    def _local(self, features: Tensor) -> Tensor:
        """Normalised local features (B, N, D) of a map (B, C, H, W)."""
        return Sphere().project(widen(self.reduction(features)).flatten(2).mT)

    @torch.no_grad()
    def _assign_by_distance(self, alpha: float) -> None:
        """Set the assignment to `softmax_k(-alpha |x - c_k|^2)`, from which |x|^2 cancels."""
        self.assignment.weight.copy_(2 * alpha * self.centers)
        self.assignment.bias.copy_(-alpha * self.centers.square().sum(dim=1))


def _alpha(local: Tensor, centers: Tensor) -> float:
    """The alpha with which features (N, D) give the nearest center, on average, so many times more than the next."""
    if len(centers) == 1:
        return _ALPHA
    nearest = euclidean_distance(local, centers).square().topk(2, dim=1, largest=False).values
    return math.log(_RATIO) / max(float((nearest[:, 1] - nearest[:, 0]).mean()), _CLOSEST)


def _direction(x: Tensor) -> Tensor:
    """Vectors (..., d) at length one; what is next to zero fades to zero, and so does its gradient."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * (length / (length.square() + _FADE**2))
