"""What a search sees: the vectors and codes of one moment, which no writer changes any more."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nearkin.gallery.index.packed import Vectors, stretch
from nearkin.gallery.store import ABSENT, UNLABELLED


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The first `count` slots of arrays that may be longer; what lies beyond belongs to the writer.

    Attributes:
        vectors: (capacity, d), float32 where they are indexed.
        extra: what the product needs besides, float32 (capacity,): see `scan`.
        codes: int32 (capacity,).
        count: how many slots there are.
        absent: how many of them were removed.
        unlabelled: how many have an item without a label.
        longest: length of the longest vector.
        tame: whether all vectors can be scored in float32.
    """

    vectors: Vectors
    extra: np.ndarray
    codes: np.ndarray
    count: int = 0
    absent: int = 0
    unlabelled: int = 0
    longest: float = 0.0
    tame: bool = True

    def hides(self, labelled: bool) -> bool:
        """Whether some slots cannot be found at all: those removed, and if asked for those without a label."""
        return bool(self.absent or (labelled and self.unlabelled))

    def visible(self, slots: slice | np.ndarray, labelled: bool) -> np.ndarray:
        """Which (n,) of these slots can be found."""
        return np.asarray(self.codes[slots] > (UNLABELLED if labelled else ABSENT))

    def since(self, slot: int) -> Snapshot:
        """The slots from this one on, numbered from 0; `absent` and `unlabelled` are then upper bounds."""
        parts = stretch(self.vectors, slot), self.extra[slot:], self.codes[slot:]
        return replace(self, vectors=parts[0], extra=parts[1], codes=parts[2], count=self.count - slot)
