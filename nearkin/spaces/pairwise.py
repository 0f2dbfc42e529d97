"""Euclidean distances between all pairs, the ground every space here stands on."""

from __future__ import annotations

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """The same values in float32 or better: halves and integers cannot carry a distance."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def euclidean_distance(x: Tensor, y: Tensor) -> Tensor:
    """Distances (..., n, m) between points (..., n, d) and (..., m, d).

    Differences are summed directly, without an (n, m, d) tensor: the shortcut by a matrix product cannot tell close
    from equal points, and would run in half precision under autocast. The gradient at distance zero is zero.
    """
    return torch.cdist(widen(x), widen(y), compute_mode="donot_use_mm_for_euclid_dist")
