"""Voronoi cells of a data set: which points can cut a ball, and whether a point lies strictly inside its cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.attacks.norms import L2, Norm
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
