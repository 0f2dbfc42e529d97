"""Where in a space a value is largest: at which points a class is most probable, say.

And how far apart so many directions can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nearkin.checks import check_whole
from nearkin.errors import DataError
from nearkin.spaces.space import Space


def widest_angle(points: int, dimension: int) -> float:
    """The largest angle, in radians, that the closest two of so many directions can have between them.

    Up to d + 1 directions can be the corners of a simplex, whose cosines are -1/(C - 1). More have two at 90 degrees or
    nearer (Rankin 1955): exact up to 2 d of them, beyond that only a bound. In the plane it is 360/C degrees.

    Args:
        points: C, at least two.
        dimension: d, at least two.
    """
    check_whole(points, "points", 2)
    check_whole(dimension, "dimension", 2)
    if dimension == 2:
        return 2 * math.pi / points
    return math.acos(-1 / (points - 1)) if points <= dimension + 1 else math.pi / 2


_FINEST = 1e-6
"""The search ends when its step is this share of the first one."""

_LEAST_GAIN = 1e-13
"""Less is rounding, and a search that followed it would not end."""

_MOST_ROUNDS = 10_000
_ALIKE = 1e-6
"""Values that differ by less are equally large."""


@torch.no_grad()
def where_largest(
    value: Callable[[Tensor], Tensor],
    starts: Tensor,
    *,
    space: Space,
    step: float,
    bounds: tuple[float, float],
) -> tuple[Tensor, float]:
    """The points (m, d) of a space at which a value is largest, and that value.

    From each start, steps along the axes are taken: longer ones after a gain, shorter ones after none. Nothing is
    differentiated, so peaks may be sharp; but it is only as global as the starts are dense. Give logarithms of
    probabilities: they differ where probabilities are all alike near 0. Where two starts end at one point, it is told
    once. On a sharp ridge that runs along no axis every step along an axis may lose, and the search ends before the
    peak: give starts near it.

    Args:
        value: takes points (n, d) of the space, in double precision, and gives values (n,).
        starts: raw vectors (s, d), as `space.project` takes them; a grid.
        space: where to search.
        step: the first step, such as the spacing of the grid.
        bounds: the lowest and highest coordinate of a raw vector; a value that is largest at infinity ends there. Of a
            sphere, where only directions count, any box around the origin holds all.
    """
    if starts.dim() != 2 or not len(starts) or not starts.isfinite().all():
        raise DataError(f"A search needs finite starts of shape (s, d), s at least 1, but got {tuple(starts.shape)}.")
    if not 0 < step < math.inf:
        raise DataError(f"The first step of a search must be a positive number, not {step!r}.")
    low, high = bounds
    if not -math.inf < low < high < math.inf:
        raise DataError(f"The bounds of a search must be two ascending numbers, not {bounds!r}.")
    raw = starts.double().clamp(low, high)
    best = _checked(value, space.project(raw))
    steps = torch.full_like(best, step)
    ways = torch.cat([torch.eye(raw.shape[1]), -torch.eye(raw.shape[1])]).to(raw)
    for _ in range(_MOST_ROUNDS):
        going = steps > _FINEST * step
        if not going.any():
            break
        tried = (raw[going, None] + steps[going, None, None] * ways).clamp(low, high)
        found, way = _checked(value, space.project(tried.flatten(0, 1))).view(tried.shape[:2]).max(dim=1)
        gains = found > best[going] + _LEAST_GAIN
        places = going.nonzero()[:, 0]
        raw[places[gains]] = tried[gains, way[gains]]
        best[places[gains]] = found[gains]
        # Longer again after a gain: a step that was halved too early would crawl.
        steps[places] = (steps[places] * torch.where(gains, 2.0, 0.5).to(steps)).clamp(max=step)
    points, order = space.project(raw), best.argsort(descending=True, stable=True)
    left = points[order[best[order] >= best.max() - _ALIKE]]
    kept = []
    while len(left):
        kept.append(left[:1])
        left = left[space.distance(left, left[:1])[:, 0] > step]
    return torch.cat(kept), float(best.max())


def _checked(value: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    """The values (n,) of points (n, d)."""
    found = value(points)
    if found.shape != points.shape[:1] or found.isnan().any():
        raise DataError(
            f"The value of {len(points)} points must be as many numbers, but got shape {tuple(found.shape)} or NaN."
        )
    return found.double()
