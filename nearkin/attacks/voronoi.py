"""Standard and Voronoi-epsilon adversarial accuracy: how a classifier holds in balls, and in balls inside cells.

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

from nearkin.attacks.cells import Cells, UniqueItems, merge_duplicates
from nearkin.attacks.checks import as_inputs, at_rest, check_counts
from nearkin.attacks.classifier import class_codes
from nearkin.attacks.goals import Misclassify, Raised
from nearkin.attacks.hunt import Climbs, Hunt
from nearkin.attacks.norms import Norm, as_norm
from nearkin.attacks.region import PIXELS, Bounds, check_bounds
from nearkin.errors import DataError
from nearkin.progress import Progress

_BATCH = 512
"""Inputs that are attacked together, unless told otherwise."""


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
        raise DataError("The classifier does not say what its classes are: give classes=, in the order of its columns.")
    items = merge_duplicates(inputs, labels)
    check_bounds(items.points, bounds)
    notes = [f"{items.merged} inputs that are there more than once were merged."] if items.merged else []
    places = np.arange(len(items.rows)) if attacked is None else _attacked(attacked, items)
    codes, rows = class_codes(names, items.labels), torch.from_numpy(places)
    hunt = Hunt(
        Misclassify(classifier, codes[rows], tuple(inputs.shape[1:]), raised),
        Cells(items.points, as_norm(norm)),
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
        raise DataError(f"The inputs to attack are rows, from 0 to {len(items.places) - 1}, at least one: give these.")
    return np.unique(items.places[chosen])


def _checked(epsilons: Sequence[float]) -> list[float]:
    """Ascending radii, each once."""
    try:
        found = sorted({float(eps) for eps in epsilons})
    except (TypeError, ValueError):
        found = []
    if not found or not all(0 <= eps < torch.inf for eps in found):
        raise DataError(f"The epsilons of a robustness curve are numbers from 0 on, at least one, not {epsilons!r}.")
    return found
