"""Points that are laid out by what is known of each pair: their distance, their cosine, or only who is nearer to whom.

Multidimensional scaling minimises the stress `|D - T|_F / |T|_F` between the distances D of the points and the targets
T by Adam. Cosines are met exactly where dimensions suffice. Ranks are learned from triplets. When to use which:
docs/methods/proxy-options.md.
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


def chord_targets(distances: np.ndarray, beta: float = 1.0, farthest: float | None = None) -> np.ndarray:
    """Distances from 0 to infinity as chords between 0 and a right angle's: `sqrt(2) d / (beta + d)`.

    Reference: Kim 2023, article IV.

    Args:
        distances: any shape, such as those of a class tree (C, C).
        beta: the distance that becomes half of the largest chord; small ones tell large distances less apart.
        farthest: the chord that the largest of the distances becomes, all others in proportion; None: as printed,
            which stays well below `sqrt(2)` where no distance is large beside beta.
    """
    _check_positive(beta, "beta")
    wide = _numbers(distances, "The distances")
    chords = math.sqrt(2) * wide / (beta + wide)
    if farthest is None:
        return chords
    _check_positive(farthest, "farthest")
    return chords * (farthest / chords.max()) if chords.any() else chords


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


def points_of_cosines(cosines: np.ndarray, dimension: int) -> Tensor:
    """Unit points (C, d), float32, with exactly these cosines.

    Reference: Barz, Denzler 2019, Hierarchy-based image embeddings for semantic image retrieval.

    Args:
        cosines: (C, C), symmetric with ones on the diagonal, such as `1 - d` of the LCS distances of a tree.
        dimension: d, at least the rank of the matrix, which is C where no two classes share all they are close to.
    """
    check_whole(dimension, "dimension", 1)
    wide = np.array(cosines, dtype=np.float64)
    if wide.ndim != 2 or wide.shape[0] != wide.shape[1] or not wide.size or not np.isfinite(wide).all():
        raise DataError(f"The cosines must be a square (C, C) of finite numbers, not of shape {wide.shape}.")
    if np.abs(wide - wide.T).max() > _SYMMETRY or np.abs(wide.diagonal() - 1).max() > _SYMMETRY:
        raise DataError("The cosines must be symmetric, with ones on the diagonal.")
    squares, directions = np.linalg.eigh((wide + wide.T) / 2)
    held = squares > _SYMMETRY * squares[-1]
    if squares[0] < -_SYMMETRY * squares[-1]:
        raise DataError("No points have these cosines: the matrix has eigenvalues below 0.")
    if held.sum() > dimension:
        raise DataError(f"Points with these cosines need {held.sum()} dimensions, and there are {dimension}.")
    points = np.zeros((len(wide), dimension))
    points[:, : held.sum()] = directions[:, held] * np.sqrt(squares[held])
    return torch.from_numpy(points / np.linalg.norm(points, axis=1, keepdims=True)).float()


_COMPARISONS = 512
"""Pairs that each class is compared with in a step of `points_of_ranks`."""
_SHARPNESS = 10.0
"""Of its triplets: a difference of 0.3 in cosine settles which of two is nearer, so that points need not collapse."""


@torch.inference_mode(False)
@torch.enable_grad()
def points_of_ranks(
    distances: np.ndarray,
    dimension: int,
    *,
    closest: float = 0.5,
    steps: int = 1000,
    lr: float = 1e-2,
    seed: int = 0,
) -> Tensor:
    """Unit points (C, d), float32, whose cosines are ordered as the distances are, and which keep apart.

    Minimises the cross-entropy of "i is nearer to j than to k" with the logit `10 (cos_ij - cos_ik)`, over random
    triplets (a tie counts half), plus the mean over i of what its largest cosine to another point has above `closest`.

    Reference: Mettes, van der Pol, Snoek 2019, Hyperspherical prototype networks.

    Args:
        distances: (C, C), symmetric with a zero diagonal; only their order in each row counts.
        dimension: of the points.
        closest: the cosine above which two points repel each other.
        steps: of Adam.
        lr: its learning rate.
        seed: of the start and the triplets.
    """
    check_whole(dimension, "dimension", 1)
    check_whole(steps, "steps", 1)
    if not is_real(closest) or not -1 < closest <= 1:
        raise DataError(f"closest must be a cosine above -1, not {closest!r}.")
    wide = torch.from_numpy(_checked_targets(distances))
    count = len(wide)
    generator = torch.Generator().manual_seed(int(seed))
    free = torch.randn(count, dimension, generator=generator).div_(math.sqrt(dimension)).requires_grad_()
    optimiser = torch.optim.Adam([free], lr=lr)
    itself = torch.eye(count, dtype=torch.bool)
    for _ in range(steps):
        unit = torch.nn.functional.normalize(free)
        cosines = unit @ unit.T
        # Any class but the row's own: a number below C - 1, and one more from the diagonal on.
        drawn = torch.randint(count - 1, (2, count, _COMPARISONS), generator=generator)
        one, other = drawn + (drawn >= torch.arange(count)[:, None])
        nearer = 0.5 * (1 + torch.sign(wide.gather(1, other) - wide.gather(1, one))).float()
        logits = _SHARPNESS * (cosines.gather(1, one) - cosines.gather(1, other))
        ranked = torch.nn.functional.binary_cross_entropy_with_logits(logits, nearer)
        optimiser.zero_grad()
        (ranked + (cosines.masked_fill(itself, -1.0).amax(dim=1) - closest).clamp(min=0).mean()).backward()
        optimiser.step()
    return torch.nn.functional.normalize(free.detach())


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
