"""Greedy k-center: pick points so that every point has a pick nearby; and how near, the covering radius.

Both work on many groups (classes) at once, with Euclidean distances between the vectors as given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.errors import DataError
from nearkin.spaces.pairwise import euclidean_distance, widen


@torch.no_grad()
def greedy_k_center(points: Tensor, k: int, seeds: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Indices (G, k) of the picked points, in the order of picking.

    Each pick is the point farthest from the seeds and the earlier picks; of equals, the lower index; never the same
    point twice. Without seeds the first pick is the first point, and the covering radius is at most twice the best
    possible.
    Reference: Gürbüz 2022, algorithm 2.

    Args:
        points: (G, N, d).
        k: how many to pick in every group.
        seeds: centers that are there already (G, S, d), such as the proxies of the previous round.
        mask: (G, N), False for padding.
    """
    valid = _valid(points, mask)
    fewest = int(valid.sum(dim=1).min()) if len(points) else k
    if not 1 <= k <= fewest:
        raise DataError(f"Cannot pick {k} centers: the smallest group holds {fewest} points; choose k from 1 to that.")
    points = widen(points).masked_fill(~valid.unsqueeze(2), 0.0)  # padding may hold anything
    if not (points.isfinite().all() and (seeds is None or seeds.isfinite().all())):
        raise DataError("The points or seeds of k-center hold NaN or infinite values.")
    if seeds is None or seeds.shape[1] == 0:
        nearest = points.new_full(valid.shape, torch.inf)
    else:
        nearest = euclidean_distance(points, seeds.to(points.dtype)).amin(dim=2)
    nearest = nearest.masked_fill(~valid, -torch.inf)
    picks = torch.empty(len(points), k, dtype=torch.long, device=points.device)
    for step in range(k):
        pick = nearest.argmax(dim=1, keepdim=True)  # the first of equals
        picks[:, step] = pick[:, 0]
        center = points.gather(1, pick.unsqueeze(2).expand(-1, -1, points.shape[2]))
        nearest = torch.minimum(nearest, euclidean_distance(points, center)[:, :, 0])
        nearest.scatter_(1, pick, -torch.inf)
    return picks


def covering_radius(points: Tensor, centers: Tensor, mask: Tensor | None = None) -> Tensor:
    """The largest distance (G,) from a point to its nearest center; 0 in a group without points.

    Args:
        points: (G, N, d).
        centers: (G, K, d).
        mask: (G, N), False for padding.
    """
    valid = _valid(points, mask)
    if centers.shape[1] == 0:
        raise DataError("A covering radius needs at least one center in every group.")
    nearest = euclidean_distance(points, centers).amin(dim=2).masked_fill(~valid, 0.0)
    return nearest.amax(dim=1) if nearest.shape[1] else nearest.sum(dim=1)


def _valid(points: Tensor, mask: Tensor | None) -> Tensor:
    """The mask (G, N), all True when none is given."""
    if points.dim() != 3:
        raise DataError(f"Points must have the shape (groups, points, dimensions), not {tuple(points.shape)}.")
    if mask is None:
        return torch.ones(points.shape[:2], dtype=torch.bool, device=points.device)
    if mask.shape != points.shape[:2]:
        raise DataError(f"The mask has the shape {tuple(mask.shape)}; the points need {tuple(points.shape[:2])}.")
    return mask.bool()
