"""Where a step's batch comes from: the feature cache, or files decoded in workers.

Both are functions of (seed, step) alone: any step's batch can be made again, so a run resumes anywhere without stored
sampler state.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from nearkin.data.augment import BatchAugment, Transform
from nearkin.data.dataset import Dataset
from nearkin.models import FeatureCache
from nearkin.models.features import Features
from nearkin.models.prefetch import batches, stacked
from nearkin.models.tuning import as_channels_last
from nearkin.training.deferred import Deferred, Inputs

_PLAIN = 64
"""Items that are normalised together when they are not a training batch."""


class BatchSampler(Protocol):
    """Which training items a step takes, as a function of the step."""

    classes_per_batch: int
    per_class: int
    rank: int
    world_size: int

    def batch(self, step: int) -> np.ndarray:
        """Positions of this rank's items of a step, counted from 0, class by class."""
        ...


class Batches(Protocol):
    """An endless stream of batches that can start at any step."""

    start: str | None
    """Where in the embedder the inputs enter: None for images, else the cached stage."""

    def stream(self, first: int, last: int) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield (inputs, labels) of the steps first..last, counted from 1."""
        ...

    def plain(self, positions: np.ndarray) -> Features:
        """Inputs (n, ...) of the training items at positions (n,), as evaluation sees them."""
        ...


class CachedBatches:
    """Batches gathered from a feature cache; each item shows a random one of its cached views.

    Args:
        cache: features of the whole data set.
        rows: the cache rows of the training items, (n,).
        class_ids: their labels as 0..C-1, (n,).
        sampler: which items a step takes.
        seed: seed of the choice of views.
    """

    def __init__(
        self, cache: FeatureCache, rows: np.ndarray, class_ids: np.ndarray, sampler: BatchSampler, seed: int
    ) -> None:
        self.cache = cache
        self.rows = rows
        self.class_ids = torch.from_numpy(class_ids)
        self.sampler = sampler
        self.seed = seed
        self.start: str | None = cache.at

    def stream(self, first: int, last: int) -> Iterator[tuple[Features, Tensor]]:
        """Yield (inputs, labels) of the steps first..last, counted from 1."""
        begin, whole = _slice(self.sampler)
        for step in range(first, last + 1):
            chosen = self.sampler.batch(step - 1)
            views = np.random.default_rng([self.seed, step]).integers(self.cache.views, size=whole)
            views = views[begin : begin + len(chosen)]
            yield self.cache.gather(self.rows[chosen], views), self.class_ids[chosen]

    def plain(self, positions: np.ndarray) -> Features:
        """Inputs (n, ...) of the training items at positions (n,), as evaluation sees them."""
        return self.cache.gather(self.rows[positions])


class DecodedBatches:
    """Batches decoded and cropped by workers, then augmented as a whole.

    Args:
        dataset: the training items.
        class_ids: their labels as 0..C-1, (n,).
        transform: a decoded sample and a generator to a tensor of fixed size.
        augment: augmentation and normalisation of the batch, seeded by the step.
        view: a decoded sample to the tensor that evaluation sees.
        sampler: which items a step takes.
        seed: seed of the crops.
        workers: decoding processes; 0 decodes between the steps.
    """

    start: str | None = None

    def __init__(
        self,
        dataset: Dataset,
        class_ids: np.ndarray,
        transform: Transform,
        augment: BatchAugment,
        view: Transform,
        sampler: BatchSampler,
        seed: int,
        workers: int,
    ) -> None:
        self.items = _SeededItems(dataset, transform, seed)
        self.class_ids = torch.from_numpy(class_ids)
        self.augment = augment
        self.view = view
        self.sampler = sampler
        self.workers = workers

    def stream(self, first: int, last: int) -> Iterator[tuple[Deferred, Tensor]]:
        """Yield (inputs, labels) of the steps first..last, counted from 1; inputs are augmented when they are taken."""
        loader = DataLoader(
            self.items,
            batch_sampler=_StepSampler(self.sampler, first, last),
            num_workers=self.workers,
            collate_fn=_collate,
            worker_init_fn=_ignore_interrupts,
            # A seed for the workers, which have no use for it, would else be drawn from the global random state.
            generator=torch.Generator(),
        )
        for step, (samples, chosen) in enumerate(loader, start=first):
            yield Deferred(samples, partial(self._augmented, step)), self.class_ids[chosen]

    def _augmented(self, step: int, samples: Tensor, place: int) -> Tensor:
        """Inputs of some samples of this process's slice of a step, the first of them at `place` in it."""
        begin, whole = _slice(self.sampler)
        return as_channels_last(self.augment(samples, step, begin + place, whole))

    def plain(self, positions: np.ndarray) -> Tensor:
        """Inputs (n, ...) of the training items at positions (n,), as evaluation sees them."""
        dataset, view = self.items.dataset, self.view

        def load(place: int) -> Tensor:
            return view(dataset.load(int(positions[place]), view.hint))

        return torch.cat(
            [as_channels_last(self.augment.normalise(batch)) for batch in batches(load, len(positions), _PLAIN, 1)]
        )


class _SeededItems(torch.utils.data.Dataset):
    """Items by (step, position, index): the crop depends on these and on the seed only."""

    def __init__(self, dataset: Dataset, transform: Transform, seed: int) -> None:
        self.dataset = dataset
        self.transform = transform
        self.seed = seed

    def __getitem__(self, key: tuple[int, int, int]) -> tuple[Tensor, int]:
        step, position, index = key
        rng = np.random.default_rng([self.seed, step, position])
        return self.transform(self.dataset.load(index, self.transform.hint), rng), index


class _StepSampler:
    """The keys of each step's batch, from `first` to `last`."""

    def __init__(self, sampler: BatchSampler, first: int, last: int) -> None:
        self.sampler = sampler
        self.first = first
        self.last = last

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        begin, _ = _slice(self.sampler)
        for step in range(self.first, self.last + 1):
            chosen = self.sampler.batch(step - 1)
            yield [(step, place, int(index)) for place, index in enumerate(chosen, start=begin)]


def _slice(sampler: BatchSampler) -> tuple[int, int]:
    """Where the sampler's slice begins in the batch of all processes, and the size of that batch.

    Views, crops and augmentation are drawn by the place in the whole batch: items look the same however it is cut.
    """
    whole = sampler.classes_per_batch * sampler.per_class
    return sampler.rank * (whole // sampler.world_size), whole


def _ignore_interrupts(_: int) -> None:
    """Ctrl-C reaches every process of the terminal, torchrun's signals every one of a rank: only the loop answers."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _collate(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    samples, indices = zip(*items, strict=True)
    return stacked(list(samples)), torch.tensor(indices)
