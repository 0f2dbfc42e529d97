"""Few-shot episodes: N classes, K support items and Q queries of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearkin.errors import DataError


@dataclass(frozen=True, eq=False)
class Episode:
    """Item positions of one episode; no item is in both parts.

    Args:
        support: (way, shot) int64.
        query: (way, query) int64.
        classes: (way,) the class of each row.
    """

    support: np.ndarray
    query: np.ndarray
    classes: np.ndarray


class EpisodeSampler:
    """Episodes at random access: `episode(i)` is a pure function of (seed, i).

    Classes with fewer than `shot + query` items are left out.

    Args:
        class_ids: class of each item, (n,) integers.
        way: classes in an episode.
        shot: support items of each class.
        query: query items of each class.
        seed: of all episodes.
    """

    def __init__(self, class_ids: np.ndarray, way: int, shot: int, query: int, seed: int = 0) -> None:
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
                f"the data has {int(enough.sum())}: lower way, shot or query, or add items."
            )
        members = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
        self.classes = names[enough]
        self._members = [items for items, kept in zip(members, enough, strict=True) if kept]

    def episode(self, index: int) -> Episode:
        """The episode number `index`, counted from 0."""
        rng = np.random.default_rng([self.seed, index])
        chosen = rng.choice(len(self._members), self.way, replace=False)
        drawn = np.stack([rng.choice(self._members[one], self.shot + self.query, replace=False) for one in chosen])
        return Episode(
            support=drawn[:, : self.shot].astype(np.int64),
            query=drawn[:, self.shot :].astype(np.int64),
            classes=self.classes[chosen],
        )
