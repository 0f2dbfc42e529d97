"""Which items a batch has: class-balanced batches, and few-shot episodes of N classes, K support items and Q queries.

A plan is a pure function of (seed, epoch), an episode of (seed, index): a resumed run goes on with the right one, every
rank of a distributed run and every model that is compared sees the same ones, and nothing is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nearkin.checks import is_whole
from nearkin.errors import DataError


def random_keys(items: np.ndarray, seed: int, turn: int | np.ndarray, stream: int) -> np.ndarray:
    """Random 64-bit numbers, a hash of (seed, stream, turn, item); `items` and `turn` broadcast against each other.

    Args:
        items: what each number is for, integers from 0.
        seed: of all streams.
        turn: which visit, lap or episode, integers from 0.
        stream: keeps apart the uses of one seed.
    """
    state = _split_mix(_split_mix(np.full(1, seed % 2**64, dtype=np.uint64)) + np.uint64(stream))
    state = _split_mix(state ^ _split_mix(np.atleast_1d(np.asarray(turn)).astype(np.uint64)))
    return _split_mix(state + _split_mix(items.astype(np.uint64)))


def _split_mix(state: np.ndarray) -> np.ndarray:
    """One step of SplitMix64 (Steele, Lea and Flood 2014) on uint64."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _check_shared(classes: int, what: str, key: str, rank: int, world_size: int) -> None:
    """Refuse a rank that there is not, and classes that cannot be shared by all."""
    if not 0 <= rank < world_size:
        raise DataError(f"Rank {rank} is not one of {world_size} processes, which count from 0.")
    if classes % world_size:
        raise DataError(
            f"{classes} classes in {what} cannot be shared by {world_size} processes: set {key} to a multiple of "
            f"{world_size}."
        )


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
        _check_shared(self.classes_per_batch, "a batch", "data.classes_per_batch", self.rank, self.world_size)
        self._codes = codes
        self._counts = np.bincount(codes, minlength=self.classes)
        self._starts = np.concatenate([[0], np.cumsum(self._counts)[:-1]])
        self._planned: tuple[int, np.ndarray] | None = None

    @property
    def batches_per_epoch(self) -> int:
        """Batches that visit every class."""
        return -(-self.classes // self.classes_per_batch)

    def plan(self, epoch: int) -> np.ndarray:
        """Item positions of an epoch for this rank, (batches, classes_per_batch * per_class / world_size) int64."""
        order = np.argsort(random_keys(np.arange(self.classes), self.seed, epoch, 0), kind="stable")
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
        drawn = random_keys(np.arange(len(self._codes)), self.seed, lap[self._codes], stream)
        shuffled = np.lexsort((drawn, self._codes))
        offsets = within[classes, None] * self.per_class + np.arange(self.per_class)
        return shuffled[self._starts[classes, None] + offsets % self._counts[classes, None]].astype(np.int64)


_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


@dataclass(frozen=True, eq=False)
class Episode:
    """Item positions of one episode, or of several with a leading axis; no item is twice in an episode.

    Args:
        support: (..., way, shot) int64.
        query: (..., way, query) int64.
        classes: (..., way) the class of each row.
    """

    support: np.ndarray
    query: np.ndarray
    classes: np.ndarray


class EpisodeSampler:
    """Episodes at random access, uniform over the classes and over the items of a class.

    Classes with fewer than `shot + query` items are left out.

    Args:
        class_ids: class of each item, (n,) integers.
        way: classes in an episode.
        shot: support items of each class.
        query: query items of each class.
        seed: of all episodes.
    """

    def __init__(self, class_ids: np.ndarray, way: int, shot: int, query: int, seed: int = 0) -> None:
        way, shot, query, seed = whole_numbers(way=way, shot=shot, query=query, seed=seed)
        if way < 2 or shot < 1 or query < 1:
            raise DataError(
                f"An episode needs at least 2 classes, 1 support item and 1 query, got {way}, {shot} and {query}."
            )
        self.way = way
        self.shot = shot
        self.query = query
        self.seed = seed
        names, codes, counts = np.unique(np.asarray(class_ids), return_inverse=True, return_counts=True)
        enough = counts >= shot + query
        if enough.sum() < way:
            raise DataError(
                f"Episodes of {way} classes need that many with at least {shot + query} items (shot + query), "
                f"the data has {int(enough.sum())}: lower way, shot or query (for training by episodes these are "
                "training.episodic.way, training.episodic.shot and training.episodic.query), or add items."
            )
        self.classes = names[enough]
        self._items = np.argsort(codes, kind="stable")
        self._starts = (np.cumsum(counts) - counts)[enough]
        self._counts = counts[enough]

    def episode(self, index: int) -> Episode:
        """The episode number `index`, counted from 0."""
        one = self.episodes(index, 1)
        return Episode(one.support[0], one.query[0], one.classes[0])

    def episodes(self, first: int, count: int) -> Episode:
        """The episodes first..first + count - 1, all at once: row i is `episode(first + i)`."""
        first, count = whole_numbers(first=first, count=count)
        if first < 0 or count < 1:
            raise DataError(f"Episodes count from 0 and at least 1 is drawn, got first {first} and count {count}.")
        each = self.shot + self.query
        turns = np.arange(first, first + count)[:, None]
        chosen = _distinct(random_keys(np.arange(self.way), self.seed, turns, stream=0), np.array(len(self.classes)))
        draws = random_keys(np.arange(self.way * each), self.seed, turns, stream=1).reshape(count, self.way, each)
        drawn = self._items[self._starts[chosen][..., None] + _distinct(draws, self._counts[chosen])]
        return Episode(drawn[..., : self.shot], drawn[..., self.shot :], self.classes[chosen])


class EpisodeBatchSampler:
    """Episodes as training batches: class by class, the first `shot` items of each class are its support.

    Args:
        class_ids: class of each item, (n,) integers.
        way: distinct classes in the episode of all ranks together.
        shot: support items of each class.
        query: query items of each class.
        seed: of all episodes.
        rank: which slice of every episode is ours.
        world_size: into how many slices of whole classes an episode is cut.
    """

    def __init__(
        self, class_ids: np.ndarray, way: int, shot: int, query: int, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        rank, world_size = whole_numbers(rank=rank, world_size=world_size)
        self.sampler = EpisodeSampler(class_ids, way, shot, query, seed)
        _check_shared(way, "an episode", "training.episodic.way", rank, world_size)
        self.classes_per_batch = way
        self.per_class = shot + query
        self.rank = rank
        self.world_size = world_size

    def batch(self, step: int) -> np.ndarray:
        """Item positions of the episode at a global step, counted from 0: (way * (shot + query) / world_size,)."""
        episode = self.sampler.episode(step)
        ours = self.classes_per_batch // self.world_size
        mine = slice(self.rank * ours, (self.rank + 1) * ours)
        return np.concatenate([episode.support[mine], episode.query[mine]], axis=1).ravel()


def whole_numbers(**numbers: Any) -> list[int]:
    """The numbers as plain integers, in their order.

    Raises:
        DataError: that says which is no whole number, by its name.
    """
    for name, number in numbers.items():
        if not is_whole(number):
            raise DataError(f"`{name}` must be a whole number, not {number!r}.")
    return [int(number) for number in numbers.values()]


def _distinct(draws: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Distinct places below each size, uniform and in uniform order: random (..., k) and (...) to (..., k) int64.

    Floyd's method (Bentley and Floyd 1987), whose work does not depend on the sizes, with the high half of each random
    number. The set it makes is uniform, but late places tend to stand late in it: sorting by the low half shuffles it.
    """
    count = draws.shape[-1]
    # The places first in memory, (k, ...): every step of the loop then runs through whole rows.
    state = np.ascontiguousarray(np.moveaxis(draws, -1, 0))
    steps = np.arange(count, 0, -1, dtype=np.uint32).reshape(-1, *(1,) * (draws.ndim - 1))
    last = sizes.astype(np.uint32) - steps
    scaled: np.ndarray = (state >> _HALF) * (last + np.uint64(1))
    drawn = (scaled >> _HALF).astype(np.uint32)
    for place in range(1, count):
        taken = np.logical_or.reduce(drawn[:place] == drawn[place])
        np.copyto(drawn[place], last[place], where=taken)
    # One number of key and place sorts several times as fast as a table of keys orders another of places.
    shuffled = np.ascontiguousarray(np.moveaxis(state << _HALF | drawn, 0, -1))
    shuffled.sort(axis=-1)
    return (shuffled & _LOW).view(np.int64)
