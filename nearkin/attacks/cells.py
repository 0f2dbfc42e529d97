"""Voronoi cells of a data set, and the region of a Voronoi-epsilon adversary: the ball around an input inside its cell.

The nearest point of a Voronoi cell, a ball and a box together, in L2, by Dykstra's alternating projections.
Relative to the centre, the cell is the half-spaces `<a_j, v> <= |a_j|/2` with a_j the unit vector to neighbour j. Of a
half-space Dykstra's correction is a multiple of a_j, so a sweep through all of them needs only the products of the a_j
with each other. Derivation: docs/methods/voronoi.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.attacks.norms import L2, Norm
from nearkin.attacks.region import PIXELS, Ball, Bounds
from nearkin.errors import DataError

MARGIN = 1e-11
"""By what share the own centre must be nearer than every other one: more than float64 rounds."""

_SLACK = 1e-9
"""By what share the search for neighbours goes farther than it must, since distances are rounded."""

_ENTRIES = 2**22
"""Numbers held at once."""

_CACHED = 2**17
"""Numbers that stay in a core's cache."""

_DENSE = 0.01
"""From this share of all pairs on, the product of all points is faster than looking at the pairs one by one."""


@dataclass(frozen=True, eq=False)
class UniqueItems:
    """A data set without repetition.

    Attributes:
        points: (n, D), all different.
        labels: (n,).
        rows: where each stands first in what was given (n,).
        merged: how many repetitions were left out.
        places: which of them each of what was given is (N,).
    """

    points: Tensor
    labels: np.ndarray
    rows: np.ndarray
    merged: int
    places: np.ndarray


def merge_duplicates(points: Tensor, labels: Any) -> UniqueItems:
    """Keep one of each input (n, ...), flattened; refuse equal inputs with different labels, which have no cell."""
    flat = points.detach().flatten(1)
    named = np.asarray(labels)
    if len(named) != len(flat):
        raise DataError(f"There are {len(flat)} inputs but {len(named)} labels: pass one label per input.")
    if not len(flat):
        raise DataError("There are no inputs: Voronoi cells need at least one.")
    if not bool(torch.isfinite(flat).all()):
        raise DataError("Some inputs contain NaN or infinite values: remove them.")
    _, first, groups = np.unique(flat.cpu().numpy(), axis=0, return_index=True, return_inverse=True)
    groups = groups.ravel()
    conflict = np.flatnonzero(named != named[first][groups])
    if len(conflict):
        row, other = int(conflict[0]), int(first[groups[conflict[0]]])
        raise DataError(
            f"Inputs {other} and {row} are equal but have the labels {_told(named[other])} and {_told(named[row])}: a "
            "Voronoi adversary needs one label for each input, so correct or remove them."
        )
    kept = np.sort(first)
    places = np.searchsorted(kept, first[groups])
    return UniqueItems(flat[torch.from_numpy(kept)], named[kept], kept, len(flat) - len(kept), places)


@dataclass(frozen=True, eq=False)
class CellNeighbours:
    """For each of B centres, the points that can cut its ball, one after the other.

    Attributes:
        places: which points (P,).
        lengths: how far each is from its centre (P,).
        starts: where each centre's begin (B + 1,).
    """

    places: Tensor
    lengths: Tensor
    starts: Tensor

    @cached_property
    def counts(self) -> Tensor:
        """How many each centre has (B,)."""
        return self.starts.diff()

    @cached_property
    def owners(self) -> Tensor:
        """Which centre each is of (P,)."""
        return torch.repeat_interleave(torch.arange(len(self.starts) - 1), self.counts)

    def of(self, rows: Tensor) -> Tensor:
        """Where those of some centres stand among all (p,)."""
        counts = self.counts[rows]
        before = counts.cumsum(0) - counts
        return torch.arange(int(counts.sum())) + torch.repeat_interleave(self.starts[rows] - before, counts)

    def select(self, rows: Tensor) -> CellNeighbours:
        """Those of some centres."""
        chosen = self.of(rows)
        return CellNeighbours(self.places[chosen], self.lengths[chosen], _starts(self.counts[rows]))

    def counts_of(self, chosen: Tensor) -> Tensor:
        """How many of each centre's are chosen (B,), by a mask (P,)."""
        sums = torch.cat([torch.zeros(1, dtype=torch.int64), chosen.cumsum(0)])
        return sums[self.starts].diff()

    def where(self, chosen: Tensor) -> CellNeighbours:
        """The chosen ones of them, by a mask (P,)."""
        return CellNeighbours(self.places[chosen], self.lengths[chosen], _starts(self.counts_of(chosen)))

    def table(self) -> tuple[Tensor, Tensor]:
        """Places (B, K), K the most of any centre, and which are there (B, K)."""
        counts = self.counts
        width = int(counts.max()) if len(counts) else 0
        there = torch.arange(width) < counts.unsqueeze(1)
        table = torch.zeros(len(counts), width, dtype=torch.int64)
        table[there] = self.places
        return table, there


class VoronoiCells:
    """The open Voronoi cells of points: what is nearer to a point than to any other.

    Args:
        points: (n, D), all different; kept in float64.
        norm: of distances.
    """

    def __init__(self, points: Tensor, norm: Norm) -> None:
        self.points = points.double()
        self.norm = norm
        self._reach = float(torch.linalg.vector_norm(self.points, dim=1).max())

    def __len__(self) -> int:
        return len(self.points)

    def neighbours(self, rows: Tensor, radius: float) -> CellNeighbours:
        """For each centre of `rows`, the other points that can cut the ball of this radius: those within twice it."""
        places, counts, lengths = [], [], []
        for some, distances in self._distances(rows):
            near = distances <= 2 * radius * (1 + _SLACK)
            near[torch.arange(len(near)), rows[some]] = False
            places.append(torch.nonzero(near)[:, 1])
            lengths.append(distances[near])
            counts.append(near.sum(dim=1))
        return CellNeighbours(torch.cat(places), torch.cat(lengths), _starts(torch.cat(counts)))

    def nearest_other(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest point of another class for each of `rows`: distances (b,), inf if there is none, and places."""
        distances, places = [], []
        for some, found in self._distances(rows):
            best = found.masked_fill(labels[rows[some]].unsqueeze(1) == labels, torch.inf).min(dim=1)
            distances.append(best.values)
            places.append(best.indices)
        return torch.cat(distances), torch.cat(places)

    def smallest_distance(self, rows: Tensor) -> float:
        """The smallest distance of the points `rows` to any other; inf where there is none."""
        least = torch.inf
        for some, distances in self._distances(rows):
            distances[torch.arange(len(distances)), rows[some]] = torch.inf
            least = min(least, float(distances.min()))
        return least

    def _distances(self, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Distances (b, n) of the points `rows` to all, in blocks."""
        for some in _blocks(len(rows), len(self)):
            yield some, self.norm.distances(self.points[rows[some]], self.points)

    def inside(self, points: Tensor, rows: Tensor) -> Tensor:
        """Whether points (b, D) of any precision lie strictly inside the cells of centres `rows` (b,), in float64.

        Every point of the data set is looked at, by the differences of coordinates.
        """
        wide = points.double()
        own = self.norm.length(wide - self.points[rows]) * (1 + MARGIN)
        found = torch.ones(len(wide), dtype=torch.bool)
        for some in _blocks(len(rows), len(self)):
            distances = self.norm.distances(wide[some], self.points)
            distances[torch.arange(len(distances)), rows[some]] = torch.inf
            found[some] = (own[some].unsqueeze(1) < distances).all(dim=1)
        return found

    def crossed(self, points: Tensor, rows: Tensor, neighbours: CellNeighbours) -> Tensor:
        """Which neighbours (P,) are not clearly farther from points (b, D) than the centres `rows` (b,) are."""
        wide = points.double()
        ways = wide - self.points[rows]
        lengths = self.norm.length(ways)
        owners = neighbours.owners
        # Nobody is nearer than its centre to what lies within half the way to it.
        close = torch.nonzero(lengths[owners] >= neighbours.lengths * (0.5 - MARGIN)).squeeze(1)
        found = torch.zeros(len(owners), dtype=torch.bool)
        if isinstance(self.norm, L2):
            found[close] = self._above(ways, rows, owners[close], neighbours.places[close], neighbours.lengths[close])
            return found
        own = lengths * (1 + MARGIN)
        for some in _blocks(len(close), wide.shape[1], _CACHED):
            of, place = owners[close[some]], neighbours.places[close[some]]
            found[close[some]] = own[of] >= self.norm.length(wide[of] - self.points[place])
        return found

    def _above(self, ways: Tensor, rows: Tensor, owners: Tensor, places: Tensor, lengths: Tensor) -> Tensor:
        """The same in L2, where borders are planes: `<way, a> >= |a|^2 / 2`, a from the centre to the neighbour."""
        base = (ways * self.points[rows]).sum(dim=1)
        heights = torch.empty(len(places), dtype=torch.float64)
        if len(places) < _DENSE * len(rows) * len(self):
            for some in _blocks(len(places), ways.shape[1], _CACHED):
                heights[some] = (ways[owners[some]] * self.points[places[some]]).sum(dim=1)
        else:
            for some in _blocks(len(rows), len(self)):
                part = slice(*torch.searchsorted(owners, torch.tensor([some.start, some.stop])).tolist())
                heights[part] = (ways[some] @ self.points.T)[owners[part] - some.start, places[part]]
        # Products of far points lose digits that differences of near ones keep: the scale is theirs.
        far = self.norm.length(ways)
        slack = 1e-13 * self._reach * far + 2 * MARGIN * far.square()
        return heights - base[owners] >= lengths.square() / 2 * (1 - 2 * MARGIN) - slack[owners]


def _told(label: Any) -> str:
    return repr(label.item() if isinstance(label, np.generic) else label)


def _starts(counts: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])


def _blocks(rows: int, width: int, entries: int = _ENTRIES) -> Iterator[slice]:
    """Slices of so many rows of this width that they can be held."""
    size = max(1, entries // max(1, width))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


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
    neighbours: CellNeighbours = None  # type: ignore[assignment]

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

    def select(self, rows: Tensor) -> CellRegion:
        """The region of some of the inputs."""
        return replace(self, rows=self.rows[rows], neighbours=self.neighbours.select(rows))

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Random points (B, D) of the region."""
        points = self.cells.points
        low, high = (float(points.min()), float(points.max())) if self.bounds is None else self.bounds
        reach = min(self.radius, self.norm.reach(points.shape[1], high - low))
        return self.project(self.centres + self.norm.draw(self.centres, reach, generator))

    @torch.no_grad()
    def project(self, points: Tensor) -> Tensor:
        """Points (B, D) of the region near given ones, strictly inside their cells as they come, rounded to `dtype`."""
        wide, near = points.double(), self.neighbours
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
        near, used = self.neighbours, crossed.clone()
        found, going = points.clone(), torch.arange(len(points))
        for _ in range(_ROUNDS):
            part, of_part = self.select(going), near.of(going)
            for some in portions(part.neighbours.where(used[of_part]), targets.shape[1]):
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
            out = self.cells.crossed(found[going], part.rows, part.neighbours)
            more = out & ~used[of_part]
            used[of_part] |= out
            going = going[torch.nonzero(part.neighbours.counts_of(more)).squeeze(1)]
            if not len(going):
                break
        return found

    def _drawn_in(self, targets: Tensor, points: Tensor, crossed: Tensor) -> Tensor:
        """Points (B, D) drawn straight towards their centres until they are inside: cells are star-shaped.

        Who was not nearer than the centre at the end of the way is not nearer anywhere on it.
        """
        near, centres = self.neighbours.where(crossed), self.centres
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
        near = self.neighbours
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
