"""What stands for the classes during one instance of chance-constrained training: trained proxies, or samples."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.models.features import Features, to_device
from nearkin.training.schedules.pool import Pool


class Anchors(Protocol):
    """K vectors for each of C classes."""

    def place(self, positions: np.ndarray, embeddings: Tensor) -> None:
        """Take new anchors: the items at positions (C, K), whose raw embeddings are (C, K, d)."""
        ...

    def vectors(self) -> Tensor:
        """Raw vectors (C K, d), class by class, with their gradients."""
        ...

    def values(self) -> Tensor:
        """Raw vectors (C, K, d) without gradients, as evaluation sees them."""
        ...


class ProxyAnchors(nn.Module):
    """Free vectors that start where samples lie and are trained along with the network.

    Args:
        classes: C.
        count: K, of each class.
        dimension: d.
    """

    def __init__(self, classes: int, count: int, dimension: int) -> None:
        super().__init__()
        self.count = count
        self.proxies = nn.Parameter(torch.zeros(classes * count, dimension))

    @torch.no_grad()
    def place(self, positions: np.ndarray, embeddings: Tensor) -> None:
        """Move the proxies to embeddings (C, K, d); the optimiser's averages of their gradients stay."""
        self.proxies.copy_(embeddings.flatten(0, 1))

    def vectors(self) -> Tensor:
        """The proxies (C K, d)."""
        return self.proxies

    def values(self) -> Tensor:
        """The proxies (C, K, d) without gradients."""
        return self.proxies.detach().unflatten(0, (-1, self.count))


class SampleAnchors(nn.Module):
    """The samples themselves, embedded anew in every step: exact, and as costly as a batch of all of them.

    Args:
        pool: where the samples come from.
        count: K, of each class.
    """

    positions: Tensor

    def __init__(self, pool: Pool, count: int) -> None:
        super().__init__()
        self.register_buffer("positions", torch.zeros(pool.classes, count, dtype=torch.int64))
        self._pool = pool
        self._held: tuple[Tensor, Features] | None = None

    def place(self, positions: np.ndarray, embeddings: Tensor) -> None:
        """Take the items at positions (C, K); where they lie now does not matter."""
        self.positions.copy_(torch.from_numpy(positions))

    def vectors(self) -> Tensor:
        """The samples' embeddings (C K, d), with gradients to the network."""
        return self._pool.embedder(self._inputs(), start=self._pool.batches.start).float()

    def values(self) -> Tensor:
        """The samples' embeddings (C, K, d) in eval mode."""
        return self._pool.embed(self.positions.cpu().numpy())

    def _inputs(self) -> Features:
        """The samples as the network takes them, fetched once an instance."""
        if self._held is None or not torch.equal(self._held[0], self.positions):
            inputs = to_device(self._pool.inputs(self.positions.flatten().cpu().numpy()), self.positions.device)
            self._held = (self.positions.clone(), inputs)
        return self._held[1]
