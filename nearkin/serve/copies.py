"""Duplicates as they are asked for over HTTP: no farther apart, and no more of them, than can be looked through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearkin.gallery.by_place import by_place
from nearkin.gallery.store import Store
from nearkin.gallery.values import Duplicates, Item
from nearkin.serve.problems import Problem

if TYPE_CHECKING:
    from nearkin.gallery.gallery import Gallery

MOST_GROUPS = 1000
_MOST_SHOWN = 100
_MOST_ITEMS = 5000
_SAMPLE = 500
_USUAL = 0.9  # not the median: half of a gallery may be copies
_ROUNDING = 1.05  # by which a distance may have grown when it was rounded
_SEED = 0


@dataclass(frozen=True)
class Copies:
    """A group of duplicates: the first of its items, how many there are, and how far apart."""

    items: tuple[Item, ...]
    count: int
    distance: float


def rounded(distance: float | None) -> float | None:
    """A distance to two digits, so that those who feel their way do not have all of it made anew each time."""
    return None if distance is None else float(f"{distance:.1e}")


def find_copies(gallery: Gallery, distance: float | None) -> list[Copies]:
    """Groups of duplicates, closest first, at most 1,000 of them and 5,000 items in all.

    Args:
        gallery: where to look.
        distance: how near two items must be; None: chosen.

    Raises:
        Problem: if it is larger than that from nine items out of ten to their nearest other one: nearly all of the
            gallery would be duplicates.
    """
    if distance:
        most = _usual_distance(gallery.store)
        if distance > _ROUNDING * most:
            raise Problem("invalid-request", f"distance may be at most {most:.3g}, as between most neighbours.")
    return _cut(gallery.find_duplicates(distance, limit=MOST_GROUPS))


def _usual_distance(store: Store) -> float:
    """The distance to the nearest other item that nine of ten items have at the most."""
    if len(store) < 2:
        return 0.0
    sample = store.sample(_SAMPLE, _SEED)
    nearest = by_place(store).search(sample.vectors, 1, exclude=sample.keys).distances[:, 0]
    nearest = nearest[np.isfinite(nearest)]
    return float(np.quantile(nearest, _USUAL)) if len(nearest) else 0.0


def _cut(groups: list[Duplicates]) -> list[Copies]:
    copies, total = [], 0
    for group in groups:
        shown = group.items[:_MOST_SHOWN]
        total += len(shown)
        if total > _MOST_ITEMS:
            break
        copies.append(Copies(shown, len(group.items), group.distance))
    return copies
