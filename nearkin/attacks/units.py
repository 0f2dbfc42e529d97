"""In which unit a perturbation is measured: pixels from 0 to 1, or inputs as the model's normalisation gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.attacks.norms import Norm, Scaled, as_norm
from nearkin.attacks.region import PIXELS, Bounds
from nearkin.data.inputs import InputSpec
from nearkin.errors import DataError, suggestion

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
            raise DataError(f"Perturbations are not measured in '{name}'.{suggestion(str(name), _UNITS)}")
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
