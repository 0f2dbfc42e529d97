"""Answers to queries that are vectors already: neighbours from the store, certainty from the calibration."""

from __future__ import annotations

import math
from contextlib import suppress
from numbers import Real
from threading import RLock
from typing import Any

import numpy as np
import torch

from nearkin.errors import DataError, StorageError
from nearkin.gallery.calibration import Calibration, class_sizes, fit_calibration
from nearkin.gallery.calibration.identification import Identification
from nearkin.gallery.calibration.pair_rule import PairRule, check_rate
from nearkin.gallery.calibration.unknown import Horizon
from nearkin.gallery.store import Found, Store
from nearkin.gallery.values import Match, Neighbour, Settings, Verification
from nearkin.gallery.where import Condition

_NOTE = "calibration"
_ACCEPT = 0.95
_QUICK = 5000
"""Items of which learning takes about a second."""

_MODEST = 1000
"""Neighbours for which nobody counts the items first."""

_LEARNING = "The gallery is being learned from for the first time: ask again in a minute."
_UNLEARNED = Calibration(
    items=0,
    changes=0,
    generation=0,
    identification=Identification(reason=_LEARNING),
    horizon=Horizon(reason=_LEARNING),
    pairs=PairRule(reason=_LEARNING),
)


class Answers:
    """Identifies, searches and verifies.

    Args:
        store: where the items are.

    Attributes:
        auto: whether a calibration that is due is made before an answer.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.auto = True
        self._fitted: Calibration | None = None
        self._counted: tuple[int, list[str], np.ndarray] | None = None
        # What could not be written, because another process was writing; and what it was learned for.
        self._unkept: tuple[Settings, Calibration] | None = None
        self._fitting = RLock()

    def identify(self, vectors: np.ndarray, neighbours: int, progress: bool = False) -> list[Match]:
        """What queries (q, d) are, with so many neighbours each."""
        fitted = self.calibrated(progress)
        found = self.store.search(vectors, max(self._reachable(neighbours), fitted.k), labelled=True)
        verdicts = fitted.classify(found, *self._classes())
        return [
            Match(verdict.label, verdict.probability, verdict.known, near, verdict.candidates, verdict.reason)
            for verdict, near in zip(verdicts, self._neighbours(found, neighbours), strict=True)
        ]

    def search(self, vectors: np.ndarray, k: int, where: Condition | None) -> list[list[Neighbour]]:
        """The k nearest items of queries (q, d) that fulfil a condition."""
        found = self.store.search(vectors, self._reachable(k), where=where)
        return [list(near) for near in self._neighbours(found, k)]

    def verify(self, a: np.ndarray, b: np.ndarray, rate: float, progress: bool = False) -> Verification:
        """Whether vectors (d,) and (d,) are of one class, at a false accept rate."""
        rate = check_rate(rate)
        x, y = (torch.from_numpy(np.asarray(one, np.float64))[None] for one in (a, b))
        distance = float(self.store.space.distance(y, x)[0, 0])  # the first is the enrolled one
        ruling = self.calibrated(progress).judge(distance, rate)
        return Verification(ruling.same, ruling.probability, distance, ruling.threshold, rate, ruling.reason)

    def current(self) -> Calibration | None:
        """What was learned last, by anyone."""
        kept = self.store.note(_NOTE)
        if self._fitted is None or not isinstance(kept, dict) or kept.get("key") != self._fitted.key:
            self._fitted = _read(kept)
            if self._fitted is not None:
                self._unkept = None  # somebody has learned since
        if self._unkept is not None and self._unkept[0] == self.store.settings:
            return self._unkept[1]
        return self._fitted

    def due(self) -> bool:
        """Whether it is time to learn anew."""
        fitted = self.current()
        return fitted is None or fitted.stale(self.store)

    def calibrated(self, progress: bool = False) -> Calibration:
        """What is known of the gallery, learned now if that is due, then with a bar if `progress` says so.

        If learning is left to others, a large gallery that nothing is known of yet answers without probabilities.
        """
        fitted = self.current()
        if fitted is not None and not (self.auto and fitted.stale(self.store)):
            return fitted
        if not self.auto and len(self.store) > _QUICK:
            return _UNLEARNED
        with self._fitting:
            fitted = self.current()
            if fitted is not None and not fitted.stale(self.store):
                return fitted
            settings = self.store.settings
            fitted = self._fit(None, progress)
            with suppress(StorageError):  # another process is writing: an answer need not wait for it
                self._keep(settings, fitted)
            return fitted

    def refit(self, accept: float | None, progress: bool = False) -> Calibration:
        """Learn anew and keep it; this process goes by it even if it cannot be kept.

        Raises:
            StorageError: if it cannot be kept, since another process is writing, or the place is read-only.
        """
        with self._fitting:
            settings = self.store.settings
            fitted = self._fit(accept, progress)
            self._keep(settings, fitted)
            return fitted

    def _fit(self, accept: float | None, progress: bool) -> Calibration:
        before = self.current()
        share = accept if accept is not None else _ACCEPT if before is None else before.accept
        if isinstance(share, bool) or not isinstance(share, Real) or not 0 < share < 1:
            raise DataError(f"The share of known queries to accept lies between 0 and 1, not {share!r}.")
        return fit_calibration(self.store, self.store.space, accept=float(share), progress=progress)

    def _keep(self, settings: Settings, fitted: Calibration) -> None:
        if self.store.settings != settings:
            raise StorageError("The gallery was rebuilt while it was learned from: try again.")
        try:
            self.store.set_note(_NOTE, fitted.to_dict())
        except StorageError:
            self._unkept = (settings, fitted)  # answers go by it all the same
            raise
        self._fitted, self._unkept = fitted, None

    def _classes(self) -> tuple[list[str], np.ndarray]:
        """Names and sizes (C,) of the classes by code, counted once for each state of the store."""
        generation = self.store.generation
        if self._counted is None or self._counted[0] != generation:
            names = self.store.classes()
            self._counted = (generation, names, class_sizes(self.store, np.empty(0, np.int32)))
        return self._counted[1], self._counted[2]

    def _reachable(self, k: int) -> int:
        """As many neighbours as there can be: rows are made for all that is asked for."""
        return k if k <= _MODEST else min(k, max(_MODEST, len(self.store)))

    def _neighbours(self, found: Found, k: int) -> list[tuple[Neighbour, ...]]:
        """The first k of each query, as items."""
        keys, distances = found.keys[:, :k], found.distances[:, :k]
        items = iter(self.store.items(keys.ravel()))
        rows: list[Any] = [[(next(items), float(distance)) for distance in row] for row in distances]
        return [
            tuple(Neighbour(item, distance) for item, distance in row if item is not None and math.isfinite(distance))
            for row in rows
        ]


def _read(note: Any) -> Calibration | None:
    """What a note tells; None if there is none, or it is damaged or of a newer version: it can be learned again."""
    if note is None:
        return None
    try:
        found = Calibration.from_dict(note)
        return found if found.key == note.get("key") else None
    except (DataError, TypeError, ValueError):
        return None
