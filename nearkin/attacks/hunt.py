"""The search for wrong points behind SAA and VAA: what is found in one region counts in every other that holds it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.attacks.ascent import Goal, ascend, usual_step
from nearkin.attacks.cell_region import CellRegion
from nearkin.attacks.cells import Cells
from nearkin.attacks.goals import OfInputs
from nearkin.attacks.region import Ball, Bounds, Region


@dataclass(frozen=True)
class Climbs:
    """How to look for wrong points: steps of a climb, climbs from random points, their seed, inputs at once."""

    steps: int
    restarts: int
    seed: int
    batch_size: int


class Hunt:
    """What is known of every attacked input so far, and how more is found.

    Args:
        goal: what makes a point of an attacked input wrong.
        cells: of all inputs.
        codes: their classes (n,).
        rows: the attacked ones, as rows of all (B,).
        dtype: of the points that the classifier sees.
        bounds: of the box; None: none.
        climbs: how to look.

    Attributes:
        standard_radii: distance (B,) of the nearest wrong point that was found, inf for none.
        voronoi_radii: the same inside the cells.
        standard_points: these points (B, D); the input itself where there is none.
        voronoi_points: likewise.
    """

    def __init__(
        self,
        goal: Goal,
        cells: Cells,
        codes: Tensor,
        rows: Tensor,
        dtype: torch.dtype,
        bounds: Bounds | None,
        climbs: Climbs,
    ) -> None:
        self.goal = goal
        self.cells = cells
        self.rows = rows
        self.dtype = dtype
        self.bounds = bounds
        self.climbs = climbs
        self._gaps, self._others = cells.nearest_other(rows, codes)
        count = len(rows)
        self.standard_radii = torch.full((count,), torch.inf, dtype=torch.float64)
        self.voronoi_radii = torch.full((count,), torch.inf, dtype=torch.float64)
        self.standard_points = cells.points[rows].to(dtype)
        self.voronoi_points = cells.points[rows].to(dtype)

    def look_at_inputs(self) -> None:
        """Inputs that are wrong as they are, and real inputs of other classes that an adversary could take."""
        self._try(torch.arange(len(self.rows)), self.standard_points.clone(), torch.inf)
        self._walk(torch.inf)

    def look_at(self, places: Tensor, points: Tensor) -> None:
        """Take in points (b, D) of the box that somebody found for the inputs `places` (b,)."""
        inside = points if self.bounds is None else points.clamp(*self.bounds)
        self._try(places, inside.to(self.dtype), torch.inf)

    def _walk(self, eps: float) -> None:
        """Go straight to the nearest input of another class, as far as epsilon lets: it has the other class's looks."""
        there = torch.nonzero(self._gaps.isfinite() & (self.standard_radii > min(eps, self._far()))).squeeze(1)
        centres, others = self.cells.points[self.rows[there]], self.cells.points[self._others[there]]
        shares = (eps / self._gaps[there]).clamp_max(1.0).unsqueeze(1)
        # Inside the box, which is convex; at its edge rounding may say otherwise.
        points = (centres + shares * (others - centres)).to(self.dtype)
        self._try(there, points if self.bounds is None else points.clamp(*self.bounds), eps)

    def search(self, eps: float) -> None:
        """Attack within epsilon, first inside the cells, then in the balls; inf: inside the cells only."""
        if eps == 0:
            return  # the inputs were looked at
        self._climb(
            torch.nonzero(self.voronoi_radii > eps if eps < torch.inf else self.voronoi_radii == eps), eps, True
        )
        if eps < torch.inf:
            self._walk(eps)
            self._climb(torch.nonzero(self.standard_radii > eps), eps, False)

    def _climb(self, places: Tensor, eps: float, in_cells: bool) -> None:
        if not len(places):
            return
        climbs = self.climbs
        step = usual_step(min(eps, self._scale()), climbs.steps)
        for part in places.squeeze(1).split(climbs.batch_size):
            region = self._region(part, eps, in_cells)
            generator = torch.Generator().manual_seed(climbs.seed * 1_000_003 + int(part[0]))
            for number in range(1 + climbs.restarts):
                centres = self.cells.points[self.rows[part]].to(self.dtype)
                start = region.draw(generator).to(self.dtype) if number else centres
                found = ascend(OfInputs(self.goal, part), start, region, steps=climbs.steps, step=step)
                self._try(part[found.reached], found.points[found.reached], eps)
                going = torch.nonzero(~found.reached).squeeze(1)
                part, region = part[going], region.select(going)
                if not len(part):
                    break

    def _region(self, part: Tensor, eps: float, in_cells: bool) -> Region:
        rows = self.rows[part]
        if in_cells:
            return CellRegion(self.cells, rows, eps, self.bounds, self.dtype)
        return Ball(self.cells.points[rows].to(self.dtype), eps, self.cells.norm, self.bounds)

    def _scale(self) -> float:
        """How long climbs are where nothing bounds them: cells end before inputs of other classes begin."""
        there = self._gaps[self._gaps.isfinite()]
        return float(there.max()) if len(there) else self._far()

    def _far(self) -> float:
        points = self.cells.points
        low, high = (float(points.min()), float(points.max())) if self.bounds is None else self.bounds
        return self.cells.norm.reach(points.shape[1], high - low)

    def _try(self, places: Tensor, points: Tensor, eps: float) -> None:
        """Take in points (b, D) for the inputs `places` (b,): what is wrong, how far it is, and in which regions.

        Points that rounding put outside of the ball are drawn back, and looked at again.
        """
        if not len(places):
            return
        points, distances = self._into_ball(places, points, eps)
        wrong = torch.zeros(len(places), dtype=torch.bool)
        for some in torch.arange(len(places)).split(self.climbs.batch_size):
            wrong[some] = self._is_wrong(points[some], places[some])
        places, points, distances = places[wrong], points[wrong], distances[wrong]
        self._keep(places, points, distances, self.standard_radii, self.standard_points)
        inside = self.cells.inside(points, self.rows[places])
        self._keep(places[inside], points[inside], distances[inside], self.voronoi_radii, self.voronoi_points)

    def _into_ball(self, places: Tensor, points: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Points (b, D) not farther than epsilon from their inputs in float64, and how far they are (b,)."""
        centres = self.cells.points[self.rows[places]]
        ways = points.double() - centres
        distances = self.cells.norm.length(ways)
        points, back = points.clone(), 2.0**-22
        while bool((out := distances > eps).any()):
            points[out] = (centres[out] + (1 - back) * ways[out]).to(self.dtype)
            distances = self.cells.norm.length(points.double() - centres)
            back *= 2  # 1 at the latest is the input itself
        return points, distances

    @torch.no_grad()
    def _is_wrong(self, points: Tensor, places: Tensor) -> Tensor:
        return self.goal(points, places)[1]

    @staticmethod
    def _keep(places: Tensor, points: Tensor, distances: Tensor, radii: Tensor, kept: Tensor) -> None:
        """Keep what is nearer than what was known."""
        nearer = distances < radii[places]
        radii[places[nearer]] = distances[nearer]
        kept[places[nearer]] = points[nearer]
