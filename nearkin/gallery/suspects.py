"""Suspicious labels: items whose neighbourhood speaks against the label they have."""

from __future__ import annotations

import numpy as np

from nearkin.confidence.checks import check_whole
from nearkin.errors import DataError
from nearkin.gallery.calibration import Calibration
from nearkin.gallery.calibration.left_out import class_sizes, leave_out, present
from nearkin.gallery.store import Sample, Store
from nearkin.gallery.values import Suspect
from nearkin.progress import Progress

MOST_ITEMS = 200_000
"""A gallery with more labelled items is searched for suspects in a sample of so many."""

_SEED = 0
_CHUNK = 4096
"""Items that are worked on together."""

_LEAST = 1e-12
"""The least probability that odds are made with."""

_WRONG = 0.05
"""The share of labels that is supposed to be wrong before an item is looked at."""


def suspicious_labels(
    store: Store, calibration: Calibration, *, limit: int = 100, progress: bool = False
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
    store: Store, calibration: Calibration, sample: Sample, sizes: np.ndarray, progress: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each item of a sample: probability of its label (n,), the likeliest class (n,), its probability (n,).

    Where an item is alone in its class, or no neighbour was found, the likeliest class is -1.
    """
    n = len(sample.codes)
    own, suggested, best = np.ones(n), np.full(n, -1, np.int64), np.zeros(n)
    with Progress("Looking for suspicious labels", n, progress) as bar:
        for start in range(0, n, _CHUNK):
            every = np.arange(start, min(start + _CHUNK, n))
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
