"""Class scores from distances: softmax over them gives class probabilities."""

from __future__ import annotations

from torch import Tensor

from nearkin.spaces.pairwise import widen

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
