"""Multidimensional scaling: points of a space whose distances are as near to given ones as can be.

Minimises the stress `|D - T|_F / |T|_F` between the distances D of the points and the targets T by Adam.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import check_whole, is_real, is_whole
from nearkin.errors import DataError
from nearkin.spaces.space import Euclidean, Space, Sphere

_CLOSEST = 1e-10
"""Of squared distances: below it there is rounding and no slope."""
_SYMMETRY = 1e-6
"""By how much of the largest target two mirrored ones may differ, and the diagonal from zero."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Points that were placed by their distances.

    Attributes:
        points: (C, d) float32, points of the space.
        stress: `|D - T|_F / |T|_F` of the points; 0 when every distance is met.
        course: the stress before each step, (steps,) float64.
    """

    points: Tensor
    stress: float
    course: np.ndarray


def chord_targets(distances: np.ndarray, beta: float = 1.0) -> np.ndarray:
    """Distances from 0 to infinity as chords between 0 and a right angle's: `sqrt(2) d / (beta + d)`.

    Reference: Kim 2023, article IV.

    Args:
        distances: any shape, such as those of a class tree (C, C).
        beta: the distance that becomes half of the largest chord.
    """
    _check_positive(beta, "beta")
    wide = _numbers(distances, "The distances")
    return math.sqrt(2) * wide / (beta + wide)


@torch.inference_mode(False)  # whoever asks may be building a model where gradients are switched off
@torch.enable_grad()
def multidimensional_scaling(
    targets: np.ndarray,
    dimension: int,
    *,
    space: Space = Sphere(),  # noqa: B008 - frozen, so it may be shared
    steps: int = 1000,
    lr: float = 1e-3,
    seed: int = 0,
) -> Scaling:
    """Place C points so that their distances come near the targets.

    The start comes from the seed alone: the same call gives the same points, and no other random state is touched.

    Reference: Kim 2023, article IV (the MDS option).

    Args:
        targets: (C, C), symmetric with a zero diagonal, in units of the space's distance (`chord_targets` for chords).
        dimension: of the points.
        space: where the points live, and how they are compared.
        steps: of Adam.
        lr: its learning rate.
        seed: of the start.
    """
    check_whole(dimension, "dimension", 1)
    check_whole(steps, "steps", 1)
    if not is_whole(seed):
        raise DataError(f"seed must be a whole number, not {seed!r}.")
    _check_positive(lr, "lr")
    wanted = torch.from_numpy(_checked_targets(targets)).float()
    generator = torch.Generator().manual_seed(int(seed))
    start = torch.randn(len(wanted), dimension, generator=generator, dtype=torch.float32)
    # Steps of Adam have one size, which is to be small against the vectors and yet bring them anywhere: at length one.
    free = (start / math.sqrt(dimension)).requires_grad_()
    optimiser = torch.optim.Adam([free], lr=lr)
    course = np.empty(steps)
    flat = isinstance(space, Euclidean) or space == Sphere()
    for step in range(steps):
        points = space.project(free)
        stress = _stress(_straight(points) if flat else space.distance(points, points), wanted)
        course[step] = stress.item()
        optimiser.zero_grad()
        stress.backward()
        optimiser.step()
    points = space.project(free.detach())
    return Scaling(points, _stress(space.distance(points, points), wanted).item(), course)


def _stress(distances: Tensor, wanted: Tensor) -> Tensor:
    """How far distances (C, C) are from those wanted, as a share of these."""
    return torch.linalg.matrix_norm(distances - wanted) / torch.linalg.matrix_norm(wanted)


def _straight(points: Tensor) -> Tensor:
    """Distances (C, C) of points (C, d) along straight lines, by one matrix product.

    What rounding takes from the closest pairs does not matter to the descent, whose steps are larger. Points at the
    same place do not pull at each other.
    """
    squares = points.square().sum(dim=1)
    between = squares.unsqueeze(1) + squares - 2 * points @ points.T
    itself = torch.eye(len(points), dtype=torch.bool, device=points.device)
    return between.clamp(min=_CLOSEST).sqrt().masked_fill(itself, 0.0)


def _checked_targets(targets: np.ndarray) -> np.ndarray:
    wide = _numbers(targets, "The targets")
    if wide.ndim != 2 or wide.shape[0] != wide.shape[1] or len(wide) < 2:
        raise DataError(f"The targets must be a square (C, C) for two points or more, not {wide.shape}.")
    near = _SYMMETRY * wide.max()
    if not near:
        raise DataError("The targets are all zero, so points cannot be placed.")
    if np.abs(wide - wide.T).max() > near:
        raise DataError("The targets must be symmetric.")
    if wide.diagonal().max() > near:
        raise DataError("The diagonal of the targets must be zero.")
    return wide


def _numbers(values: np.ndarray, what: str) -> np.ndarray:
    """Values as float64, if they can be distances."""
    try:
        wide = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} must be an array of numbers ({error}).") from error
    if not np.isfinite(wide).all() or (wide < 0).any():
        raise DataError(f"{what} must be finite and not negative.")
    return wide


def _check_positive(value: Any, name: str) -> None:
    if not is_real(value) or not 0 < float(value) < math.inf:
        raise DataError(f"{name} must be a positive number, not {value!r}.")
