"""Is the distance learning, or only growing? What one update did to the points of an episode.

With X0 and X1 the points of an episode before and after an update, each centred over its samples:
`alpha = <X0, X1> / |X0|^2` is the scale that explains X1 best, `norm ratio = |X1 - alpha X0| / |X1 - X0|`, and
`psi = d_after / d_before` of a query and a class; psi_con and psi_div are the geometric means over queries with their
own and with the other classes. Reference: Kim 2023, article II, appendix C.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.data.episodes import whole_numbers
from nearkin.errors import DataError
from nearkin.search import as_scorer
from nearkin.spaces import Space, distance_ratio_scores
from nearkin.spaces.representatives import Representation

DYNAMICS = ("norm_ratio", "con_alpha", "div_alpha", "con_div")
"""The measures that runs are compared by (`dynamics_comparison`)."""


@torch.no_grad()
def episode_dynamics(
    space: Any, before: Any, after: Any, *, way: int, shot: int, representation: Representation = "mean"
) -> dict[str, float]:
    """What an update did to the points of one episode.

    Prototypes are computed anew on each side, so that a pure rescaling of Euclidean points gives norm ratio 0 and
    con-alpha = div-alpha = 1. With the nearest support point in place of the mean, a class keeps the point that was
    nearest before. Distances are taken as `sqrt(d^2 + 1e-10)`.

    A value that is not defined is nan: the norm ratio if nothing moved but by rounding or a translation; all that is
    divided by alpha if the points before lie in one place, or if alpha is not positive, for then X1 is no scaled X0;
    what compares with other classes if there is one class; everything if a point is not finite.

    Args:
        space: where the points lie, a space or its name.
        before: points (way * (shot + query), d), array or tensor, class by class, the first `shot` of each class its
            support.
        after: the same samples after the update, of the same shape.
        way: classes of the episode.
        shot: support points of each class.
        representation: what stands for a class: the mean of its support or the nearest point of it.

    Returns:
        `norm_ratio` in [0, 1] (0: all change was scale), `alpha`, `con_alpha` = psi_con / alpha (below 1: queries
        approach their class), `div_alpha` = psi_div / alpha (above 1: they leave the others), and
        `con_div` = psi_con / psi_div (below 1).

    Raises:
        DataError: if the points are no episode of this many classes with at least one query each.
    """
    space, before, after = _space(space), _points(before), _points(after)
    way, shot = whole_numbers(way=way, shot=shot)
    _check(before, after, way, shot, representation)
    eps = torch.finfo(before.dtype).eps if before.is_floating_point() else 0.0
    before, after = before.double(), after.double()
    if not (before.norm() + after.norm()).isfinite():
        return dict.fromkeys(("norm_ratio", "alpha", "con_alpha", "div_alpha", "con_div"), math.nan)
    ratio, alpha = _scale_change(before, after, eps)
    con, div = _approach(space, before, after, way, shot, representation)
    scale = alpha if alpha > 0 else math.nan
    return {
        "norm_ratio": ratio,
        "alpha": alpha,
        "con_alpha": float(con.exp()) / scale,
        "div_alpha": float(div.exp()) / scale,
        "con_div": float((con - div).exp()),
    }


def _space(given: Any) -> Space:
    space = as_scorer(given)
    if not isinstance(space, Space):
        raise DataError(
            f"Training dynamics need a space, with a mean and distances from 0 on, which {type(space).__name__} is "
            "not: give that of the model, or its name."
        )
    return space


def _points(given: Any) -> Tensor:
    """A tensor of what was given; points need not be finite here."""
    if isinstance(given, Tensor):
        return given
    try:
        return torch.from_numpy(np.array(given))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"The dynamics of an episode need points (n, d) as an array or tensor of numbers, not a "
            f"{type(given).__name__} that is none."
        ) from error


def _check(before: Tensor, after: Tensor, way: int, shot: int, representation: str) -> None:
    if representation not in ("mean", "nearest"):
        raise DataError(f"A class is represented by its 'mean' or its 'nearest' point, not by '{representation}'.")
    if before.ndim != 2 or before.shape != after.shape:
        raise DataError(
            "The dynamics of an episode need the same points (n, d) before and after, "
            f"not {tuple(before.shape)} and {tuple(after.shape)}."
        )
    if way < 1 or shot < 1 or len(before) % way or len(before) // way <= shot:
        raise DataError(
            f"{len(before)} points are no episode of {way} classes with {shot} support points and at least one query "
            "each: give way * (shot + query) points, class by class."
        )


def _scale_change(before: Tensor, after: Tensor, eps: float) -> tuple[float, float]:
    """Norm ratio and alpha of points (n, d); eps is the precision in which they were given."""
    rounding = eps * float(before.norm())
    before, after = before - before.mean(dim=0), after - after.mean(dim=0)
    change = after - before
    spread, moved = float(before.norm()), float(change.norm())
    if spread <= rounding:
        return math.nan, math.nan
    # alpha - 1 from the change itself: steps are small, and what did not move gives exactly 1.
    growth = float((before / spread * (change / spread)).sum())
    # What moved no further than rounding may has no direction to speak of.
    ratio = min(1.0, float((change - growth * before).norm()) / moved) if moved > rounding else math.nan
    return ratio, 1 + growth


def _approach(
    space: Space, before: Tensor, after: Tensor, way: int, shot: int, representation: Representation
) -> tuple[Tensor, Tensor]:
    """Logarithms of psi_con and psi_div, scalars: mean log ratios of distances to the own class, and to the others."""
    episodes = [points.unflatten(0, (way, -1)) for points in (before, after)]
    support = [points[:, :shot] for points in episodes]
    query = [points[:, shot:].flatten(0, 1) for points in episodes]
    if representation == "mean":
        distances = [space.distance(q, space.mean(s)) for q, s in zip(query, support, strict=True)]
    else:
        each = [
            space.distance(q, s.flatten(0, 1)).unflatten(-1, (way, shot)) for q, s in zip(query, support, strict=True)
        ]
        nearest = each[0].argmin(dim=-1, keepdim=True)
        distances = [d.gather(-1, nearest).squeeze(-1) for d in each]
    # Scores with rho = 1 are -ln d, kept finite at d = 0.
    growth = distance_ratio_scores(distances[0], 1.0) - distance_ratio_scores(distances[1], 1.0)
    own = torch.eye(way, dtype=torch.bool, device=growth.device).repeat_interleave(len(growth) // way, dim=0)
    return growth[own].mean(), growth[~own].mean()
