"""Standard and Voronoi-epsilon adversarial accuracy, and the search for wrong points behind them.

SAA asks for the worst point within epsilon of an input; where epsilon is large, that may be another real input. VAA
asks for the worst point that is also nearer to its own input than to any other. Reference: Kim 2023, article III.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.attacks.cells import CellRegion, UniqueItems, VoronoiCells, merge_duplicates
from nearkin.attacks.classifier import as_inputs, at_rest, check_counts, class_codes
from nearkin.attacks.norms import Norm, as_norm
from nearkin.attacks.pgd import Goal, Misclassify, OfInputs, Raised, ascend, usual_step
from nearkin.attacks.region import PIXELS, Ball, Bounds, Region, check_bounds
from nearkin.errors import DataError
from nearkin.progress import Progress


@dataclass(frozen=True)
class Climbs:
    """How to look for wrong points: steps of a climb, climbs from random points, their seed, inputs at once."""

    steps: int
    restarts: int
    seed: int
    batch_size: int


@dataclass(eq=False)
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

    goal: Goal
    cells: VoronoiCells
    codes: Tensor
    rows: Tensor
    dtype: torch.dtype
    bounds: Bounds | None
    climbs: Climbs

    def __post_init__(self) -> None:
        self._gaps, self._others = self.cells.nearest_other(self.rows, self.codes)
        self.standard_radii = torch.full((len(self.rows),), torch.inf, dtype=torch.float64)
        self.voronoi_radii = self.standard_radii.clone()
        self.standard_points = self.cells.points[self.rows].to(self.dtype)
        self.voronoi_points = self.standard_points.clone()

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
        # Where nothing bounds climbs: cells end before inputs of other classes begin.
        gaps = self._gaps[self._gaps.isfinite()]
        step = usual_step(min(eps, float(gaps.max()) if len(gaps) else self._far()), climbs.steps)
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


_BATCH = 512
"""Inputs that are attacked together, by default."""


@dataclass(frozen=True, eq=False)
class RobustnessCurves:
    """Adversarial accuracies over a range of epsilon; both are upper bounds, since an attack may miss a worse point.

    Attributes:
        epsilons: ascending (e,).
        standard: SAA (e,).
        voronoi: VAA (e,).
        accuracy: of the inputs as they are: both at epsilon 0.
        global_robustness: VAA without a ball; NaN where it was not asked for.
        smallest_distance: of an attacked input to any other; below half of it SAA and VAA are equal.
        standard_radii: distance (B,) of the nearest wrongly classified point that was found, inf for none.
        voronoi_radii: the same inside the cells.
        standard_points: these points (B, D); the input itself where there is none.
        voronoi_points: likewise.
        rows: which inputs were attacked, as rows of what was given (B,).
        items: how many different inputs have cells.
        norm: of balls and cells.
        notes: what a reader must know.
    """

    epsilons: np.ndarray
    standard: np.ndarray
    voronoi: np.ndarray
    accuracy: float
    global_robustness: float
    smallest_distance: float
    standard_radii: np.ndarray = field(repr=False)
    voronoi_radii: np.ndarray = field(repr=False)
    standard_points: Tensor = field(repr=False)
    voronoi_points: Tensor = field(repr=False)
    rows: np.ndarray = field(repr=False)
    items: int = 0
    norm: str = "l2"
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The numbers, as JSON can hold them."""
        return {
            "norm": self.norm,
            "epsilons": self.epsilons.tolist(),
            "SAA": self.standard.tolist(),
            "VAA": self.voronoi.tolist(),
            "accuracy": self.accuracy,
            "global Voronoi robustness": None if np.isnan(self.global_robustness) else self.global_robustness,
            "smallest distance": self.smallest_distance if np.isfinite(self.smallest_distance) else None,
            "inputs": len(self.rows),
            "cells": self.items,
            "notes": self.notes,
        }


def adversarial_accuracy(
    classifier: Callable[[Tensor], Tensor],
    inputs: Tensor,
    labels: Any,
    epsilons: Sequence[float],
    *,
    classes: Sequence[Any] | None = None,
    norm: str | Norm = "l2",
    attacked: np.ndarray | None = None,
    steps: int = 40,
    restarts: int = 1,
    raised: Raised = "margin",
    bounds: Bounds | None = PIXELS,
    whole_cells: bool = False,
    candidates: Sequence[Tensor] = (),
    seed: int = 0,
    batch_size: int = _BATCH,
    progress: bool = False,
) -> RobustnessCurves:
    """Measure SAA and VAA of a classifier on a data set.

    Every point that counts was checked in float64: inside its ball, inside the box, and for VAA strictly inside its
    cell among all inputs. What is found for one epsilon or one adversary counts for all others whose region holds it,
    so that VAA is never below SAA, both fall with epsilon, and they agree where balls lie inside cells.

    Args:
        classifier: inputs (b, ...) to log-probabilities (b, C); with an attribute `classes`, unless these are given.
        inputs: the data set (n, ...); equal ones are merged.
        labels: (n,).
        epsilons: radii of the balls, in the unit of the inputs.
        classes: what the columns of the log-probabilities stand for; None: `classifier.classes`.
        norm: "l2", "linf", or a `Norm`, of balls and cells alike.
        attacked: rows of the inputs that are attacked, the others only bound cells; None: all.
        steps: of each climb.
        restarts: climbs from random points, after one from the input itself.
        raised: what an attack raises, see `Misclassify`.
        bounds: smallest and largest value of an input; None: any.
        whole_cells: also measure the global Voronoi robustness, without a ball: the limit of VAA.
        candidates: points of the attacked inputs, each (B, ...) in their order, that other attacks have found.
        seed: of the random points.
        batch_size: inputs that are attacked together.
        progress: whether to show a bar.
    """
    radii, inputs = _checked(epsilons), as_inputs(inputs)
    check_counts(steps=steps, batch_size=batch_size)
    check_counts(0, restarts=restarts)
    names = getattr(classifier, "classes", None) if classes is None else classes
    if names is None:
        raise DataError("The classifier has no `classes`: pass classes=, in the order of its columns.")
    items = merge_duplicates(inputs, labels)
    check_bounds(items.points, bounds)
    notes = [f"{items.merged} inputs that are there more than once were merged."] if items.merged else []
    places = np.arange(len(items.rows)) if attacked is None else _attacked(attacked, items)
    codes, rows = class_codes(names, items.labels), torch.from_numpy(places)
    hunt = Hunt(
        Misclassify(classifier, codes[rows], tuple(inputs.shape[1:]), raised),
        VoronoiCells(items.points, as_norm(norm)),
        codes,
        rows,
        items.points.dtype,
        bounds,
        Climbs(steps, restarts, seed, batch_size),
    )
    sizes = [*radii, torch.inf] if whole_cells else radii
    given = np.arange(len(inputs)) if attacked is None else np.asarray(attacked)
    with at_rest(classifier), Progress("Attacking", len(sizes), progress) as bar:
        hunt.look_at_inputs()
        for points in candidates:
            hunt.look_at(torch.from_numpy(np.searchsorted(places, items.places[given])), as_inputs(points).flatten(1))
        accuracy = float((hunt.standard_radii > 0).double().mean())
        for eps in sizes:
            hunt.search(float(eps))
            bar.advance(1, f"epsilon {eps:.3g}")
    standard, voronoi = hunt.standard_radii.numpy(), hunt.voronoi_radii.numpy()
    return RobustnessCurves(
        np.array(radii),
        np.array([float((standard > eps).mean()) for eps in radii]),
        np.array([float((voronoi > eps).mean()) for eps in radii]),
        accuracy,
        float((voronoi == np.inf).mean()) if whole_cells else float("nan"),
        hunt.cells.smallest_distance(rows),
        standard,
        voronoi,
        hunt.standard_points,
        hunt.voronoi_points,
        items.rows[places],
        len(items.rows),
        as_norm(norm).name,
        notes,
    )


def _attacked(rows: Any, items: UniqueItems) -> np.ndarray:
    """Which of the items stand for rows of what was given, each once."""
    chosen = np.asarray(rows)
    whole = chosen.ndim == 1 and np.issubdtype(chosen.dtype, np.integer) and len(chosen) > 0
    if not whole or chosen.min() < 0 or chosen.max() >= len(items.places):
        raise DataError(f"Pass at least one row to attack, from 0 to {len(items.places) - 1}.")
    return np.unique(items.places[chosen])


def _checked(epsilons: Sequence[float]) -> list[float]:
    """Ascending radii, each once."""
    try:
        found = sorted({float(eps) for eps in epsilons})
    except (TypeError, ValueError):
        found = []
    if not found or not all(0 <= eps < torch.inf for eps in found):
        raise DataError(f"epsilons must be at least one number, none below 0, not {epsilons!r}.")
    return found
