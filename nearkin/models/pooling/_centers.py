"""First values of learned centers: local features of training items, spread by greedy k-center."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.errors import ModelError
from nearkin.spaces import kcenter

_ENOUGH = 1024
"""How many local features are looked at; more cost time and hardly move the centers."""


@torch.no_grad()
def pick_centers(points: Tensor, count: int, seed: int, setting: str) -> Tensor:
    """Centers (count, D) among local features (N, D), far from each other.

    Args:
        points: (N, D), N at least `count`.
        count: how many centers.
        seed: of the draw, where there are more points than are looked at.
        setting: what recipes call the number of centers, for messages.
    """
    if len(points) < count:
        raise ModelError(
            f"There are only {len(points)} local features for {count} {setting} to start from: lower "
            f"model.pooling_parameters.{setting}, or give larger images."
        )
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    points = points[order[: max(_ENOUGH, 4 * count)].to(points.device)]
    return points[kcenter(points.unsqueeze(0), count)[0]]
