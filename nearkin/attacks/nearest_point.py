"""The nearest-neighbour classifier of inputs, in any norm, with a gradient: what no Voronoi adversary can fool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.attacks.classifier import class_codes
from nearkin.attacks.norms import Norm, as_norm


class NearestPoint(nn.Module):
    """1-NN on inputs: the score of a class is minus the distance to its nearest point, so the nearest one wins.

    Distances are measured by the spread of the points: probabilities of small numbers differ as those of large ones do.
    Computes in float64. On its own data, every point of an open Voronoi cell is of the class of the cell.

    Args:
        points: inputs (n, ...).
        labels: their classes (n,).
        norm: "l2", "linf", or a `Norm`.
    """

    points: Tensor
    codes: Tensor

    def __init__(self, points: Tensor, labels: Sequence[Any], norm: str | Norm = "l2") -> None:
        super().__init__()
        named = labels.tolist() if hasattr(labels, "tolist") else list(labels)
        self.classes = tuple(sorted(set(named)))
        self.norm = as_norm(norm)
        self.name = "1-NN of inputs"
        self.register_buffer("points", points.detach().double().flatten(1))
        self.spread = float((self.points.amax(dim=0) - self.points.amin(dim=0)).amax()) or 1.0
        self.register_buffer("codes", class_codes(self.classes, named))

    def forward(self, inputs: Tensor) -> Tensor:
        """Log-probabilities (B, C), the softmax of minus distances over the spread, of inputs (B, ...)."""
        x = inputs.double().flatten(1)
        with torch.no_grad():
            distances = self.norm.distances(x, self.points)
            nearest = [
                distances.masked_fill(self.codes != code, torch.inf).argmin(dim=1) for code in range(len(self.classes))
            ]
        gaps = x.unsqueeze(1) - self.points[torch.stack(nearest, dim=1)]
        return torch.log_softmax(-self.norm.length(gaps) / self.spread, dim=1)
