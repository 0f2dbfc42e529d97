"""NED with a slope everywhere: its answers are those of the deployed k neighbours, its gradient that of all support.

Where all of the k nearest are of one class, the probability is 1 and its gradient exactly 0: an attack would stand
still, and the classifier look robust. The kernels of the whole support always slope.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from nearkin.confidence.ned import NED
from nearkin.metrics.calibration import FLOOR


class NeighbourScores:
    """Log-probabilities of NED as it is deployed, with the gradient of NED over its whole support.

    Classes without a neighbour among the k are ordered by what the whole support says of them, below all that have one.

    Args:
        estimator: fitted.
    """

    def __init__(self, estimator: NED) -> None:
        self.estimator = estimator
        self.whole = copy.copy(estimator)
        self.whole.k = "all"

    def __call__(self, points: Tensor) -> Tensor:
        """Log-probabilities (B, C) of points (B, d)."""
        with torch.no_grad():
            deployed = self.estimator.log_proba(points.detach())
        slope = self.whole.log_proba(points)
        floor = deployed.amin(dim=1, keepdim=True)
        absent = (deployed <= floor) & (floor <= math.log(FLOOR))
        values = torch.where(absent, floor + slope.detach() - slope.detach().amax(dim=1, keepdim=True), deployed)
        return values + (slope - slope.detach())
