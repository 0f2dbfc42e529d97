"""Draws of a miner as a function of a seed and the number of calls, so that a resumed run draws what it would have."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

Choice = tuple[Tensor, ...] | None
"""What a miner chose: (anchors, positives, negatives), (anchors, positives, anchors, negatives), or None for all."""


class Seeded(nn.Module):
    """Run a miner that draws from the global generators as a function of a seed and the number of calls so far.

    The count is saved with the weights, so that a resumed run draws what it would have drawn.

    Args:
        miner: the miner.
        seed: of its draws.
    """

    draws: Tensor

    def __init__(self, miner: nn.Module, seed: int) -> None:
        super().__init__()
        self.miner = miner
        self.seed = seed
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Choice:
        """What the miner chooses; the global random state is left as it was."""
        state = np.random.SeedSequence([self.seed, int(self.draws)]).generate_state(1, np.uint64)[0]
        self.draws += 1
        with torch.random.fork_rng(devices=[embeddings.device] if embeddings.is_cuda else []):
            torch.manual_seed(int(state >> np.uint64(1)))
            return self.miner(embeddings, labels, ref_emb, ref_labels)
