"""Duplicates: items that are almost the same, whatever their labels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from nearkin.confidence.checks import check_whole
from nearkin.errors import DataError
from nearkin.gallery.by_place import Searched, by_place
from nearkin.gallery.store import Found, Store
from nearkin.gallery.values import Duplicates, Item
from nearkin.progress import Progress

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
    store: Store, *, distance: float | None = None, limit: int = 1000, progress: bool = False
) -> list[Duplicates]:
    """Groups of items that are no farther apart than a distance, the closest groups first.

    Items belong together if a chain of such pairs joins them, so a large distance may join what is not alike. Equal
    vectors are always found, at any distance. Every item is searched for in the gallery. Where that compares by a
    learned similarity, distances here are those of the base space: see `by_place`.

    Args:
        store: the gallery.
        distance: in its (base) space; None: 0.3 of the median distance from an item to its nearest other one.
        limit: how many groups to give at the most.
        progress: whether to show a bar.
    """
    check_whole(limit, "limit", 1)
    if distance is not None and (
        isinstance(distance, bool) or not isinstance(distance, Real) or not 0 <= distance <= _FARTHEST
    ):
        raise DataError(
            f"The distance of duplicates is a number from 0 on, or None to choose one, not {str(distance)[:40]}."
        )
    if len(store) < 2:
        return []
    near = by_place(store)
    usual, rounding = _scales(store, near)
    reach = max(_SHARE * usual if distance is None else float(distance), rounding)
    return _groups(list(_pairs(store, near, reach, rounding, progress)), limit)


@dataclass(frozen=True)
class _Pair:
    """Two items that are near each other, the first at a place in the order of the gallery."""

    first: Item
    place: int
    second: Item
    distance: float


def _scales(store: Store, near: Searched) -> tuple[float, float]:
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


def _pairs(store: Store, near: Searched, reach: float, rounding: float, progress: bool) -> Iterator[_Pair]:
    """Pairs no farther apart than `reach`, most of them from both sides."""
    place = 0
    with Progress("Looking for duplicates", len(store), progress) as bar:
        for items, vectors in store.batches(_CHUNK):
            found = near.search(vectors, _NEAREST + 1)
            yield from _pairs_of(store, items, found, place, reach, rounding)
            place += len(items)
            bar.advance(len(items))


def _pairs_of(
    store: Store, items: list[Item], found: Found, place: int, reach: float, rounding: float
) -> Iterator[_Pair]:
    """The same of some items with what they found, the first of them at a place in the order of the gallery."""
    near = found.distances <= reach
    # An item finds itself too, unless an index that is not exact has missed it.
    near &= ((near.sum(axis=1) > 1) | (found.distances[:, 0] > rounding))[:, None]
    rows, columns = np.nonzero(near)
    others = store.items(found.keys[rows, columns])
    for row, column, other in zip(rows.tolist(), columns.tolist(), others, strict=True):
        if other is not None and other.id != items[row].id:
            yield _Pair(items[row], place + row, other, float(found.distances[row, column]))


def _groups(pairs: list[_Pair], limit: int) -> list[Duplicates]:
    """Items that chains of pairs join, with the largest distance that was needed to join them all."""
    if not pairs:
        return []
    places = {pair.first.id: pair.place for pair in pairs}
    items = {pair.first.id: pair.first for pair in pairs} | {pair.second.id: pair.second for pair in pairs}
    # Every item asks, so almost all have a place; one that only answered comes last.
    ids = sorted(items, key=lambda name: (places.get(name, len(places) + max(places.values())), name))
    number = {name: row for row, name in enumerate(ids)}
    ends = np.array([(number[pair.first.id], number[pair.second.id]) for pair in pairs])
    ends.sort(axis=1)
    order = np.argsort([pair.distance for pair in pairs], kind="stable")
    distances = np.array([pair.distance for pair in pairs])[order]
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
