"""Review of a gallery: what is in it, near duplicates, and labels that an item's neighbourhood speaks against.

A learned similarity says how likely two items are of one class. It is no distance: it may be negative, and a copy of
an item need not be nearest to it. Duplicates are therefore found in the base space, where equal points are at
distance zero.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from nearkin.checks import check_whole, is_real
from nearkin.errors import DataError
from nearkin.gallery.calibration import Calibration
from nearkin.gallery.calibration.identification import class_sizes, leave_out, present
from nearkin.gallery.checks import MOST
from nearkin.gallery.index import VectorIndex
from nearkin.gallery.model import StoredSimilarity
from nearkin.gallery.store import ABSENT, Found, GalleryStore, Sample
from nearkin.gallery.values import Duplicates, Item, Stats, Suspect
from nearkin.progress import Progress


def base_neighbours(store: GalleryStore) -> GalleryStore | BaseNeighbours:
    """What finds neighbours by distances: the store where it compares by these; else a copy of its items."""
    space = store.space
    return BaseNeighbours(store, space) if isinstance(space, StoredSimilarity) else store


class BaseNeighbours:
    """A copy of all vectors of a store as they are at this moment, searched exactly in the base space."""

    def __init__(self, store: GalleryStore, space: StoredSimilarity) -> None:
        everything = store.sample(MOST, 0)
        order = np.argsort(everything.keys, kind="stable")
        self._keys = everything.keys[order]
        self._codes = everything.codes[order]
        self._index = VectorIndex(space.base, everything.vectors.shape[1])
        self._index.append(everything.vectors[order], self._codes)

    def search(self, queries: np.ndarray, k: int, *, exclude: np.ndarray | None = None) -> Found:
        """The k nearest items of queries float32 (q, d), as `GalleryStore.search` gives them."""
        hidden = None
        if exclude is not None:
            place = np.minimum(np.searchsorted(self._keys, exclude), max(0, len(self._keys) - 1))
            hidden = np.where(self._keys[place] == exclude, place, -1) if len(self._keys) else None
        distances, slots = self._index.search(queries, min(k, max(1, len(self._keys))), exclude=hidden)
        there = slots >= 0
        keys = np.where(there, self._keys[np.where(there, slots, 0)], -1)
        codes = np.where(there, self._codes[np.where(there, slots, 0)], ABSENT).astype(np.int32)
        return Found(distances, keys, codes)


_NEAREST = 8
"""How many of an item's nearest others are looked at; larger groups hang together through these."""

_SHARE = 0.3
"""Of the median distance between nearest neighbours: what is nearer counts as a copy.

Chosen so that photographs that were saved again as JPEG are found; a test saves some.
"""

_ROUNDING = 1e-3
"""Of the length of a vector: what a distance between equal vectors may be in float32."""

_FARTHEST = sys.float_info.max
_CHUNK = 512
_SAMPLE = 2000
_SEED = 0


def find_duplicates(
    store: GalleryStore, *, distance: float | None = None, limit: int = 1000, progress: bool = False
) -> list[Duplicates]:
    """Groups of items that are no farther apart than a distance, the closest groups first.

    Items belong together if a chain of such pairs joins them, so a large distance may join what is not alike. Equal
    vectors are always found, at any distance. Every item is searched for in the gallery. Where that compares by a
    learned similarity, distances here are those of the base space: see `base_neighbours`.

    Args:
        store: the gallery.
        distance: in its (base) space; None: 0.3 of the median distance from an item to its nearest other one.
        limit: how many groups to give at the most.
        progress: whether to show a bar.
    """
    check_whole(limit, "limit", 1)
    if distance is not None and not (is_real(distance) and 0 <= distance <= _FARTHEST):
        raise DataError(f"`distance` must be a number from 0 on, or None to choose one, not {str(distance)[:40]}.")
    if len(store) < 2:
        return []
    near = base_neighbours(store)
    usual, rounding = _scales(store, near)
    reach = max(_SHARE * usual if distance is None else float(distance), rounding)
    return _groups(list(_pairs(store, near, reach, rounding, progress)), limit)


_Pair = tuple[Item, int, Item, float]
"""Two items that are near each other, the first at a place in the order of the gallery, and their distance."""


def _scales(store: GalleryStore, near: GalleryStore | BaseNeighbours) -> tuple[float, float]:
    """The median distance of some items to their nearest other one, and what may be mere rounding."""
    sample = store.sample(_SAMPLE, _SEED)
    nearest = []
    for start in range(0, len(sample.keys), _CHUNK):
        rows = slice(start, start + _CHUNK)
        nearest.append(near.search(sample.vectors[rows], 1, exclude=sample.keys[rows]).distances[:, 0])
    found = np.concatenate(nearest)
    found = found[np.isfinite(found)]
    lengths = np.linalg.norm(sample.vectors.astype(np.float64), axis=1)
    return float(np.median(found)) if len(found) else 0.0, _ROUNDING * float(np.median(lengths))


def _pairs(
    store: GalleryStore, near: GalleryStore | BaseNeighbours, reach: float, rounding: float, progress: bool
) -> Iterator[_Pair]:
    """Pairs no farther apart than `reach`, most of them from both sides."""
    place = 0
    with Progress("Looking for duplicates", len(store), progress) as bar:
        for items, vectors in store.batches(_CHUNK):
            found = near.search(vectors, _NEAREST + 1)
            close = found.distances <= reach
            # An item finds itself too, unless an index that is not exact has missed it.
            close &= ((close.sum(axis=1) > 1) | (found.distances[:, 0] > rounding))[:, None]
            rows, columns = np.nonzero(close)
            others, distances = store.items(found.keys[rows, columns]), found.distances[rows, columns].tolist()
            for row, distance, other in zip(rows.tolist(), distances, others, strict=True):
                if other is not None and other.id != items[row].id:
                    yield items[row], place + row, other, distance
            place += len(items)
            bar.advance(len(items))


def _groups(pairs: list[_Pair], limit: int) -> list[Duplicates]:
    """Items that chains of pairs join, with the largest distance that was needed to join them all."""
    if not pairs:
        return []
    places = {first.id: place for first, place, _, _ in pairs}
    items = {first.id: first for first, *_ in pairs} | {second.id: second for _, _, second, _ in pairs}
    # Every item asks, so almost all have a place; one that only answered comes last.
    ids = sorted(items, key=lambda name: (places.get(name, len(places) + max(places.values())), name))
    number = {name: row for row, name in enumerate(ids)}
    ends = np.array([(number[first.id], number[second.id]) for first, _, second, _ in pairs])
    ends.sort(axis=1)
    distances = np.array([distance for *_, distance in pairs])
    order = np.argsort(distances, kind="stable")
    distances = distances[order]
    # The same pair from both sides: the first, nearer one counts. A rank is never zero, which a tree would overlook.
    _, kept = np.unique(ends[order] @ np.array([len(ids), 1]), return_index=True)
    a, b = ends[order][kept].T
    tree = minimum_spanning_tree(coo_matrix((kept + 1.0, (a, b)), shape=(len(ids), len(ids))).tocsr()).tocoo()
    count, member = connected_components(tree, directed=False)
    widest = np.zeros(count)
    np.maximum.at(widest, member[tree.row], distances[tree.data.astype(np.int64) - 1])
    rows = np.argsort(member, kind="stable")
    groups = np.split(rows, np.cumsum(np.bincount(member))[:-1])
    closest = sorted(range(count), key=lambda group: (widest[group], groups[group][0]))[:limit]
    return [Duplicates(tuple(items[ids[row]] for row in groups[group]), float(widest[group])) for group in closest]


MOST_ITEMS = 200_000
"""A gallery with more labelled items is searched for suspects in a sample of so many."""

_SUSPECT_CHUNK = 4096
"""Items that are worked on together."""

_LEAST = 1e-12
"""The least probability that odds are made with."""

_WRONG = 0.05
"""The share of labels that is supposed to be wrong before an item is looked at."""


def suspicious_labels(
    store: GalleryStore, calibration: Calibration, *, limit: int = 100, progress: bool = False
) -> list[Suspect]:
    """Items whose label is more likely wrong than right, most suspicious first.

    Each item is left out, and its neighbours say how probable its own label and the likeliest other one are. Supposing
    that the share w = 1/20 of the labels is wrong and names any of the C classes, wrong labels alone give each class
    `w / (C - 1)`; an item is a suspect if that is more than half of what its label has: `p(own) < 2 w / (C - 1)`. The
    order is that of the odds `p(suggested) / p(own)`: ordered by their difference, items between two classes would come
    first, which a wrong label seldom is. An item that is alone in its class is never a suspect, since nothing can speak
    for its label.

    Args:
        store: the gallery.
        calibration: what was learned of it.
        limit: how many to give at the most.
        progress: whether to show a bar.

    Raises:
        DataError: if the calibration has no probabilities; it says what is missing.
    """
    check_whole(limit, "limit", 1)
    if calibration.identification.temperature is None:
        raise DataError(f"Suspicious labels cannot be told yet. {calibration.identification.reason}")
    sample = store.sample(MOST_ITEMS, _SEED, labelled=True)
    sizes, names = class_sizes(store, sample.codes), store.classes()
    own, suggested, best = _doubts(store, calibration, sample, sizes, progress)
    classes = max(2, int((sizes > 0).sum()))
    wrong = own < 2 * _WRONG / (classes - 1)
    flagged = np.flatnonzero((suggested >= 0) & (suggested != sample.codes) & (best > own) & wrong)
    odds = np.log(np.maximum(best, _LEAST)) - np.log(np.maximum(own, _LEAST))
    chosen = flagged[np.argsort(-odds[flagged], kind="stable")][:limit]
    items = store.items(sample.keys[chosen])
    return [
        Suspect(item, names[code], float(probability), float(share))
        for item, code, probability, share in zip(
            items, suggested[chosen].tolist(), best[chosen], own[chosen], strict=True
        )
        if item is not None and code < len(names)
    ]


def _doubts(
    store: GalleryStore, calibration: Calibration, sample: Sample, sizes: np.ndarray, progress: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each item of a sample: probability of its label (n,), the likeliest class (n,), its probability (n,).

    Where an item is alone in its class, or no neighbour was found, the likeliest class is -1.
    """
    n = len(sample.codes)
    own, suggested, best = np.ones(n), np.full(n, -1, np.int64), np.zeros(n)
    with Progress("Looking for suspicious labels", n, progress) as bar:
        for start in range(0, n, _SUSPECT_CHUNK):
            every = np.arange(start, min(start + _SUSPECT_CHUNK, n))
            rows = every[sizes[sample.codes[every]] > 1]
            part = Sample(sample.keys[rows], sample.vectors[rows], sample.codes[rows])
            found = leave_out(store, part, sizes, calibration.k)
            some = present(found.distances, found.codes).any(axis=1)
            if some.any():
                told = calibration.identification.probabilities(
                    found.distances[some], found.codes[some], found.shares[some]
                )
                own[rows[some]] = told.of_codes(found.own[some])
                suggested[rows[some]], best[rows[some]] = told.best, told.confidence
            bar.advance(len(every))
    return own, suggested, best


def stats_of(store: GalleryStore, fitted: Calibration | None) -> Stats:
    """What is in a gallery, and its last calibration."""
    sizes = dict(store.class_sizes())
    unlabelled = sizes.pop(None, 0)
    named = {str(name): count for name, count in sizes.items()}
    return Stats(
        settings=store.settings,
        items=len(store),
        unlabelled=unlabelled,
        classes=dict(sorted(named.items(), key=lambda pair: (-pair[1], pair[0]))),
        generation=store.generation,
        index=store.kind,
        size=store.size(),
        calibration=None if fitted is None else fitted.to_dict(),
        notes=() if fitted is None else tuple(fitted.notes),
        layout=store.layout.in_words(),
    )
