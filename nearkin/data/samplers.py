"""Class-balanced batches: some classes, the same number of items of each.

A plan is a pure function of (seed, epoch), so that a resumed run and every rank of a distributed run compute the same
one without talking to each other or storing anything.
"""

from __future__ import annotations

import numpy as np

from nearkin.data._hashes import keys
from nearkin.errors import DataError


class BalancedBatchSampler:
    """Batches of `classes_per_batch` distinct classes with `per_class` items each.

    An epoch visits every class at least once. Each visit takes the next items of the class's shuffled order, so over
    the epochs every item is used before the class is shuffled again; a visit holds an item twice only when the class
    has fewer than `per_class` items, and then only after all of them.

    Args:
        class_ids: class of each item, (n,) integers.
        classes_per_batch: distinct classes in the batch of all ranks together.
        per_class: items of each class in a batch.
        seed: of the plan.
        rank: which slice of every batch is ours.
        world_size: into how many slices of whole classes a batch is cut.
    """

    def __init__(
        self,
        class_ids: np.ndarray,
        classes_per_batch: int,
        per_class: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        _, codes = np.unique(np.asarray(class_ids), return_inverse=True)
        self.classes = int(codes.max()) + 1 if codes.size else 0
        self.classes_per_batch = classes_per_batch
        self.per_class = per_class
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self._check()
        self._codes = codes
        self._counts = np.bincount(codes, minlength=self.classes)
        self._starts = np.concatenate([[0], np.cumsum(self._counts)[:-1]])
        self._planned: tuple[int, np.ndarray] | None = None

    def _check(self) -> None:
        if self.classes_per_batch < 1 or self.per_class < 1:
            raise DataError(
                "data.classes_per_batch and data.per_class must be positive, "
                f"got {self.classes_per_batch} and {self.per_class}."
            )
        if self.classes_per_batch > self.classes:
            raise DataError(
                f"A batch of {self.classes_per_batch} classes cannot be made from {self.classes} training classes: "
                f"set data.classes_per_batch to {self.classes} or less."
            )
        if not 0 <= self.rank < self.world_size:
            raise DataError(f"Rank {self.rank} is not one of {self.world_size} processes, which count from 0.")
        if self.classes_per_batch % self.world_size:
            raise DataError(
                f"{self.classes_per_batch} classes in a batch cannot be shared by {self.world_size} processes: "
                f"set data.classes_per_batch to a multiple of {self.world_size}."
            )

    @property
    def batches_per_epoch(self) -> int:
        """Batches that visit every class."""
        return -(-self.classes // self.classes_per_batch)

    def plan(self, epoch: int) -> np.ndarray:
        """Item positions of an epoch for this rank, (batches, classes_per_batch * per_class / world_size) int64."""
        order = np.argsort(keys(np.arange(self.classes), self.seed, epoch, 0), kind="stable")
        # The last batch is filled up with the classes of the first one, which it cannot hold itself.
        missing = self.batches_per_epoch * self.classes_per_batch - self.classes
        items = self._visit(order, epoch, stream=1)
        if missing:
            # From a stream of their own: the same visit would show the same items twice in an epoch.
            items = np.concatenate([items, self._visit(order[:missing], epoch, stream=2)])
        batches = items.reshape(self.batches_per_epoch, self.world_size, -1)
        return np.ascontiguousarray(batches[:, self.rank])

    def batch(self, step: int) -> np.ndarray:
        """Item positions of the batch at a global step, counted from 0: one row of its epoch's plan."""
        epoch, position = divmod(step, self.batches_per_epoch)
        if self._planned is None or self._planned[0] != epoch:
            self._planned = (epoch, self.plan(epoch))
        return self._planned[1][position]

    def _visit(self, classes: np.ndarray, epoch: int, stream: int) -> np.ndarray:
        """Items of visit number `epoch` to each of the classes, (len(classes), per_class).

        A lap is as many visits as use up the class, ceil(n / m), in one shuffled order; the last visit of a lap wraps
        to the lap's beginning, whose items it cannot hold unless the class is smaller than a visit.
        """
        visits = -(-self._counts // self.per_class)
        lap, within = np.divmod(epoch, visits)
        drawn = keys(np.arange(len(self._codes)), self.seed, lap[self._codes], stream)
        shuffled = np.lexsort((drawn, self._codes))
        offsets = within[classes, None] * self.per_class + np.arange(self.per_class)
        return shuffled[self._starts[classes, None] + offsets % self._counts[classes, None]].astype(np.int64)
