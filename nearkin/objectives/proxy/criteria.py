"""What is made small, given scores (B, C) and labels (B,): a cross-entropy, with a margin or without, or a pull."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearkin.objectives.proxy.nearness import COSINE_LIMIT

Criterion = Callable[[Tensor, Tensor], Tensor]
"""Scores (B, C) and labels (B,) to a scalar; a module where it has buffers."""


class MarginCrossEntropy(nn.Module):
    """Cross-entropy of scores `s cos` whose own cosine is made worse first.

    Args:
        own: cosines (B,) of the own classes to what stands in for them.
        scale: s.
    """

    def __init__(self, own: Callable[[Tensor], Tensor], scale: float) -> None:
        super().__init__()
        self.own = own
        self.scale = scale

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Mean over the batch."""
        index = labels.unsqueeze(1)
        worse = self.scale * self.own(scores.gather(1, index) / self.scale)
        return functional.cross_entropy(scores.scatter(1, index, worse), labels)


class CosineMargin:
    """`cos - m` (CosFace)."""

    def __init__(self, margin: float) -> None:
        self.margin = margin

    def __call__(self, cosines: Tensor) -> Tensor:
        """What stands in for the cosines, of any shape."""
        return cosines - self.margin


class AngleMargin:
    """`cos(angle + m)`, and `cos - m sin m` where angle + m passes 180 degrees (ArcFace); m in radians."""

    def __init__(self, margin: float) -> None:
        self.margin = margin

    def __call__(self, cosines: Tensor) -> Tensor:
        """What stands in for the cosines, of any shape."""
        cosines = cosines.clamp(-COSINE_LIMIT, COSINE_LIMIT)
        angles = cosines.acos()
        beyond = cosines - self.margin * math.sin(self.margin)
        return torch.where(angles + self.margin <= math.pi, (angles + self.margin).cos(), beyond)


class Pull(nn.Module):
    """Mean of `(1 - cos)^power` to the own class, of scores that are cosines; other classes do not count.

    Args:
        power: 1 (CORR) or 2 (H-spherical).
    """

    def __init__(self, power: int) -> None:
        super().__init__()
        self.power = power

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Mean over the batch."""
        return (1 - scores.gather(1, labels.unsqueeze(1))).pow(self.power).mean()
