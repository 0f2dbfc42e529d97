"""Exact search in a snapshot: by one product where the space and the vectors allow it, chunk by chunk otherwise."""

from __future__ import annotations

import numpy as np

from nearkin.gallery.index.asked import Asked
from nearkin.gallery.index.chunks import search_chunks
from nearkin.gallery.index.forms import Form
from nearkin.gallery.index.nearest import nearest
from nearkin.gallery.index.packed import stretch
from nearkin.gallery.index.scan import Scan
from nearkin.gallery.index.snapshot import Snapshot
from nearkin.spaces import Space


def search_exactly(space: Space, form: Form | None, now: Snapshot, asked: Asked) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest slots of every query: (distances float32, slots int64), each (q, k), padded with infinity and -1.

    Args:
        space: what tells distances.
        form: how products become scores in it, if they do.
        now: what to search.
        asked: queries, how many neighbours, and which slots may be found.
    """
    queries, k, exclude = asked.queries, asked.k, asked.exclude
    distances = np.full((len(queries), k), np.inf, np.float32)
    slots = np.full((len(queries), k), -1, np.int64)
    scanned = np.zeros(len(queries), bool)
    if form is not None and now.tame:
        scanned = form.fits(asked.lengths) & (asked.lengths > 0)
    left = [np.flatnonzero(~scanned)]
    if form is not None and scanned.any():
        rows = np.flatnonzero(scanned)
        scan = Scan(form, now, asked.allowed)
        wanted = k + (exclude is not None)
        for part, candidates, crowded in scan.candidates(queries[rows], asked.lengths[rows], wanted):
            some = rows[part]
            if exclude is not None:
                candidates[candidates == exclude[some, None]] = -1
            distances[some], slots[some] = nearest(space, queries[some], now.vectors, candidates, k)
            left.append(some[crowded])
    rest = np.concatenate(left)
    if len(rest):
        without = None if exclude is None else exclude[rest]
        found = search_chunks(space, queries[rest], stretch(now.vectors, 0, now.count), asked.allowed, k, without)
        distances[rest], slots[rest] = found
    return distances, slots
