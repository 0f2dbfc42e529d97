"""Greedy k-center: pick points so that every point has a pick nearby; and how near, the covering radius.

Both work on many groups (classes) at once. Distances are Euclidean between the vectors as given: project them first
where the space of the model asks for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nearkin.checks import is_whole
from nearkin.errors import DataError
from nearkin.spaces.space import euclidean_distance, widen

_BLOCK_BYTES = 2**25
"""How much the distances or copies of the groups that are worked on at once may take."""


@torch.no_grad()
def kcenter(points: Tensor, k: int, seeds: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Indices (G, k) of the picked points, in the order of picking.

    Each pick is the point farthest from the seeds and the earlier picks; of equals, the lower index; never the same
    point twice. Without seeds the first pick is the first point, and the covering radius is at most twice the best
    possible. Where the squared distances of two candidates differ by less than 8 sqrt(d) eps of the largest squared
    norm, which single precision may not tell apart, the group is decided in double precision.
    Reference: Gürbüz 2022, algorithm 2.

    Args:
        points: (G, N, d).
        k: how many to pick in every group.
        seeds: centers that are there already (G, S, d), such as the proxies of the previous round.
        mask: (G, N), False for padding, which may hold anything.
    """
    valid = _valid(points, mask)
    if not is_whole(k):
        raise DataError(f"k must be a whole number, not {k!r}.")
    fewest = int(valid.sum(dim=1).min()) if len(points) else k
    if not 1 <= k <= fewest:
        raise DataError(f"Cannot pick {k} centers: the smallest group holds {fewest} points; choose k from 1 to that.")
    points = widen(points).contiguous()
    seeds = _same_groups(points, seeds if seeds is not None else points[:, :0], "seeds")
    picks, sure = _quick_picks(points, k, seeds, valid)
    doubtful = (~sure).nonzero()[:, 0]
    for block in doubtful.split(_groups_at_once(8 * points.shape[1] * (points.shape[2] + seeds.shape[1]))):
        picks[block] = _careful_picks(points[block], k, seeds[block], valid[block])
    return picks


def _quick_picks(points: Tensor, k: int, seeds: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """The picks (G, k) by squared distances from inner products, and whether no pick hangs on their rounding (G,).

    What is not finite leaves a group unsure.
    """
    groups, _, dimension = points.shape
    picks = torch.empty(groups, k, dtype=torch.long, device=points.device)
    squares = _squares(points)
    largest = squares.masked_fill(~valid, 0.0).amax(dim=1)
    if seeds.shape[1]:
        seed_squares = _squares(seeds)
        largest = torch.maximum(largest, seed_squares.amax(dim=1))
        products = torch.bmm(points, seeds.transpose(1, 2))
        nearest = squares + torch.add(seed_squares.unsqueeze(1), products, alpha=-2, out=products).amin(dim=2)
    else:
        nearest = torch.full_like(squares, torch.inf)
    nearest = nearest.masked_fill_(~valid, -torch.inf)
    # The rounding of a squared distance grows with the norms, and like the root of the number of terms.
    tolerance = 8 * dimension**0.5 * torch.finfo(points.dtype).eps * largest
    sure = tolerance.isfinite()
    products_with = _products_with_one(points)
    for step in range(k):
        farthest, pick = nearest.max(dim=1, keepdim=True)  # the first of equals
        picks[:, step] = pick[:, 0]
        nearest.scatter_(1, pick, -torch.inf)
        if step or seeds.shape[1]:
            sure &= (farthest[:, 0] - nearest.amax(dim=1)) > tolerance
        if step < k - 1:
            distances = torch.add(squares + squares.gather(1, pick), products_with(pick), alpha=-2)
            nearest = torch.fmin(nearest, distances)  # padding stays at minus infinity, even where it holds NaN
    return picks, sure


def _squares(x: Tensor) -> Tensor:
    """Squared norms (G, n) of vectors (G, n, d)."""
    return torch.linalg.vector_norm(x, dim=2).square_()


def _products_with_one(points: Tensor) -> Callable[[Tensor], Tensor]:
    """Gives the inner products (G, N) of points (G, N, d) with the one at each group's place (G, 1)."""
    groups, size, dimension = points.shape
    if points.device.type != "cpu":
        return lambda place: torch.bmm(points, points.take_along_dim(place.unsqueeze(2), dim=1).mT)[:, :, 0]
    # A batched product with a single column is several times slower on CPUs than a product sampled at these places.
    flat = points.view(-1, dimension)
    rows = torch.arange(len(flat) + 1, dtype=torch.int32)
    first = rows[:-1:size].unsqueeze(1)
    values = points.new_zeros(len(flat))

    def products(place: Tensor) -> Tensor:
        columns = (first + place.int()).expand(-1, size).flatten()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR")
            wanted = torch.sparse_csr_tensor(rows, columns, values, (len(flat), len(flat)), check_invariants=False)
        return torch.sparse.sampled_addmm(wanted, flat, flat.T, beta=0.0).values().view(groups, size)

    return products


def _careful_picks(points: Tensor, k: int, seeds: Tensor, valid: Tensor) -> Tensor:
    """The picks (G, k) by differences in double precision."""
    points, seeds = points.double().masked_fill(~valid.unsqueeze(2), 0.0), seeds.double()
    if not (points.isfinite().all() and seeds.isfinite().all()):
        raise DataError("The points or seeds of k-center hold NaN or infinite values.")
    nearest = points.new_full(valid.shape, torch.inf)
    if seeds.shape[1]:
        nearest = euclidean_distance(points, seeds).amin(dim=2)
    nearest = nearest.masked_fill(~valid, -torch.inf)
    picks = torch.empty(len(points), k, dtype=torch.long, device=points.device)
    for step in range(k):
        pick = nearest.argmax(dim=1, keepdim=True)  # the first of equals
        picks[:, step] = pick[:, 0]
        center = points.gather(1, pick.unsqueeze(2).expand(-1, -1, points.shape[2]))
        nearest = torch.minimum(nearest, euclidean_distance(points, center)[:, :, 0])
        nearest.scatter_(1, pick, -torch.inf)
    return picks


def covering_radius(points: Tensor, centers: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """The largest distance (G,) from a point to its nearest center; 0 in a group without points.

    Without centers, the average of that radius over k = 1 .. n centers picked among the group's n points by greedy
    k-center, the first being the best single one: the point whose farthest point is nearest. It says how well a group
    is covered by its own points; 0 for one point.
    Reference: Gürbüz 2022, figure 3.3.

    Distances are Euclidean between the vectors as given: project them first.

    Args:
        points: (G, N, d).
        centers: (G, K, d), or None for the average.
        mask: (G, N), False for padding, which may hold anything.
    """
    valid = _valid(points, mask)
    if centers is None:
        return _average_radius(widen(points), valid)
    points = widen(points)
    centers = _same_groups(points, centers, "centers")
    if centers.shape[1] == 0:
        raise DataError("A covering radius needs at least one center in every group.")
    if not (points.masked_fill(~valid.unsqueeze(2), 0.0).isfinite().all() and centers.isfinite().all()):
        raise DataError("The points or centers of a covering radius hold NaN or infinite values.")
    nearest = euclidean_distance(points, centers).amin(dim=2).masked_fill(~valid, 0.0)
    return nearest.amax(dim=1) if nearest.shape[1] else nearest.sum(dim=1)


@torch.no_grad()
def _average_radius(points: Tensor, valid: Tensor) -> Tensor:
    """The average (G,) over k of the radius of k greedy centers, by blocks of groups."""
    groups, size, dimension = points.shape
    radii = points.new_zeros(groups)
    if size == 0:
        return radii
    at_once = _groups_at_once(8 * size * (size + 2 * dimension))
    for start in range(0, groups, at_once):
        some = slice(start, start + at_once)
        distances = _Distances(points[some], valid[some])
        nearest = distances.to(distances.best_centers)
        total = nearest.amax(dim=1).sqrt()
        for _ in range(size - 1):  # more picks than points add nothing
            nearest = torch.minimum(nearest, distances.to(nearest.argmax(dim=1)))
            total += nearest.amax(dim=1).sqrt()
        radii[some] = (total / valid[some].sum(dim=1).clamp(min=1)).to(radii.dtype)
    return radii


class _Distances:
    """Squared distances within groups, in double precision; 0 to padding.

    Args:
        points: (G, N, d).
        valid: (G, N).
    """

    def __init__(self, points: Tensor, valid: Tensor) -> None:
        padding = ~valid.unsqueeze(2)
        points = points.double().masked_fill(padding, 0.0)
        if not points.isfinite().all():
            raise DataError("The points of a covering radius hold NaN or infinite values.")
        # Far from the origin the squares would swallow the differences.
        middle = points.sum(dim=1, keepdim=True) / valid.sum(dim=1).clamp(min=1).view(-1, 1, 1)
        self.points = (points - middle).masked_fill_(padding, 0.0)
        self.squares = self.points.square().sum(dim=2)
        self.padding = ~valid
        self.groups = torch.arange(len(points), device=points.device)
        size = points.shape[1]
        rows = max(1, _BLOCK_BYTES // (8 * len(points) * size))
        everyone = torch.arange(size, device=points.device).expand(len(points), -1)
        parts = (self._between(some) for some in everyone.split(rows, dim=1))
        # Within the budget all are kept; a group too large for it asks again for those to each pick.
        self.every = next(parts) if rows >= size else None
        kept = [self.every] if self.every is not None else parts
        farthest = torch.cat([part.amax(dim=2) for part in kept], dim=1)
        self.best_centers = farthest.masked_fill(self.padding, torch.inf).argmin(dim=1)
        """The places (G,) of the points whose farthest point is nearest."""

    def to(self, places: Tensor) -> Tensor:
        """(G, N) from every point to the one at its group's place (G,)."""
        if self.every is not None:
            return self.every[self.groups, places]
        return self._between(places.unsqueeze(1))[:, 0]

    def _between(self, places: Tensor) -> Tensor:
        """(G, m, N) from the points at the places (G, m) to all."""
        chosen = self.points.gather(1, places.unsqueeze(2).expand(-1, -1, self.points.shape[2]))
        sums = self.squares.gather(1, places).unsqueeze(2) + self.squares.unsqueeze(1)
        found = torch.baddbmm(sums, chosen, self.points.transpose(1, 2), alpha=-2).clamp_(min=0.0)
        return found.scatter_(2, places.unsqueeze(2), 0.0).masked_fill_(self.padding.unsqueeze(1), 0.0)


def _groups_at_once(bytes_a_group: int) -> int:
    """How many groups fit into the budget; one at least."""
    return max(1, _BLOCK_BYTES // max(1, bytes_a_group))


def _same_groups(points: Tensor, centers: Tensor, what: str) -> Tensor:
    """The seeds or centers (G, S, d) in the type of the points, if their shape fits."""
    _check_tensor(centers, f"The {what}")
    if centers.dim() != 3 or len(centers) != len(points) or centers.shape[2] != points.shape[2]:
        groups, _, dimension = points.shape
        raise DataError(
            f"The {what} have the shape {tuple(centers.shape)}; these points need ({groups}, S, {dimension})."
        )
    return centers.to(points.dtype)


def _valid(points: Tensor, mask: Tensor | None) -> Tensor:
    """The mask (G, N), all True when none is given."""
    _check_tensor(points, "Points")
    if points.dim() != 3:
        raise DataError(f"Points must have the shape (groups, points, dimensions), not {tuple(points.shape)}.")
    if mask is None:
        return torch.ones(points.shape[:2], dtype=torch.bool, device=points.device)
    _check_tensor(mask, "The mask")
    if mask.shape != points.shape[:2]:
        raise DataError(f"The mask has the shape {tuple(mask.shape)}; the points need {tuple(points.shape[:2])}.")
    return mask.bool()


def _check_tensor(value: Any, what: str) -> None:
    if not isinstance(value, Tensor):
        raise DataError(f"{what} must be a tensor, not {type(value).__name__}: convert with torch.as_tensor.")
