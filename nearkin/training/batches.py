"""Where a step's batch comes from: the feature cache, or files decoded in workers; and the pool of all training items.

Both are functions of (seed, step) alone: any step's batch can be made again, so a run resumes anywhere without stored
sampler state. Decoded images are bytes, their augmented and normalised form is four times as large: a batch that goes
through the network in parts becomes inputs part by part.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from nearkin.data.augment import BatchAugment, Transform
from nearkin.data.dataset import Dataset
from nearkin.data.samplers import BalancedBatchSampler, EpisodeBatchSampler
from nearkin.errors import DataError
from nearkin.models import Embedder, FeatureCache
from nearkin.models.embedder import Features, to_device
from nearkin.models.items import batches, stacked
from nearkin.models.speed import as_channels_last
from nearkin.recipe import Recipe
from nearkin.training.ranks import Ranks


@dataclass(frozen=True, eq=False)
class Deferred:
    """Samples as they were decoded, and how they become inputs.

    Attributes:
        samples: (b, C, H, W), uint8 for images.
        prepare: from some of the samples, and the place of the first of them, to their inputs; the same each time.
    """

    samples: Tensor
    prepare: Callable[[Tensor, int], Tensor]

    def __len__(self) -> int:
        return len(self.samples)


Inputs = Features | Deferred
"""What a step is given of a batch: what the network takes, or what it can be made of."""


def part(inputs: Inputs, first: int, last: int) -> Features:
    """The inputs of the items first ... last - 1, as the network takes them."""
    if isinstance(inputs, Deferred):
        return inputs.prepare(inputs.samples[first:last], first)
    if isinstance(inputs, Tensor):
        return inputs[first:last]
    return {name: value[first:last] for name, value in inputs.items()}


def whole(inputs: Inputs) -> Features:
    """All inputs, as the network takes them."""
    return inputs.prepare(inputs.samples, 0) if isinstance(inputs, Deferred) else inputs


_PLAIN = 64
"""Items that are normalised together when they are not a training batch."""

_CHUNK = 128
"""Items that go through the network together when no gradient is needed."""


BatchSampler = BalancedBatchSampler | EpisodeBatchSampler
"""Which training items a step takes, as a function of the step."""


@dataclass(eq=False)
class CachedBatches:
    """Batches gathered from a feature cache; each item shows a random one of its cached views.

    Args:
        cache: features of the whole data set.
        rows: the cache rows of the training items, (n,).
        class_ids: their labels as 0..C-1, (n,).
        sampler: which items a step takes.
        seed: seed of the choice of views.
    """

    cache: FeatureCache
    rows: np.ndarray
    class_ids: np.ndarray
    sampler: BatchSampler
    seed: int

    def __post_init__(self) -> None:
        self.start: str | None = self.cache.at

    def stream(self, first: int, last: int) -> Iterator[tuple[Features, Tensor]]:
        """Yield (inputs, labels) of the steps first..last, counted from 1."""
        begin, whole = _slice(self.sampler)
        for step in range(first, last + 1):
            chosen = self.sampler.batch(step - 1)
            views = np.random.default_rng([self.seed, step]).integers(self.cache.views, size=whole)
            views = views[begin : begin + len(chosen)]
            yield self.cache.gather(self.rows[chosen], views), torch.from_numpy(self.class_ids[chosen])

    def plain(self, positions: np.ndarray) -> Features:
        """Inputs (n, ...) of the training items at positions (n,), as evaluation sees them."""
        return self.cache.gather(self.rows[positions])


@dataclass(eq=False)
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

    dataset: Dataset
    class_ids: np.ndarray
    transform: Transform
    augment: BatchAugment
    view: Transform
    sampler: BatchSampler
    seed: int
    workers: int
    start: str | None = field(default=None, init=False)

    def stream(self, first: int, last: int) -> Iterator[tuple[Deferred, Tensor]]:
        """Yield (inputs, labels) of the steps first..last, counted from 1; inputs are augmented when they are taken."""
        loader = DataLoader(
            _SeededItems(self.dataset, self.transform, self.seed),
            batch_sampler=self._keys(first, last),
            num_workers=self.workers,
            collate_fn=_collate,
            worker_init_fn=_ignore_interrupts,
            # A seed for the workers, which have no use for it, would else be drawn from the global random state.
            generator=torch.Generator(),
        )
        for step, (samples, chosen) in enumerate(loader, start=first):
            yield Deferred(samples, partial(self._augmented, step)), torch.from_numpy(self.class_ids[chosen])

    def _keys(self, first: int, last: int) -> Iterator[list[tuple[int, int, int]]]:
        """Of each step's batch: the step, the place in the whole batch, and the item."""
        begin, _ = _slice(self.sampler)
        for step in range(first, last + 1):
            yield [(step, place, int(index)) for place, index in enumerate(self.sampler.batch(step - 1), start=begin)]

    def _augmented(self, step: int, samples: Tensor, place: int) -> Tensor:
        """Inputs of some samples of this process's slice of a step, the first of them at `place` in it."""
        begin, whole = _slice(self.sampler)
        return as_channels_last(self.augment(samples, step, begin + place, whole))

    def plain(self, positions: np.ndarray) -> Tensor:
        """Inputs (n, ...) of the training items at positions (n,), as evaluation sees them."""

        def load(place: int) -> Tensor:
            return self.view(self.dataset.load(int(positions[place]), self.view.hint))

        return torch.cat(
            [as_channels_last(self.augment.normalise(batch)) for batch in batches(load, len(positions), _PLAIN, 1)]
        )


Batches = CachedBatches | DecodedBatches
"""An endless stream of batches that can start at any step.

Its `start` is where in the embedder the inputs enter: None for images, else the cached stage.
"""


@dataclass(eq=False)
class _SeededItems(torch.utils.data.Dataset):
    """Items by (step, position, index): the crop depends on these and on the seed only."""

    dataset: Dataset
    transform: Transform
    seed: int

    def __getitem__(self, key: tuple[int, int, int]) -> tuple[Tensor, int]:
        step, position, index = key
        rng = np.random.default_rng([self.seed, step, position])
        return self.transform(self.dataset.load(index, self.transform.hint), rng), index


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


@dataclass(eq=False)
class TrainingPool:
    """Training items by class, and where the network puts them now.

    Args:
        batches: gives the items as evaluation sees them.
        embedder: the network; `embed` uses its current weights.
        class_ids: class of each training item as 0 ... C - 1, (n,).
        seed: of the draws.
    """

    batches: Batches
    embedder: Embedder
    class_ids: np.ndarray
    seed: int

    def __post_init__(self) -> None:
        self.counts = np.bincount(self.class_ids)

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


def classes_in_batch(asked: int, classes: int, processes: int) -> int:
    """Classes in a batch: as many as asked for, or all if there are fewer."""
    capped = min(asked, classes)
    fitting = capped - capped % processes
    if capped == asked or fitting == capped:
        return capped
    # Not rounded silently: a run must be the same whatever the number of processes.
    change = f"set data.classes_per_batch to {fitting}" if fitting else f"start {classes} or fewer"
    raise DataError(
        f"There are only {classes} training classes, which {processes} processes cannot share equally: {change}."
    )


def make_sampler(recipe: Recipe, class_ids: np.ndarray, batch_classes: int, ranks: Ranks | None = None) -> BatchSampler:
    """Which items a step takes: an episode, or as many of each class as of any other; refuse what the data lacks."""
    ranks = Ranks() if ranks is None else ranks
    seed, place = recipe.training.seed, (ranks.rank, ranks.world_size)
    if recipe.training.schedule == "episodic":
        episodic = recipe.training.episodic
        return EpisodeBatchSampler(class_ids, episodic.way, episodic.shot, episodic.query, seed, *place)
    return BalancedBatchSampler(class_ids, batch_classes, recipe.data.per_class, seed, *place)
