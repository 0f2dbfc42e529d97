"""Exponential moving average of weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Shadow weights: shadow <- decay * shadow + (1 - decay) * weight, after every optimiser step.

    Buffers such as batch norm statistics are averages already and are copied.

    Args:
        module: whose trainable parameters are averaged.
        decay: share of the shadow that is kept, in (0, 1).
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.module = module
        self.shadow = {name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the current weights."""
        weights = dict(self.module.named_parameters())
        for name, shadow in self.shadow.items():
            shadow.lerp_(weights[name], 1.0 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the block the module has the averaged weights."""
        weights = dict(self.module.named_parameters())
        kept = {name: weights[name].detach().clone() for name in self.shadow}
        self._copy(self.shadow)
        try:
            yield
        finally:
            self._copy(kept)

    @torch.no_grad()
    def _copy(self, source: dict[str, Tensor]) -> None:
        weights = dict(self.module.named_parameters())
        for name, value in source.items():
            weights[name].copy_(value)
