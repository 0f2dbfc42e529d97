"""Everything a gallery has learned from itself, in one value that can be kept and read again."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.gallery.calibration.identification import Identification
from nearkin.gallery.calibration.pair_rule import PairRule, Ruling, check_rate
from nearkin.gallery.calibration.unknown import Horizon
from nearkin.gallery.calibration.verdicts import Verdict, reach_verdicts
from nearkin.gallery.store import Found, Store

_FORMAT = 1
_GROWTH = 0.1
"""The share of the items whose change makes a calibration old."""

_EARLY_GROWTH = 0.01
"""The same of one that still lacks something: a gallery that begins to grow is looked at again soon."""


@dataclass(frozen=True)
class Calibration:
    """What a gallery has learned from itself.

    Attributes:
        items: how many items it had.
        changes: how many changes there had been, as `Store.changes` counts them.
        generation: how many writes there had been.
        accept: the share of queries of enrolled classes that are to count as known.
        k: how many neighbours `classify` goes by.
        identification: how neighbours become probabilities.
        horizon: known or unknown.
        pairs: the same or not.
        notes: what a reader must know.
    """

    items: int
    changes: int
    generation: int
    accept: float = 0.95
    k: int = 1
    identification: Identification = field(default_factory=Identification)
    horizon: Horizon = field(default_factory=Horizon)
    pairs: PairRule = field(default_factory=PairRule)
    notes: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """A name of this very content."""
        plain = json.dumps(self._content(), sort_keys=True).encode()
        return hashlib.sha256(plain).hexdigest()[:16]

    @property
    def complete(self) -> bool:
        """Whether there was enough to learn all of it."""
        return not (self.identification.reason or self.horizon.reason or self.pairs.reason)

    def stale(self, store: Store) -> bool:
        """Whether so much has changed that it should be learned anew: a tenth of the items, one at the least.

        One that lacks something for want of items is old after a hundredth, which in a small gallery is any change.
        """
        share = _GROWTH if self.complete else _EARLY_GROWTH
        return abs(store.changes - self.changes) >= max(1, math.ceil(round(share * self.items, 6)))

    def classify(self, found: Found, classes: Sequence[str], sizes: np.ndarray) -> list[Verdict]:
        """What queries are, from their nearest labelled neighbours.

        Args:
            found: what `store.search(queries, k, labelled=True)` gives; more neighbours than k are left alone, and so
                are those without a label.
            classes: as `Store.classes` gives them.
            sizes: how many items each of them has (C,), as `class_sizes` counts them.
        """
        return reach_verdicts(found, classes, sizes, self.k, self.identification, self.horizon)

    def judge(self, distance: float, rate: float) -> Ruling:
        """Whether two items at a distance are of one class, so that the share `rate` of others is accepted at most."""
        least = -math.inf if self.identification.similarity else 0.0
        if isinstance(distance, bool) or not isinstance(distance, Real) or not least <= float(distance) < math.inf:
            raise DataError(f"A distance is a number{'' if least else ' from 0 on'}, not {distance!r}.")
        return self.pairs.judge(float(distance), check_rate(rate))

    def reliability(self) -> dict[str, Any]:
        """How sure and how right the gallery is of its own items, each left out in turn; or the reason it cannot say.

        Returns:
            "bins" (a list of "low", "high", "confidence", "accuracy", "count"), "ece", "accuracy" and "items"; or
            "reason" alone.
        """
        found = self.identification
        if found.temperature is None:
            return {"reason": found.reason}
        return {
            "bins": [dict(part) for part in found.bins],
            "ece": found.ece,
            "accuracy": found.accuracy,
            "items": found.items,
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"format": _FORMAT, "key": self.key, **self._content()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Calibration:
        """The inverse of `to_dict`.

        Raises:
            DataError: if it is of a newer format, or no calibration.
        """
        if not isinstance(plain, Mapping) or not isinstance(plain.get("format"), int):
            raise DataError("This is no calibration of a gallery: make one with recalibrate.")
        if plain["format"] > _FORMAT:
            raise DataError(
                f"This calibration has format {plain['format']}, and this version of nearkin reads up to {_FORMAT}: "
                "update nearkin, or recalibrate."
            )
        try:
            return cls(
                **{name: plain[name] for name in ("items", "changes", "generation", "accept", "k")},
                identification=Identification.from_dict(plain["identification"]),
                horizon=Horizon.from_dict(plain["horizon"]),
                pairs=PairRule.from_dict(plain["pairs"]),
                notes=tuple(plain["notes"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"This calibration is damaged ({error}): make one with recalibrate.") from error

    def _content(self) -> dict[str, Any]:
        return {
            "items": self.items,
            "changes": self.changes,
            "generation": self.generation,
            "accept": self.accept,
            "k": self.k,
            "identification": self.identification.to_dict(),
            "horizon": self.horizon.to_dict(),
            "pairs": self.pairs.to_dict(),
            "notes": list(self.notes),
        }
