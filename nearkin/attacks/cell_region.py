"""The region of a Voronoi-epsilon adversary: the ball around an input, inside the input's own Voronoi cell.

The nearest point of a Voronoi cell, a ball and a box together, in L2, by Dykstra's alternating projections.
Relative to the centre, the cell is the half-spaces `<a_j, v> <= |a_j|/2` with a_j the unit vector to neighbour j. Of a
half-space Dykstra's correction is a multiple of a_j, so a sweep through all of them needs only the products of the a_j
with each other. Derivation: docs/methods/voronoi.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.attacks.cells import CellNeighbours, VoronoiCells
from nearkin.attacks.norms import L2, Norm
from nearkin.attacks.region import PIXELS, Ball, Bounds
from nearkin.errors import DataError

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


_ROUNDS = 5
"""How often neighbours whose borders a projection crossed are added before the rest is left to drawing back."""
_SWEEPS, _TOLERANCE = 30, 1e-4
"""Of the projections on the way: the points are drawn back into their cells in any case."""
_SHRINK = 2.0**-22
"""First share by which a point that is not strictly inside is drawn to its centre; it doubles at every try."""
_TRIES = 48
_BISECTIONS = 26
_ENTRIES = 2**22
"""Numbers held at once."""


@dataclass(frozen=True, eq=False)
class CellRegion:
    """Ball and open cell of each input, and the box.

    Only points within twice the radius can cut a ball: the others are never looked at.

    Args:
        cells: of the data set.
        rows: the centres, as rows of the data set (B,).
        radius: epsilon; inf for the whole cell.
        bounds: of the box; None: none.
        dtype: of the points that are attacked with: what is checked is what the classifier sees.
        neighbours: what can cut each ball; None: found here.
    """

    cells: VoronoiCells
    rows: Tensor
    radius: float
    bounds: Bounds | None = PIXELS
    dtype: torch.dtype = torch.float32
    neighbours: CellNeighbours | None = None

    def __post_init__(self) -> None:
        if not self.radius >= 0:
            raise DataError(f"The size of a perturbation must be a number of at least 0, not {self.radius}.")
        if self.neighbours is None:
            object.__setattr__(self, "neighbours", self.cells.neighbours(self.rows, self.radius))

    @property
    def norm(self) -> Norm:
        """Of balls and cells."""
        return self.cells.norm

    @property
    def centres(self) -> Tensor:
        """The inputs (B, D)."""
        return self.cells.points[self.rows]

    def _near(self) -> CellNeighbours:
        assert self.neighbours is not None
        return self.neighbours

    def select(self, rows: Tensor) -> CellRegion:
        """The region of some of the inputs."""
        near = self._near().select(rows)
        return CellRegion(self.cells, self.rows[rows], self.radius, self.bounds, self.dtype, near)

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Random points (B, D) of the region."""
        points = self.cells.points
        low, high = (float(points.min()), float(points.max())) if self.bounds is None else self.bounds
        reach = min(self.radius, self.norm.reach(points.shape[1], high - low))
        return self.project(self.centres + self.norm.draw(self.centres, reach, generator))

    @torch.no_grad()
    def project(self, points: Tensor) -> Tensor:
        """Points (B, D) of the region near given ones, strictly inside their cells as they come, rounded to `dtype`."""
        wide, near = points.double(), self._near()
        centres = self.centres
        found = self._of_ball(wide, centres)
        crossed = self.cells.crossed(found, self.rows, near)
        cut = torch.nonzero(near.counts_of(crossed)).squeeze(1)
        if len(cut):
            part, of_cut = self.select(cut), near.of(cut)
            nearest = part._into_cells if isinstance(self.norm, L2) else part._drawn_in
            found[cut] = nearest(wide[cut], found[cut], crossed[of_cut])
        return self._settled(found, centres)

    def _of_ball(self, wide: Tensor, centres: Tensor) -> Tensor:
        """Points (B, D) of the balls and the box."""
        if self.radius < torch.inf:
            return Ball(centres, self.radius, self.norm, self.bounds).project(wide)
        return wide.clone() if self.bounds is None else wide.clamp(*self.bounds)

    def _into_cells(self, targets: Tensor, points: Tensor, crossed: Tensor) -> Tensor:
        """Points (B, D) of balls and cells nearest to targets, in L2: borders (P,) are added as they are crossed."""
        near, used = self._near(), crossed.clone()
        found, going = points.clone(), torch.arange(len(points))
        for _ in range(_ROUNDS):
            part, of_part = self.select(going), near.of(going)
            for some in portions(part._near().where(used[of_part]), targets.shape[1]):
                rows = going[some]
                places, present = near.select(rows).where(used[near.of(rows)]).table()
                found[rows] = project_to_cell(
                    targets[rows],
                    self.cells.points[self.rows[rows]],
                    self.cells.points[places],
                    present,
                    self.radius,
                    self.bounds,
                    sweeps=_SWEEPS,
                    tolerance=_TOLERANCE,
                )
            out = self.cells.crossed(found[going], part.rows, part._near())
            more = out & ~used[of_part]
            used[of_part] |= out
            going = going[torch.nonzero(part._near().counts_of(more)).squeeze(1)]
            if not len(going):
                break
        return found

    def _drawn_in(self, targets: Tensor, points: Tensor, crossed: Tensor) -> Tensor:
        """Points (B, D) drawn straight towards their centres until they are inside: cells are star-shaped.

        Who was not nearer than the centre at the end of the way is not nearer anywhere on it.
        """
        near, centres = self._near().where(crossed), self.centres
        ways = points - centres
        low, high = torch.zeros(len(ways), 1).double(), torch.ones(len(ways), 1).double()
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            out = near.counts_of(self.cells.crossed(centres + middle * ways, self.rows, near)) > 0
            low, high = torch.where(out.unsqueeze(1), low, middle), torch.where(out.unsqueeze(1), middle, high)
        return centres + low * ways

    def _settled(self, points: Tensor, centres: Tensor) -> Tensor:
        """Points (B, D) drawn to their centres until, rounded, they are in the ball, the box and strictly the cell."""
        ways = points - centres
        over = self.norm.length(ways).clamp_min(1e-300)
        ways = ways * (self.radius / over).clamp_max(1.0).unsqueeze(1)
        found = self._rounded(centres + ways)
        left = torch.nonzero(~self._holds(found)).squeeze(1)
        factor = 1.0
        for number in range(_TRIES):
            if not len(left):
                return found
            factor *= 1 - min(0.5, _SHRINK * 2**number)
            found[left] = self._rounded(centres[left] + factor * ways[left])
            left = left[~self.select(left)._holds(found[left])]
        found[left] = centres[left].to(self.dtype)
        return found

    def _rounded(self, points: Tensor) -> Tensor:
        inside = points if self.bounds is None else points.clamp(*self.bounds)
        return inside.to(self.dtype)

    def _holds(self, points: Tensor) -> Tensor:
        """Whether points (B, D) are in their balls and clearly in their cells."""
        in_ball = self.norm.length(points.double() - self.centres) <= self.radius
        near = self._near()
        return in_ball & (near.counts_of(self.cells.crossed(points, self.rows, near)) == 0)


def portions(near: CellNeighbours, dimension: int) -> list[Tensor]:
    """Rows with neighbours in portions of similar counts, whose neighbours can be held."""
    counts = near.counts
    order = torch.argsort(counts)
    order = order[counts[order] > 0]
    portions, start = [], 0
    while start < len(order):
        stop = start + 1
        # Counts ascend: the last row of a portion says how wide it is.
        while stop < len(order) and (stop + 1 - start) * int(counts[order[stop]]) * dimension <= _ENTRIES:
            stop += 1
        portions.append(order[start:stop])
        start = stop
    return portions
