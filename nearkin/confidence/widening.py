"""How much less sure an answer gets where the query lies farther from the support than points of the support do.

`r(x) = max(1, m(x) / m_0)`, `p(c) ~ S_c^(a / r(x)^g)`: m(x) is the mean energy of the nearest neighbours, m_0 its
median over points of the support that are left out in turn, g the widening. No label changes. See docs/methods/ned.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

NEAREST = 10
"""Neighbours whose mean energy says how far a query is."""


@dataclass(frozen=True)
class Widening:
    """What a fit has found out of a support.

    Attributes:
        power: g; 0 widens nothing.
        usual: m_0.
    """

    power: float = 0.0
    usual: float = 1.0

    @classmethod
    def of(cls, power: float, energies: np.ndarray) -> Widening:
        """By the energies (n, k), nearest first, of points left out in turn.

        Where energies are not above zero, as minus a similarity may be, they have no ratio, and nothing is widened.
        """
        usual = float(np.median(reach(torch.from_numpy(energies)).numpy()))
        if not power or not usual > 0 or float(energies[:, 0].min()) < 0:
            return cls()
        return cls(float(power), usual)

    def powers(self, energies: Tensor) -> Tensor:
        """By what the exponents of queries are multiplied (q,), from 0 to 1, by the energies (q, k) of neighbours."""
        return (reach(energies) / self.usual).clamp_min(1.0) ** -self.power


def reach(energies: Tensor) -> Tensor:
    """The mean energy (q,) of the nearest of the neighbours (q, k), nearest first; infinite ones are none."""
    near = energies[:, :NEAREST].double()
    there = near.isfinite()
    return torch.where(there, near, 0.0).sum(dim=1) / there.sum(dim=1).clamp_min(1)
