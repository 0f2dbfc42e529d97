"""Where an adversary may go: a ball around each input, inside the box of possible inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from nearkin.attacks.norms import Norm
from nearkin.errors import DataError

Bounds = tuple[float, float]

PIXELS: Bounds = (0.0, 1.0)
"""Between which pixels lie."""


def check_bounds(inputs: Tensor, bounds: Bounds | None) -> None:
    """Refuse inputs that lie outside of their bounds: no ball around them would lie inside."""
    if bounds is None or not inputs.numel():
        return
    low, high = inputs.new_tensor(bounds)  # rounded as the inputs are
    if not bool((inputs.min() >= low) & (inputs.max() <= high)):
        raise DataError(
            f"Inputs lie outside of {bounds[0]:g} to {bounds[1]:g}: scale them, or say between which bounds they lie."
        )


class Region(Protocol):
    """What each of B inputs may become."""

    @property
    def norm(self) -> Norm:
        """How steps are measured."""
        ...

    def project(self, points: Tensor) -> Tensor:
        """Points of the region near points (B, D)."""
        ...

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Random points (B, D) of the region."""
        ...

    def select(self, rows: Tensor) -> Region:
        """The region of some of the inputs."""
        ...


@dataclass(frozen=True, eq=False)
class Ball:
    """The ball of a norm around each input, cut by a box.

    Args:
        centres: inputs (B, D), inside the box.
        radius: epsilon.
        norm: of the ball.
        bounds: smallest and largest value of a coordinate; None: any.
    """

    centres: Tensor
    radius: float
    norm: Norm
    bounds: Bounds | None = PIXELS

    def __post_init__(self) -> None:
        if not 0 <= self.radius < torch.inf:
            raise DataError(f"The size of a perturbation is a number from 0 on, not {self.radius}.")

    def project(self, points: Tensor) -> Tensor:
        """Points of the ball and the box near points (B, D).

        The box holds the centres, so cutting by it brings every coordinate nearer to them: the ball is not left.
        """
        inside = self.centres + self.norm.project(points - self.centres, self.radius)
        return inside if self.bounds is None else inside.clamp(*self.bounds)

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Random points (B, D) of the region."""
        return self.project(self.centres + self.norm.draw(self.centres, self.radius, generator))

    def select(self, rows: Tensor) -> Ball:
        """The region of some of the inputs."""
        return replace(self, centres=self.centres[rows])
