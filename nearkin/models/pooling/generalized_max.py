"""Generalised max pooling: a vector that is equally similar to every local feature, frequent or rare.

`Phi alpha` with `(Phi^T Phi + lambda I) alpha = 1`, the columns of Phi (C x N) being the local features. The same
vector is `(Phi Phi^T + lambda I)^-1 Phi 1`; the smaller of the two systems is solved.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from nearkin.models.pooling.base import Pooling, doubled, poolings

# Added to the mean squared length of the local features: a map of zeros is divided by its length too.
_FLOOR = 1e-12
_Ridge = Annotated[float, Field(ge=1e-9, allow_inf_nan=False)]


@poolings.register("generalized-max")
class GeneralizedMaxPooling(Pooling):
    """The ridge solution of "an inner product of one with each local feature".

    A large ridge gives average pooling, a small one similarities that are equal for all local features. Unlike in the
    paper the ridge is in units of the mean squared length of the local features, so one value suits any backbone; and
    the vector is scaled so that equal local features are pooled to themselves. Positions enter with factors that may
    be negative: no shares, so `weights` gives none.

    Reference: Murray and Perronnin 2014.
    Needs: nothing. Nothing is learned.
    Use when: a repeated texture or a large background would drown the rare local features that tell classes apart.

    Args:
        channels: channels of the map.
        ridge: lambda; many times the number of positions is nearly average pooling.
    """

    def __init__(self, channels: int, ridge: _Ridge = 1.0) -> None:
        super().__init__(channels)
        self._check(ridge=ridge)
        self.ridge = ridge

    def forward(self, features: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C)."""
        # In double precision, out of reach of autocast: what a small ridge adds to the system is lost in single.
        with torch.autocast(features.device.type, enabled=False):
            local = doubled(features.flatten(2))
            positions = local.shape[2]
            length = (local.square().sum(dim=1).mean(dim=1) + _FLOOR).sqrt()[:, None, None]
            solution = _ridge_solution(local / length, self.ridge)
            pooled = solution * length[:, :, 0] * ((positions + self.ridge) / positions)
        return pooled.to(features)


def _ridge_solution(local: Tensor, ridge: float) -> Tensor:
    """The vectors (B, C) whose inner products with local features (B, C, N) are nearest to one, but for the ridge."""
    channels, positions = local.shape[1:]
    transposed = local.transpose(1, 2)
    if channels <= positions:
        return torch.linalg.solve(_lifted(local @ transposed, ridge), local.sum(dim=2))
    alpha = torch.linalg.solve(_lifted(transposed @ local, ridge), torch.ones_like(local[:, 0]))
    return torch.einsum("bcn,bn->bc", local, alpha)


def _lifted(matrices: Tensor, ridge: float) -> Tensor:
    """Matrices (B, K, K) with the ridge added to their diagonals."""
    return matrices + ridge * torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
