"""Few-shot answers of a gallery: a class is the mean of its items, and a query is of the class of the nearest mean.

Where the gallery compares by a learned similarity, this is the few-shot classification of its paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from threading import Lock

import numpy as np

from nearkin.confidence import PrototypeSoftmax
from nearkin.errors import DataError
from nearkin.gallery.store import GalleryStore
from nearkin.gallery.values import LikelyClass, Match
from nearkin.spaces import Space

MOST_ITEMS = 500_000
"""Items whose vectors are read at once to make means of them."""

_SHOWN = 5
_SEED = 0


class GalleryPrototypes:
    """The means of a store's classes, made when they are first asked for and again when the store has changed.

    Args:
        store: where the items are.
    """

    def __init__(self, store: GalleryStore) -> None:
        self.store = store
        self._making = Lock()
        self._made: tuple[int, PrototypeSoftmax] | None = None

    def named(self, vectors: np.ndarray, matches: Sequence[Match], space: Space) -> list[Match]:
        """The same matches of vectors (q, d), with label, probability and candidates by the prototypes.

        Args:
            vectors: points of the space.
            matches: what the neighbours say of each; whether it is known at all stays theirs.
            space: how the gallery compares.
        """
        if not any(label is not None for label in self.store.class_sizes()):
            return list(matches)
        labels, shares = self._fitted(space).predict(vectors).probabilities.top(_SHOWN)
        names = self._fitted(space).classes_
        found = []
        for match, codes, values in zip(matches, labels.tolist(), shares.tolist(), strict=True):
            pairs = zip(codes, values, strict=True)
            likely = tuple(LikelyClass(str(names[code]), share) for code, share in pairs if code >= 0)
            reason = "" if match.known is not None else match.reason
            first = likely[0]
            label, share = first.label, first.probability
            found.append(replace(match, label=label, probability=share, candidates=likely, reason=reason))
        return found

    def _fitted(self, space: Space) -> PrototypeSoftmax:
        with self._making:
            generation = self.store.generation
            if self._made is None or self._made[0] != generation:
                self._made = generation, self._fit(space)
            return self._made[1]

    def _fit(self, space: Space) -> PrototypeSoftmax:
        """Means of all labelled items; their temperature by leaving each item out of its mean, 1 where none can be."""
        if len(self.store) > MOST_ITEMS:
            raise DataError(
                f"Prototypes are made of all items at once, and {len(self.store):,} are more than {MOST_ITEMS:,}: "
                "identify by neighbours."
            )
        sample = self.store.sample(MOST_ITEMS, _SEED, labelled=True)
        labels = np.array(self.store.classes(), dtype=object)[sample.codes]
        alone = len(np.unique(sample.codes)) == len(sample.codes)
        return PrototypeSoftmax(space=space, temperature=1.0 if alone else None).fit(sample.vectors, labels)
