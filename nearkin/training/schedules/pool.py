"""The pool: some training items of every class, and where the network puts them now."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nearkin.models import Embedder
from nearkin.models.features import Features, to_device
from nearkin.training.batches import Batches

_CHUNK = 128


class Pool:
    """Training items by class.

    Args:
        batches: gives the items as evaluation sees them.
        embedder: the network; `embed` uses its weights of the moment.
        class_ids: class of each training item as 0 ... C - 1, (n,).
        seed: of the draws.
    """

    def __init__(self, batches: Batches, embedder: Embedder, class_ids: np.ndarray, seed: int) -> None:
        self.batches = batches
        self.embedder = embedder
        self.class_ids = class_ids
        self.counts = np.bincount(class_ids)
        self.seed = seed

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.counts)

    def draw(self, turn: int, size: int, least: int = 1) -> np.ndarray:
        """Positions (C, size) of random items of every class, none twice unless the class is smaller than `size`.

        More than the largest class has would only be repeats: `size` is at most that, or `least` if that is more.

        Args:
            turn: another turn gives another draw.
            size: items of each class.
            least: items of each class at the least.
        """
        size = max(least, min(size, int(self.counts.max())))
        keys = np.random.default_rng([self.seed, turn]).random(len(self.class_ids))
        shuffled = np.lexsort((keys, self.class_ids))
        starts = np.cumsum(self.counts) - self.counts
        return shuffled[starts[:, None] + np.arange(size) % self.counts[:, None]]

    def inputs(self, positions: np.ndarray) -> Features:
        """The items at positions (n,), as the embedder takes them."""
        return self.batches.plain(positions)

    @torch.no_grad()
    def local_features(self, count: int) -> Tensor:
        """The maps (n, C, H, W) of `count` items, or of all if those are fewer, in eval mode.

        As many of each class as of any other, as far as it has them; where there are more classes than items, any.
        """
        classes = np.random.default_rng([self.seed, 0]).permutation(self.classes)
        per_class = min(-(-count // self.classes), int(self.counts.max()))
        turns = self.draw(0, per_class)[classes].T.ravel()  # one of each class, then another of each
        # A class that is smaller than the others comes with repeats.
        turns = turns[np.sort(np.unique(turns, return_index=True)[1])]
        return self.apply(self.embedder.local_features, turns[:count])

    @torch.no_grad()
    def embed(self, positions: np.ndarray) -> Tensor:
        """Raw embeddings (..., d) of the items at positions (...), in eval mode; repeats are computed once."""
        distinct, inverse = np.unique(positions, return_inverse=True)
        if len(distinct) < positions.size:
            return self.embed(distinct)[torch.from_numpy(inverse).view(positions.shape)]
        if not positions.size:
            device = self.embedder.normalise.mean.device
            return torch.empty(*positions.shape, self.embedder.dimension, device=device)
        return self.apply(self.embedder, positions.ravel()).unflatten(0, positions.shape)

    @torch.no_grad()
    def apply(self, function: Callable[..., Tensor], positions: np.ndarray) -> Tensor:
        """What a function of the embedder's inputs gives for the items at positions (n,), by chunks, in eval mode."""
        device, training = self.embedder.normalise.mean.device, self.embedder.training
        self.embedder.eval()
        try:
            chunks = [
                function(
                    to_device(self.inputs(positions[first : first + _CHUNK]), device), start=self.batches.start
                ).float()
                for first in range(0, len(positions), _CHUNK)
            ]
        finally:
            self.embedder.train(training)
        return torch.cat(chunks)
