"""Where an adversary may go: a ball around each input inside the box of possible inputs, and its unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from nearkin.attacks.norms import Norm, Scaled, as_norm
from nearkin.data.inputs import InputSpec
from nearkin.errors import DataError, suggestion

Bounds = tuple[float, float]

PIXELS: Bounds = (0.0, 1.0)
"""Between which pixels lie."""


def check_bounds(inputs: Tensor, bounds: Bounds | None) -> None:
    """Refuse inputs that lie outside of their bounds: no ball around them would lie inside."""
    if bounds is None or not inputs.numel():
        return
    low, high = inputs.new_tensor(bounds)  # rounded as the inputs are
    if not bool((inputs.min() >= low) & (inputs.max() <= high)):
        raise DataError(f"Inputs lie outside of {bounds[0]:g} to {bounds[1]:g}: scale them, or pass their bounds.")


class Region(Protocol):
    """What each of B inputs may become."""

    @property
    def norm(self) -> Norm:
        """How steps are measured."""

    @property
    def bounds(self) -> Bounds | None:
        """Smallest and largest value of a coordinate; None: any."""

    def project(self, points: Tensor) -> Tensor:
        """Points of the region near points (B, D)."""

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Random points (B, D) of the region."""

    def select(self, rows: Tensor) -> Region:
        """The region of some of the inputs."""


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
            raise DataError(f"The size of a perturbation must be a number of at least 0, not {self.radius}.")

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


_UNITS = ("pixels", "normalised")


@dataclass(frozen=True, eq=False)
class Unit:
    """From pixels in [0, 1] to numbers of a unit and back: `(pixels - mean) / std`, channel by channel.

    Args:
        name: "pixels" or "normalised".
        mean: of each channel (C,), as a model's normalisation has it; 0 for pixels.
        std: likewise; 1 for pixels.
    """

    name: str
    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, name: str, spec: InputSpec) -> Unit:
        """The unit of this name for the inputs of a model."""
        if name not in _UNITS:
            raise DataError(f"Unknown unit of perturbations: '{name}'.{suggestion(str(name), _UNITS)}")
        return cls.pixels() if name == "pixels" else cls(name, torch.tensor(spec.mean), torch.tensor(spec.std))

    @classmethod
    def pixels(cls) -> Unit:
        """Pixels from 0 to 1."""
        return cls("pixels", torch.zeros(1), torch.ones(1))

    @property
    def bounds(self) -> Bounds:
        """Smallest and largest number that a pixel can be, of any channel."""
        low, high = (PIXELS[0] - self.mean) / self.std, (PIXELS[1] - self.mean) / self.std
        return float(low.min()), float(high.max())

    def of_pixels(self, pixels: Tensor) -> Tensor:
        """Pixels (B, C, H, W) in this unit."""
        return (pixels - self._over(self.mean)) / self._over(self.std)

    def to_pixels(self, numbers: Tensor) -> Tensor:
        """Numbers (B, C, H, W) of this unit as pixels; what no pixel can be is cut.

        The gradient passes the cut: black and white pixels, which rounding may put a little outside, keep theirs.
        """
        pixels = numbers * self._over(self.std) + self._over(self.mean)
        return pixels.detach().clamp(*PIXELS) + (pixels - pixels.detach())

    def measured(self, norm: str | Norm, shape: tuple[int, ...]) -> Norm:
        """A norm of this unit as one of flat pixels of images (C, H, W): a point is then what the model sees."""
        if self.name == "pixels":
            return as_norm(norm)
        return Scaled(as_norm(norm), self._over(self.std).expand(1, *shape).reshape(-1))

    def taken_by(self, classifier: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """A classifier of pixels as one of numbers of this unit."""
        return lambda numbers: classifier(self.to_pixels(numbers))

    @staticmethod
    def _over(values: Tensor) -> Tensor:
        return values.view(1, -1, 1, 1)
