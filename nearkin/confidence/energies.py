"""Energies: what a kernel puts into its exponential, `exp(-energy / T)`."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.errors import DataError
from nearkin.search import Scorer
from nearkin.spaces.pairwise import widen

_SQUARES = (1e-18, 1e18)
"""Between which float32 numbers have float32 squares."""


def energies(distances: Tensor, scorer: Scorer) -> Tensor:
    """Energies (q, k) of distances (q, k): `d^2` in a space, and `-S` where the distance is minus a similarity S.

    A scorer says that it is of the second kind by an attribute `similarity = True`, as cosine and inner product do:
    the cosine distance is half of a squared chord already, and a similarity may have any sign.
    """
    if getattr(scorer, "similarity", False):
        return widen(distances)
    wide = squarable(distances)
    if wide.numel() and float(wide.detach().min()) < 0:
        raise DataError(
            f"The {type(scorer).__name__} gives negative distances, which have no square to weigh by: give its class "
            "the attribute similarity = True if its distance is minus a similarity."
        )
    return wide.square()


def squarable(distances: Tensor) -> Tensor:
    """The same distances, any shape, in float64 where their squares would leave float32."""
    wide = widen(distances)
    if wide.dtype == torch.float64 or not wide.numel():
        return wide
    low, high = (float(end) for end in torch.aminmax(wide.detach()))
    largest = max(-low, high)
    return wide if largest == 0 or _SQUARES[0] < largest < _SQUARES[1] else wide.double()
