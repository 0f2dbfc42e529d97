"""Stochastic depth: in a training step a residual block leaves its branch out for some of the samples.

What a block drops is a function of (seed, step, place of the sample in the batch), so a batch in parts, or in several
processes, is dropped as it would be as a whole. Blocks drop more the later they come.
Reference: Huang, Sun, Liu, Sedra, Weinberger 2016, Deep networks with stochastic depth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.errors import ModelError

_STREAM = 0x0D209
"""Keeps these draws apart from others of the same seed and step, such as those of crops."""


@dataclass
class PathDraws:
    """Where training stands; all blocks of a backbone look here.

    Attributes:
        seed: of the training.
        step: of the batch, from 1.
        offset: place of this process's first sample in the whole batch.
        items: samples of this process; rows after them are other views of the same samples, which drop the same.
        first: place of the next forward pass's first sample among these.
    """

    seed: int = 0
    step: int = 0
    offset: int = 0
    items: int = 0
    first: int = 0

    def begin(self, seed: int, step: int, offset: int, items: int) -> None:
        """Another batch."""
        self.seed, self.step, self.offset, self.items, self.first = seed, step, offset, items, 0

    def uniform(self, block: int, rows: int) -> np.ndarray:
        """A number in [0, 1) for each of the rows (rows,) that pass a block."""
        places = self.offset + (self.first + np.arange(rows)) % max(self.items, 1)
        draws = np.random.default_rng([self.seed, self.step, block, _STREAM]).random(int(places.max()) + 1)
        return draws[places]


@dataclass
class DropPath:
    """Drops samples of a branch, and scales the others up so that the mean stays.

    Args:
        rate: share of the samples that are dropped.
        block: number of the block.
        draws: where training stands.
    """

    rate: float
    block: int
    draws: PathDraws

    def __call__(self, branch: Tensor) -> Tensor:
        """A branch (B, C, H, W) with some of the samples zero."""
        kept = self.draws.uniform(self.block, len(branch)) >= self.rate
        scale = torch.from_numpy(kept / (1.0 - self.rate)).to(branch.device, branch.dtype)
        return branch * scale[:, None, None, None]


class ResidualBlock(nn.Module):
    """Base of blocks that add a branch to a shortcut."""

    residual: bool = True
    """Whether it does: some blocks change the shape and have no shortcut."""

    drop_path: DropPath | None = None

    def dropped(self, branch: Tensor) -> Tensor:
        """What is added of a branch (B, C, H, W): all of it in eval mode."""
        return branch if self.drop_path is None or not self.training else self.drop_path(branch)


def set_drop_path(backbone: nn.Module, rate: float, name: str) -> PathDraws:
    """Let the residual blocks of a backbone drop samples: none at the first, a share of `rate` at the last.

    Args:
        backbone: any network.
        rate: in (0, 1).
        name: what errors call it.
    """
    blocks = [block for block in backbone.modules() if isinstance(block, ResidualBlock) and block.residual]
    if not blocks:
        raise ModelError(
            f"The backbone '{name}' has no residual blocks that could be left out: set model.drop_path to 0, or choose "
            "an EfficientNet-Lite or a ResNet."
        )
    draws = PathDraws()
    for place, block in enumerate(blocks, start=1):
        share = rate * (place - 1) / (len(blocks) - 1) if len(blocks) > 1 else rate
        block.drop_path = DropPath(share, place, draws) if share else None
    return draws
