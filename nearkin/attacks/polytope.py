"""The nearest point of a Voronoi cell, a ball and a box together, in L2, by Dykstra's alternating projections.

Relative to the centre, the cell is the half-spaces `<a_j, v> <= |a_j|/2` with a_j the unit vector to neighbour j. Of a
half-space Dykstra's correction is a multiple of a_j, so a sweep through all of them needs only the products of the a_j
with each other. Derivation: docs/methods/voronoi.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.attacks.region import Bounds

TOLERANCE = 1e-7
"""Of the radius: when neither a coordinate nor a correction moves by more in a sweep, it has converged."""


def project_to_cell(
    targets: Tensor,
    centres: Tensor,
    others: Tensor,
    present: Tensor,
    radius: float,
    bounds: Bounds | None,
    *,
    sweeps: int = 100,
    inner: int = 4,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """Points (b, D) of closed cells, balls and the box nearest to targets (b, D), up to the tolerance; all float64.

    Args:
        targets: what to project.
        centres: of the cells and balls, (b, D).
        others: their neighbours (b, K, D).
        present: which of these are there (b, K).
        radius: of the balls; inf for none.
        bounds: of the box; None for none.
        sweeps: rounds through half-spaces, ball and box at the most.
        inner: turns through the half-spaces in each round, which cost little where there are few.
        tolerance: share of the radius, or of the way to the target where that is shorter, that counts as no move.
    """
    normals = others - centres.unsqueeze(1)
    lengths = torch.linalg.vector_norm(normals, dim=2)
    normals = normals / lengths.clamp_min(1e-300).unsqueeze(2)
    limits = torch.where(present, lengths / 2, torch.inf)
    products = normals @ normals.mT
    v = targets - centres
    multipliers = torch.zeros_like(lengths)
    of_ball, of_box = torch.zeros_like(v), torch.zeros_like(v)
    low, high = (None, None) if bounds is None else (bounds[0] - centres, bounds[1] - centres)
    least = tolerance * v.abs().amax(dim=1).clamp_max(radius)
    found = v.clone()
    rows = torch.arange(len(v))
    for _ in range(sweeps):
        before = v
        change = _sweep(torch.einsum("bkd,bd->bk", normals, v), limits, products, multipliers, inner)
        v = v - torch.einsum("bk,bkd->bd", change, normals)
        pushed = of_ball
        if radius < torch.inf:
            y = v + of_ball
            v = y * (radius / torch.linalg.vector_norm(y, dim=1).clamp_min(1e-300)).clamp_max(1.0).unsqueeze(1)
            of_ball = y - v
        if low is not None and high is not None:
            y = v + of_box
            v = torch.minimum(torch.maximum(y, low), high)
            of_box = y - v
        # A point that stands still may be far from its end: the corrections must stand still too.
        moves = torch.cat([v - before, of_ball - pushed, change], dim=1)
        still = moves.abs().amax(dim=1) <= least
        if bool(still.any()):
            found[rows[still]] = v[still]
            going = ~still
            if not bool(going.any()):
                return centres + found
            rows, v, of_ball, of_box = rows[going], v[going], of_ball[going], of_box[going]
            normals, limits, products = normals[going], limits[going], products[going]
            multipliers, least = multipliers[going], least[going]
            low, high = (None, None) if low is None or high is None else (low[going], high[going])
    found[rows] = v
    return centres + found


def _sweep(heights: Tensor, limits: Tensor, products: Tensor, multipliers: Tensor, turns: int) -> Tensor:
    """Project onto each half-space in turn; multipliers (b, K) are updated, and their change (b, K) comes back.

    Args:
        heights: of the points along each normal (b, K); overwritten.
        limits: of the half-spaces (b, K).
        products: of the normals (b, K, K).
        multipliers: Dykstra's corrections (b, K), not negative.
        turns: how often to go through all half-spaces.
    """
    before = multipliers.clone()
    for _ in range(turns if heights.shape[1] > 1 else 1):
        for j in range(heights.shape[1]):
            change = torch.maximum(heights[:, j] - limits[:, j], -multipliers[:, j])
            multipliers[:, j] += change
            heights -= change.unsqueeze(1) * products[:, j]
    return multipliers - before
