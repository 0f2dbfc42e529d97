"""Class scores from distances and from cosines: softmax over them gives class probabilities.

Class probabilities from cosines, for the models that put a margin on the class in question.
`p(c|x) = exp(s f(cos_c)) / (exp(s f(cos_c)) + sum over y != c of exp(s cos_y))`: the margin, within f, is on c alone,
as it is in training when c is the label. So for f other than the identity, these do not sum to 1 over c.
What they look like on a sphere: docs/methods/distance-ratio.md.
"""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from nearkin.checks import is_whole
from nearkin.errors import DataError
from nearkin.spaces.space import widen

_STABILITY = 1e-10


def sd_softmax_scores(distances: Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """Negative squared distances `-s d^2`, any shape (Kim 2023, eq. 2.12)."""
    return -scale * widen(distances).square()


def distance_scores(distances: Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """Negative distances `-s d`, any shape (Kim 2023, eq. 2.13)."""
    return -scale * widen(distances)


def distance_ratio_scores(distances: Tensor, rho: float | Tensor) -> Tensor:
    """Distance-ratio scores `-rho ln d`, any shape (Kim 2023, article II): `p_c = d_c^-rho / sum_y d_y^-rho`.

    Probabilities do not change when all distances are scaled alike. `d` is taken as `sqrt(d^2 + 1e-10)`, so a point on
    its prototype has a finite score and a zero gradient.
    """
    return -0.5 * rho * (widen(distances).square() + _STABILITY).log()


def normface_probabilities(cosines: Tensor, scale: float | Tensor) -> Tensor:
    """Softmax (..., C) over `s cos` of cosines (..., C); no margin (Wang et al. 2017, NormFace)."""
    return (scale * widen(cosines)).softmax(dim=-1)


def multiplied_angle(cosines: Tensor, margin: int = 4, segments: int | None = None) -> Tensor:
    """`(-1)^k cos(m angle) - 2k` of cosines, any shape (Liu et al. 2017, SphereFace).

    The angle lies in the segment k, from k pi/m to (k+1) pi/m. With all m segments the value falls from 0 to 180
    degrees. With one, k = 0 everywhere, it is `cos(m angle)`, which rises again beyond pi/m.

    Args:
        cosines: any shape.
        margin: m, a whole number: what the angle is multiplied by.
        segments: how many segments to tell apart, 1 to m; the last one reaches to 180 degrees. None: all of them.
    """
    segments = margin if segments is None else segments
    for value, what, most in ((margin, "margin", None), (segments, "number of segments", margin)):
        if not is_whole(value) or value < 1 or (most is not None and value > most):
            limits = "of 1 or more" if most is None else f"from 1 to {most}"
            raise DataError(f"The {what} of SphereFace must be a whole number {limits}, not {value!r}.")
    cosines = widen(cosines)
    segment = torch.zeros_like(cosines)
    for k in range(1, segments):
        segment += cosines <= math.cos(k * math.pi / margin)
    # cos(margin * angle) as a polynomial of the cosine (Chebyshev's), smooth where the angle itself is not.
    before, multiple = torch.ones_like(cosines), cosines
    for _ in range(margin - 1):
        before, multiple = multiple, 2 * cosines * multiple - before
    return torch.where(segment % 2 == 0, 1.0, -1.0) * multiple - 2 * segment


def sphereface_probabilities(
    cosines: Tensor, scale: float | Tensor, margin: int = 4, segments: int | None = None
) -> Tensor:
    """p(c|x) (..., C) of cosines (..., C) with `f = (-1)^k cos(m angle) - 2k` (Liu et al. 2017, SphereFace).

    With one segment it is what figure 7 of article II of Kim 2023 draws; see `multiplied_angle` for the arguments.
    """
    return _target_probabilities(widen(cosines), multiplied_angle(cosines, margin, segments), scale)


def cosface_probabilities(cosines: Tensor, scale: float | Tensor, margin: float | Tensor) -> Tensor:
    """p(c|x) (..., C) of cosines (..., C) with `f = cos - m` (Wang et al. 2018, CosFace)."""
    if not isinstance(margin, Real | Tensor):
        raise DataError(f"The margin of CosFace must be a number or a tensor, not {margin!r}.")
    cosines = widen(cosines)
    return _target_probabilities(cosines, cosines - margin, scale)


def arcface_probabilities(cosines: Tensor, scale: float | Tensor, margin: float) -> Tensor:
    """p(c|x) (..., C) of cosines (..., C) with `f = cos(angle + m)` (Deng et al. 2019, ArcFace).

    Where angle + m passes 180 degrees f is `cos(angle) - m sin(m)`, so that it goes on falling, as in training. With a
    negative margin f is 1 up to an angle of -m. At an angle of exactly 0 or 180 degrees, where the angle has no
    derivative, its share of the gradient is zero.

    Args:
        cosines: (..., C).
        scale: what cosines are multiplied by.
        margin: m, in radians, from -pi to pi.
    """
    if not isinstance(margin, Real) or not -math.pi <= margin <= math.pi:
        raise DataError(f"The margin of ArcFace must be an angle in radians from -pi to pi, not {margin!r}.")
    cosines = widen(cosines)
    square = 1 - cosines.square()
    some = square > 0
    sines = torch.where(some, torch.where(some, square, 1.0).sqrt(), 0.0)  # without a gradient where they are zero
    added = math.cos(margin) * cosines - math.sin(margin) * sines
    if margin < 0:
        own = torch.where(cosines >= math.cos(margin), 1.0, added)
    else:
        own = torch.where(cosines >= -math.cos(margin), added, cosines - margin * math.sin(margin))
    return _target_probabilities(cosines, own, scale)


def _target_probabilities(cosines: Tensor, own: Tensor, scale: float | Tensor) -> Tensor:
    """p(c|x) (..., C) from cosines (..., C) and what each class's cosine becomes (..., C) when it is the target.

    Takes C^2 numbers a point: row c holds the logits that training would see if c were the label.
    """
    rows = cosines.unsqueeze(-2).expand(*cosines.shape, cosines.shape[-1])
    logits = scale * rows.diagonal_scatter(own, dim1=-2, dim2=-1)
    return logits.softmax(dim=-1).diagonal(dim1=-2, dim2=-1)
