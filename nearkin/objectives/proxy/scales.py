"""What nearness is multiplied by: a fixed number, or one that follows where training stands, and where it starts.

Where a scale starts: the root of the stationarity residual when nothing is known but the number of classes.
The other classes are taken to be at 90 degrees and the own one at 45. Derivation: docs/methods/proxy-options.md.

A good scale is where the own class's probability changes fastest with its distance: where psi, the factor of its second
derivative that can be zero, is zero. Article IV of Kim 2023 looks for it by Adam on ln s, AdaCos by a formula.
Derivation: docs/methods/proxy-options.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.errors import RecipeError

LEAST_SCALE, LARGEST_SCALE = 1.0, 100.0
"""Between which every scale that moves is kept."""

_HALVINGS = 100
_GRID = 20_000


def adacos_scale(classes: int) -> float:
    """`sqrt(2) ln(C - 1)`, at least 1: AdaCos's fixed scale."""
    return max(LEAST_SCALE, math.sqrt(2) * math.log(classes - 1))


def ratio_scale(classes: int, share: float) -> float:
    """The s with `(C - 1)(s + 1) share^s = s - 1`: of distance ratios.

    There is exactly one: above s = 1 the logarithm of the left over the right falls from infinity to minus infinity.

    Args:
        classes: C, at least 2.
        share: distance of the own class over that of the others, within (0, 1).
    """

    def excess(s: float) -> float:
        return math.log(classes - 1) + math.log((s + 1) / (s - 1)) + s * math.log(share)

    high = 2.0
    while excess(high) > 0:
        high *= 2
    return _root(excess, 1 + 1e-12, high)


def cosine_scale(classes: int) -> float:
    """The larger s with `cos t (e^{s cos t} + B) + s sin^2 t (e^{s cos t} - B) = 0`, t = 45 degrees, B = C - 1.

    Up to 22 classes there is none: then it is AdaCos's.
    """
    others = classes - 1
    cosine = math.sqrt(0.5)

    def residual(s: np.ndarray | float) -> np.ndarray:
        share = others * np.exp(-np.asarray(s) * cosine)  # divided by e^{s cos t}, which has no root and could overflow
        return cosine * (1 + share) + 0.5 * s * (1 - share)

    # At AdaCos's scale the residual is positive, and beyond it grows: the roots are below.
    grid = np.linspace(0, adacos_scale(classes), _GRID)
    negative = np.flatnonzero(residual(grid) < 0)
    if not len(negative):
        return adacos_scale(classes)
    last = int(negative[-1])
    return _root(lambda s: -float(residual(s)), grid[last], grid[last + 1])


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that is positive at `low` and not at `high` passes zero."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return float((low + high) / 2)


QUARTER_CHORD = math.sqrt(2)
"""The chord of 90 degrees."""
EIGHTH_CHORD = 2 * math.sin(math.pi / 8)
"""The chord of 45 degrees."""

SCALE_RATE = 1e-4
"""Of the Adam that moves a dynamic scale, as in Kim 2023, article IV."""
_BETAS = 0.9, 0.999
_EPSILON = 1e-8
_LARGEST_POWER = 150.0
"""The fourth power of e to this is still a number in double precision: Adam squares the slope of a square."""

ScaleValue = float | Literal["dynamic"]
Residual = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class ScoreScale(nn.Module):
    """Base of the scales; this one does not change.

    Args:
        start: its value.
    """

    def __init__(self, start: float) -> None:
        super().__init__()
        self.start = start

    def forward(self) -> float | Tensor:
        """The scale, without gradient."""
        return self.start

    def watch(self, scores: Tensor, labels: Tensor) -> None:
        """Take note of a batch in training, scores (B, C) without gradient and labels (B,); nothing by default."""

    def stepped(self) -> None:
        """Move by what was watched last; nothing by default."""

    def readings(self) -> dict[str, float]:
        """`scale`, where it moves."""
        return {}


@dataclass(frozen=True)
class _Sight:
    """What a scale keeps of a batch, in double precision.

    Attributes:
        log_others: ln B, B the batch's mean of the sum over the other classes of exp(s u).
        own: median nearness to the own class; of an even number the nearer of the two.
        others: mean nearness to the other classes.
    """

    log_others: Tensor
    own: Tensor
    others: Tensor


class _MovingScale(ScoreScale):
    """A scale that watches."""

    def __init__(self, start: float) -> None:
        super().__init__(start)
        self._sight: _Sight | None = None

    @torch.no_grad()
    def watch(self, scores: Tensor, labels: Tensor) -> None:
        """Keep what of scores (B, C) and labels (B,) the next step needs."""
        index = labels.unsqueeze(1)
        own = scores.gather(1, index).squeeze(1)
        rows = scores.scatter(1, index, -math.inf).logsumexp(dim=1).double()
        scale = torch.as_tensor(self(), dtype=torch.float64, device=scores.device)
        others = (scores.double().sum() - own.double().sum()) / (scores.numel() - len(own))
        median = -(-own).median().double()  # that of the distances: torch takes the lower of two
        self._sight = _Sight(rows.logsumexp(dim=0) - math.log(len(own)), median / scale, others / scale)

    def _taken(self) -> _Sight | None:
        sight, self._sight = self._sight, None
        return sight

    def readings(self) -> dict[str, float]:
        """`scale` as it is now."""
        return {"scale": float(self())}


@dataclass(frozen=True)
class ScaleLaw:
    """What a dynamic scale makes small.

    Attributes:
        residual: (s, ln B, u of the own class) to psi and its derivative by s, B and u being constants.
        start: number of classes to the scale to start from.
        least: nearness below which the own class is not taken to be, early in training; None: as much above the mean
            nearness to the other classes as the chord of 45 degrees is to that of 90.
    """

    residual: Residual
    start: Callable[[int], float]
    least: float | None


def cosine_residual(scale: Tensor, log_others: Tensor, cosine: Tensor) -> tuple[Tensor, Tensor]:
    """`cos t (e^{s cos t} + B) + s sin^2 t (e^{s cos t} - B)` and its derivative by s."""
    own = (scale * cosine).clamp(max=_LARGEST_POWER).exp()
    others = log_others.clamp(max=_LARGEST_POWER).exp()
    sine_square = 1 - cosine.square()
    psi = cosine * (own + others) + scale * sine_square * (own - others)
    slope = cosine.square() * own + sine_square * (own - others) + scale * sine_square * cosine * own
    return psi, slope


def ratio_residual(scale: Tensor, log_others: Tensor, nearness: Tensor) -> tuple[Tensor, Tensor]:
    """`B (s + 1) d^s - s + 1` with d = exp(-nearness), and its derivative by s."""
    share = (log_others - scale * nearness).clamp(max=_LARGEST_POWER).exp()
    psi = share * (scale + 1) - scale + 1
    slope = share * (1 - (scale + 1) * nearness) - 1
    return psi, slope


_chord_scale = partial(ratio_scale, share=EIGHTH_CHORD / QUARTER_CHORD)
COSINE_LAW = ScaleLaw(cosine_residual, cosine_scale, math.cos(math.pi / 4))
ANGLE_LAW = ScaleLaw(ratio_residual, partial(ratio_scale, share=0.5), -math.log(math.pi / 4))
CHORD_LAW = ScaleLaw(ratio_residual, _chord_scale, -math.log(EIGHTH_CHORD))
DISTANCE_LAW = ScaleLaw(ratio_residual, _chord_scale, None)


class DynamicScale(_MovingScale):
    """A scale whose logarithm is moved by an Adam of its own to make psi^2 small; kept from 1 to 100.

    Args:
        law: psi, and where to start.
        classes: C.
        rate: of that Adam: about how much ln s moves in a step.
    """

    log_scale: Tensor
    first_moment: Tensor
    second_moment: Tensor
    steps: Tensor

    def __init__(self, law: ScaleLaw, classes: int, rate: float = SCALE_RATE) -> None:
        super().__init__(law.start(classes))
        self.law = law
        self.rate = rate
        self.register_buffer("log_scale", torch.tensor(math.log(self.start), dtype=torch.float64))
        for name in ("first_moment", "second_moment", "steps"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    def forward(self) -> Tensor:
        """The scale, a scalar tensor."""
        return self.log_scale.exp()

    @torch.no_grad()
    def stepped(self) -> None:
        """One step of Adam on psi^2 at what was watched last."""
        sight = self._taken()
        if sight is None:
            return
        if self.law.least is None:
            least = sight.others + math.log(QUARTER_CHORD / EIGHTH_CHORD)
            own = torch.maximum(sight.own, least)
        else:
            own = sight.own.clamp(min=self.law.least)
        scale = self.log_scale.exp()
        psi, slope = self.law.residual(scale, sight.log_others, own)
        self._adam(2 * psi * slope * scale)

    def _adam(self, gradient: Tensor) -> None:
        # A batch that is not finite, such as one that mixed precision leaves out, must not spoil the scale for good.
        gradient = torch.where(gradient.isfinite(), gradient, 0.0)
        first, second = _BETAS
        self.steps += 1
        self.first_moment.lerp_(gradient, 1 - first)
        self.second_moment.lerp_(gradient.square(), 1 - second)
        mean = self.first_moment / (1 - first**self.steps)
        spread = (self.second_moment / (1 - second**self.steps)).sqrt()
        self.log_scale -= self.rate * mean / (spread + _EPSILON)
        self.log_scale.clamp_(math.log(LEAST_SCALE), math.log(LARGEST_SCALE))


class AdaCosScale(_MovingScale):
    """AdaCos's scale: after each step s = ln B / cos(min(45 degrees, median own angle)); kept from 1 to 100.

    Args:
        classes: C; the scale starts at `sqrt(2) ln(C - 1)`.
    """

    scale: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__(adacos_scale(classes))
        self.register_buffer("scale", torch.tensor(self.start, dtype=torch.float64))

    def forward(self) -> Tensor:
        """The scale, a scalar tensor."""
        return self.scale

    @torch.no_grad()
    def stepped(self) -> None:
        """Take over what the formula says of what was watched last."""
        sight = self._taken()
        if sight is not None:
            cosine = sight.own.clamp(min=math.cos(math.pi / 4))
            found = (sight.log_others / cosine).clamp(LEAST_SCALE, LARGEST_SCALE)
            self.scale.copy_(torch.where(found.isfinite(), found, self.scale))


def make_scale(option: ScaleValue, law: ScaleLaw, classes: int, rate: float = SCALE_RATE) -> ScoreScale:
    """A scale of a given value, or one that makes the residual of `law` small.

    Raises:
        RecipeError: a rate for a scale that does not move.
    """
    if option == "dynamic":
        return DynamicScale(law, classes, rate)
    if rate != SCALE_RATE:
        raise RecipeError(
            f"scale_rate={rate:g} moves a dynamic scale, but scale is {option:g}: set objective.parameters.scale to "
            "dynamic, or leave scale_rate out."
        )
    return ScoreScale(float(option))
