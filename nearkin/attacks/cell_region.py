"""Where a Voronoi-epsilon adversary may go: the ball around an input, inside the input's own open Voronoi cell."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.attacks.cells import Cells, Neighbours
from nearkin.attacks.norms import L2, Norm
from nearkin.attacks.polytope import project_to_cell
from nearkin.attacks.region import PIXELS, Ball, Bounds
from nearkin.errors import DataError

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

    cells: Cells
    rows: Tensor
    radius: float
    bounds: Bounds | None = PIXELS
    dtype: torch.dtype = torch.float32
    neighbours: Neighbours | None = None

    def __post_init__(self) -> None:
        if not self.radius >= 0:
            raise DataError(f"The size of a perturbation is a number from 0 on, not {self.radius}.")
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

    def _near(self) -> Neighbours:
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


def portions(near: Neighbours, dimension: int) -> list[Tensor]:
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
