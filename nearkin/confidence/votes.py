"""Votes of the nearest neighbours, plain and weighted by distance: what NED is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nearkin.confidence.estimator import K, NeighbourEstimator, estimators
from nearkin.errors import DataError


@estimators.register("knn")
@dataclass(eq=False, kw_only=True)
class KNNVote(NeighbourEstimator):
    """The share of the k neighbours that are of a class: `p(c) = #(y_i = c) / k`.

    Reference: Karpusha, Yun, Fehervari, eq. 4.
    Needs: a k that suits the size of the classes.
    Use when: a plain baseline is wanted. Its confidence takes the values 1/k, 2/k, … only.
    """

    def weights(self, distances: Tensor, codes: np.ndarray) -> Tensor:
        """Ones (q, k)."""
        # Through the distances, so that a gradient exists; it is zero, as it should be.
        return torch.ones_like(distances) if not distances.requires_grad else distances * 0 + 1


@estimators.register("1nn")
@dataclass(eq=False, kw_only=True)
class NearestNeighbour(KNNVote):
    """The class of the nearest neighbour, always with probability 1.

    Use when: only the label counts; this is P@1 of retrieval.
    """

    k: Any = field(init=False, default=1)

    def with_k(self, k: K) -> Self:
        """The same: the nearest neighbour is one."""
        return replace(self)

    def weights(self, distances: Tensor, codes: np.ndarray) -> Tensor:
        """One for the first of k neighbours, zero for the others (q, k)."""
        weights = super().weights(distances, codes)
        return weights * (torch.arange(distances.shape[1], device=distances.device) == 0)


@estimators.register("wknn-dudani")
@dataclass(eq=False, kw_only=True)
class DudaniVote(NeighbourEstimator):
    """Votes that fall linearly with the distance: `w_i = (d_k - d_i) / (d_k - d_1)`, 1 if all are equally far.

    Reference: Dudani 1976; Karpusha, Yun, Fehervari, eq. 5.
    Needs: k > 1; the farthest neighbour has no vote.
    Use when: classes differ in size and a plain vote drowns the small ones.
    """

    def weights(self, distances: Tensor, codes: np.ndarray) -> Tensor:
        """Weights (q, k) in [0, 1]."""
        first, last = distances[:, :1], distances[:, -1:]
        apart = last > first
        # The denominator is replaced before the division: a gradient through 0/0 would be NaN even where it is masked.
        return torch.where(apart, (last - distances) / torch.where(apart, last - first, 1.0), 1.0)


@estimators.register("wknn-gou")
@dataclass(eq=False, kw_only=True)
class GouVote(DudaniVote):
    """Dudani's votes times `(d_k + d_1) / (d_k + d_i)`, which favours the nearest a little more.

    Reference: Gou, Du, Zhang, Xiong 2012; Karpusha, Yun, Fehervari, eq. 5.
    Needs: distances, not similarities; k > 1.
    """

    def weights(self, distances: Tensor, codes: np.ndarray) -> Tensor:
        """Weights (q, k) in [0, 1]."""
        if distances.numel() and float(distances.detach().min()) < 0:
            raise DataError(
                "Gou's votes divide by distances, which must not be negative, as minus a similarity is: use another "
                "space, or DudaniVote."
            )
        first, last = distances[:, :1], distances[:, -1:]
        below = last + distances
        ratio = torch.where(below > 0, (last + first) / torch.where(below > 0, below, 1.0), 1.0)
        return super().weights(distances, codes) * ratio
