"""The answers of a gallery to vectors: what each is, which items are nearest to it, and whether two are the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, Literal, get_args

import numpy as np
import torch

from nearkin.checks import check_between
from nearkin.confidence import PrototypeSoftmax
from nearkin.errors import DataError, suggestion
from nearkin.gallery.calibration import Calibrator, class_sizes
from nearkin.gallery.checks import how_many, vector_rows
from nearkin.gallery.condition import condition
from nearkin.gallery.model import GalleryModel
from nearkin.gallery.store import Found, GalleryStore
from nearkin.gallery.values import LikelyClass, Match, Neighbour, Verification
from nearkin.spaces import Space

IdentifyBy = Literal["neighbours", "prototypes"]
"""What names the class of a query."""

_MODEST = 1000
"""Neighbours for which nobody counts the items first."""


class Answers:
    """What a gallery says of vectors (q, d) that its model or its user made.

    Args:
        store: where the items are.
        model: how their vectors are compared.
        calibrator: what says how sure an answer is.
    """

    def __init__(self, store: GalleryStore, model: GalleryModel, calibrator: Calibrator) -> None:
        self.store = store
        self.model = model
        self.calibrator = calibrator
        self._prototypes = GalleryPrototypes(store)
        self._counted: tuple[int, list[str], np.ndarray] | None = None

    def identify(self, vectors: Any, neighbours: int, by: IdentifyBy, progress: bool) -> list[Match]:
        """What each is, with as many of the nearest items as asked for."""
        if by not in get_args(IdentifyBy):
            raise DataError(f"A gallery cannot identify by '{by}'.{suggestion(str(by), get_args(IdentifyBy))}")
        rows, k = self._checked(vectors), how_many(neighbours, "neighbours")
        fitted = self.calibrator.calibrated(progress)
        found = self.store.search(rows, max(self._reachable(k), fitted.k), labelled=True)
        answers = fitted.classify(found, *self._classes())
        if by == "prototypes":
            answers = self._prototypes.named(rows, answers, self.model.space)
        matches = zip(answers, self._neighbours(found, k), strict=True)
        return [replace(match, neighbours=tuple(near)) for match, near in matches]

    def nearest(self, vectors: Any, k: int, where: Any, parameters: Any) -> list[list[Neighbour]]:
        """The k items nearest to each, of those that fulfil a condition."""
        rows, k = self._checked(vectors), how_many(k, "k")
        return self._neighbours(self.store.search(rows, self._reachable(k), where=condition(where, parameters)), k)

    def verify(self, a: Any, b: Any, false_accept_rate: float, prior: float, progress: bool) -> Verification:
        """Whether an enrolled vector and a query are of the same class."""
        check_between(false_accept_rate, "false_accept_rate")
        check_between(prior, "prior")
        rate = float(false_accept_rate)
        x, y = (torch.from_numpy(self._checked(one)[:1].astype(np.float64)) for one in (a, b))
        distance = float(self.store.space.distance(y, x)[0, 0])  # the first is the enrolled one
        fitted = self.calibrator.calibrated(progress)
        ruling = fitted.judge(distance, rate, prior)
        return Verification(
            ruling.same,
            ruling.probability,
            distance,
            ruling.threshold,
            rate,
            ruling.reason,
            float(prior),
            ruling.needed,
            fitted.warning,
        )

    def _checked(self, vectors: Any) -> np.ndarray:
        return vector_rows(vectors, self.store.settings.dimension)

    def _classes(self) -> tuple[list[str], np.ndarray]:
        """Names and sizes (C,) of the classes by code, counted once for each state of the store."""
        generation = self.store.generation
        if self._counted is None or self._counted[0] != generation:
            names = self.store.classes()
            self._counted = (generation, names, class_sizes(self.store, np.empty(0, np.int32)))
        return self._counted[1], self._counted[2]

    def _reachable(self, k: int) -> int:
        """As many neighbours as there can be: a search makes room for all that it is asked for."""
        return k if k <= _MODEST else min(k, max(_MODEST, len(self.store)))

    def _neighbours(self, found: Found, k: int) -> list[list[Neighbour]]:
        """The first k of each query, as items."""
        items = iter(self.store.items(found.keys[:, :k].ravel()))
        rows = [[(next(items), float(distance)) for distance in row] for row in found.distances[:, :k]]
        return [[Neighbour(item, far) for item, far in row if item is not None and math.isfinite(far)] for row in rows]


MOST_ITEMS = 500_000
"""Items whose vectors are read at once to make means of them."""

_SHOWN = 5
_SEED = 0


class GalleryPrototypes:
    """The means of a store's classes, made when they are first asked for and again when the store has changed.

    A query is of the class of the nearest mean. Where the gallery compares by a learned similarity, this is the
    few-shot classification of its paper.

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
