"""Projected gradient ascent: FGSM, BIM and PGD for whatever can be raised, in any region.

`x <- project(x + step * steepest(gradient))`. One step of the whole radius from the input is FGSM, many small ones from
the input are BIM, and from a random point of the region PGD.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nearkin.attacks.region import Region
from nearkin.errors import DataError

_STEP = 2.5
"""A step is so many times the radius over the number of steps, unless told otherwise: the ball can be crossed."""


class Goal(Protocol):
    """What an attack wants of inputs."""

    def __call__(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What to raise (b,), differentiable, and whether the aim is reached (b,), at points (b, D) of some inputs."""
        ...


@dataclass(frozen=True, eq=False)
class Found:
    """What an attack found.

    Attributes:
        points: the worst point (B, D) of each input: one that reaches the aim if there was any, else of highest value.
        values: what was raised, there (B,).
        reached: whether the aim was reached (B,).
    """

    points: Tensor
    values: Tensor
    reached: Tensor

    def take(self, rows: Tensor, points: Tensor, values: Tensor, reached: Tensor) -> None:
        """Take in points (b, D) of inputs `rows` (b,) where they are worse for the defender than what is known."""
        before = self.reached[rows]
        better = (reached & ~before) | ((reached == before) & (values > self.values[rows]))
        places = rows[better]
        self.points[places], self.values[places] = points[better], values[better].to(self.values)
        self.reached[places] = reached[better]


def nothing_found(points: Tensor) -> Found:
    """What is known of points (B, D) before anything was tried: themselves."""
    return Found(
        points.clone(),
        torch.full((len(points),), -torch.inf, dtype=points.dtype, device=points.device),
        torch.zeros(len(points), dtype=torch.bool, device=points.device),
    )


def usual_step(radius: float, steps: int) -> float:
    """The size of a step where nobody says."""
    return _STEP * radius / steps if steps > 1 else radius


def ascend(goal: Goal, start: Tensor, region: Region, *, steps: int, step: float) -> Found:
    """Climb from `start` (B, D), inside the region; an input whose aim is reached is left alone from then on.

    Args:
        goal: what to raise.
        start: where to begin, (B, D).
        region: what must not be left.
        steps: how many; 0 looks at the start alone.
        step: length of each, in the region's norm.
    """
    if steps < 0 or not step >= 0:
        raise DataError(f"An attack takes a number of steps from 0 on, each of some length, not {steps} of {step}.")
    found = nothing_found(start)
    points, rows = start, torch.arange(len(start), device=start.device)
    for left in range(steps, -1, -1):
        with torch.set_grad_enabled(left > 0):
            x = points.detach().requires_grad_(left > 0)
            values, reached = goal(x, rows)
            total = values.sum()
        found.take(rows, points, values.detach(), reached)
        going = ~reached
        if left == 0 or not bool(going.any()):
            break
        if not total.requires_grad:
            raise DataError(
                "What is attacked has no gradient: attack something like it that has, or use the attack 'square'."
            )
        (gradient,) = torch.autograd.grad(total, x)
        rows = rows[going]
        points = _moved(points[going], gradient[going], region.select(rows), step)
    return found


def climb(raised: Callable[[Tensor], Tensor], start: Tensor, region: Region, *, steps: int, step: float) -> Tensor:
    """Where so many steps lead (B, D), whatever is met on the way: what training perturbs its inputs by.

    Args:
        raised: points (B, D) to values (B,).
        start: where to begin, (B, D).
        region: what must not be left.
        steps: how many.
        step: length of each, in the region's norm.
    """
    points = start
    for _ in range(steps):
        with torch.enable_grad():
            x = points.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(raised(x).sum(), x)
        points = _moved(points, gradient, region, step)
    return points


@torch.no_grad()
def _moved(points: Tensor, gradient: Tensor, region: Region, step: float) -> Tensor:
    """Points (B, D) after one step."""
    # Where there is no number there is no way up: such a coordinate stays.
    return region.project(points + step * region.norm.steepest(gradient.nan_to_num(0.0)))
