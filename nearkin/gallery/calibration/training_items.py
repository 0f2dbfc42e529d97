"""Items that trained the gallery's own model: left out one at a time they look easier than any query will be.

A gallery notes which of its items came with the data that its model was trained on, by the data's name or fingerprint.
Of these, the items of training classes are not calibrated on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.gallery.store import GalleryStore, Sample
from nearkin.models.card import Card

_NOTE = "training items"


def training_classes(card: Card) -> frozenset[str]:
    """The classes that trained a model, or the model that it started from."""
    return frozenset(map(str, [*card.classes.train, *(card.started_from or {}).get("classes", [])]))


def is_training_data(dataset: Dataset, card: Card) -> bool:
    """Whether a data set is the one a model was trained on, or a part or a later state of it."""
    if not training_classes(card).intersection(map(str, dataset.classes)):
        return False
    return dataset.name == card.data.name or dataset.fingerprint() == card.data.fingerprint


@dataclass(frozen=True)
class TrainingItems:
    """Which items of a gallery trained its model, as far as can be told.

    Attributes:
        classes: that trained the model.
        added: when items of the training data were added, as `Item.added`; None: at any time, which is taken for true
            of galleries that noted nothing.
    """

    classes: frozenset[str] = frozenset()
    added: frozenset[str] | None = frozenset()

    @classmethod
    def of(cls, store: GalleryStore, card: Card) -> TrainingItems:
        """Read what a gallery noted; without a note it is taken to hold the training data of the model of a card."""
        note = store.note(_NOTE)
        try:
            return cls(frozenset(note["classes"]), None if note["added"] is None else frozenset(note["added"]))
        except (TypeError, KeyError):
            return cls(training_classes(card), None)

    def rows(self, store: GalleryStore, sample: Sample) -> np.ndarray:
        """Which items of a sample trained the model, bool (n,)."""
        names = store.classes()
        trained = np.array([name in self.classes for name in names], bool)
        rows = trained[sample.codes] if len(names) else np.zeros(len(sample.codes), bool)
        if self.added is None or not rows.any():
            return rows
        asked = np.flatnonzero(rows)
        items = store.items(sample.keys[asked])
        rows[asked] = [item is not None and item.added in self.added for item in items]
        return rows


def note_training_items(store: GalleryStore, card: Card, added: Iterable[str] | None = ()) -> None:
    """Note that items of the training data were added, at these times; None: at times that nobody knows."""
    before = TrainingItems.of(store, card) if store.note(_NOTE) is not None else TrainingItems(training_classes(card))
    times = None if added is None or before.added is None else sorted({*before.added, *added})
    store.set_note(_NOTE, {"classes": sorted(before.classes), "added": times})
