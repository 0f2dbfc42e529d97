"""Few-shot episodes: N classes, K support items and Q queries of each.

An episode is a pure function of (seed, index): validation and every model that is compared on them see the same ones,
a resumed run goes on with the right one, and many are drawn at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nearkin.data._hashes import keys
from nearkin.errors import DataError

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


class _TooFewClasses(DataError):
    """There are not enough classes of enough items.

    Args:
        reason: what is missing, without its full stop.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}: lower way, shot or query, or add items.")
        self.reason = reason


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
            raise _TooFewClasses(
                f"Episodes of {way} classes need that many with at least {shot + query} items (shot + query), "
                f"the data has {int(enough.sum())}"
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
        chosen = _distinct(keys(np.arange(self.way), self.seed, turns, stream=0), np.array(len(self.classes)))
        draws = keys(np.arange(self.way * each), self.seed, turns, stream=1).reshape(count, self.way, each)
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
        self,
        class_ids: np.ndarray,
        way: int,
        shot: int,
        query: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        rank, world_size = whole_numbers(rank=rank, world_size=world_size)
        try:
            self.sampler = EpisodeSampler(class_ids, way, shot, query, seed)
        except _TooFewClasses as error:
            raise DataError(
                f"{error.reason} among its training classes: lower training.episodic.way, training.episodic.shot or "
                "training.episodic.query, or add items."
            ) from error
        if not 0 <= rank < world_size:
            raise DataError(f"Rank {rank} is not one of {world_size} processes, which count from 0.")
        if way % world_size:
            raise DataError(
                f"{way} classes in an episode cannot be shared by {world_size} processes: "
                f"set training.episodic.way to a multiple of {world_size}."
            )
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
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
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
