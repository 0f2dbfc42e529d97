"""Which class and how probable: NED with a sharpness, fitted to the gallery's own items, each left out in turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from nearkin.confidence.ned import DEFAULT_WIDENING, Widening, fit_in_words
from nearkin.confidence.probabilities import ClassProbabilities, ClassSums
from nearkin.confidence.sharp_ned import fit_sharpened, sharpened_shares
from nearkin.confidence.temperature import fit_temperature
from nearkin.gallery.condition import condition
from nearkin.gallery.store import GalleryStore, Sample
from nearkin.metrics.calibration import calibration_metrics
from nearkin.progress import Progress
from nearkin.spaces.space import squarable

MOST_NEIGHBOURS = 200
"""Neighbours that speak for or against a class."""

_CHUNK = 512
"""Queries that are searched for together."""

_STRANGERS_OF_A_CLASS = 50
"""How many items of a class that fills most of its neighbours are searched for once more."""


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Items left out of the gallery one at a time.

    Attributes:
        own: class of each item, int32 (n,).
        mates: whether the gallery holds another item of that class (n,).
        distances: to the nearest labelled others, float32 (n, k), nearest first; infinite beyond the last.
        codes: classes of these, int32 (n, k), negative beyond the last.
        sizes: how many items each class has, by code (C,), none left out.
    """

    own: np.ndarray
    mates: np.ndarray
    distances: np.ndarray
    codes: np.ndarray
    sizes: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """What each neighbour counts (n, k), as `shares_of` says; a class without the item left out is one smaller."""
        return shares_of(self.sizes, self.codes, (self.codes == self.own[:, None]).astype(np.int64))

    def with_mates(self) -> LeftOut:
        """Those whose class is still there when they are left out."""
        return self._rows(self.mates)

    def found(self) -> LeftOut:
        """Those with a neighbour."""
        return self._rows(np.asarray(present(self.distances, self.codes).any(axis=1)))

    def filled(self) -> LeftOut:
        """Rows without gaps: a search that is not exact, or one while items are removed, may find fewer for some."""
        counts = np.count_nonzero(present(self.distances, self.codes), axis=1)
        width = int(np.median(counts)) if len(counts) else 0
        kept = self._rows(counts >= max(width, 1))
        return replace(kept, distances=kept.distances[:, :width], codes=kept.codes[:, :width])

    def _rows(self, chosen: np.ndarray) -> LeftOut:
        parts = {name: getattr(self, name)[chosen] for name in ("own", "mates", "distances", "codes")}
        return replace(self, **parts)


def leave_out(store: GalleryStore, sample: Sample, sizes: np.ndarray, k: int, progress: bool = False) -> LeftOut:
    """Search the whole gallery for the k nearest labelled items of each item of a sample, itself left out.

    Args:
        store: the gallery.
        sample: items of it, all with a label.
        sizes: how many items each class has, by code.
        k: how many neighbours.
        progress: whether to show a bar.
    """
    n = len(sample.codes)
    distances = np.full((n, k), np.inf, np.float32)
    codes = np.full((n, k), -1, np.int32)
    with Progress("Calibrating", n, progress) as bar:
        for start in range(0, n, _CHUNK):
            rows = slice(start, start + _CHUNK)
            found = store.search(sample.vectors[rows], k, labelled=True, exclude=sample.keys[rows])
            distances[rows], codes[rows] = found.distances, found.codes
            bar.advance(len(found.codes))
    return LeftOut(sample.codes, sizes[sample.codes] > 1, distances, codes, sizes)


def leave_class_out(store: GalleryStore, sample: Sample, left_out: LeftOut) -> LeftOut:
    """The same items with neighbours of other classes alone, as if their whole class were not enrolled.

    An item of a large class has few others among its neighbours: some items of each such class are searched for once
    more, and the rest of them are left away.

    Args:
        store: the gallery.
        sample: the items.
        left_out: what `leave_out` found for them.
    """
    k = left_out.codes.shape[1]
    foreign = present(left_out.distances, left_out.codes) & (left_out.codes != left_out.own[:, None])
    order = np.argsort(~foreign, axis=1, kind="stable")
    distances, codes, there = (
        np.take_along_axis(part, order, axis=1) for part in (left_out.distances, left_out.codes, foreign)
    )
    distances, codes = np.where(there, distances, np.inf).astype(np.float32), np.where(there, codes, -1)
    # Of others there are that many; half of what could be found is enough.
    others = left_out.sizes.sum() - left_out.sizes[left_out.own]
    lacking = foreign.sum(axis=1) < np.minimum(others, k) / 2
    kept = ~lacking
    names = store.classes()
    for code in np.unique(left_out.own[lacking]).tolist():
        rows = np.flatnonzero(lacking & (left_out.own == code))[:_STRANGERS_OF_A_CLASS]
        where = condition("label != :own", {"own": names[code]})
        for start in range(0, len(rows), _CHUNK):
            some = rows[start : start + _CHUNK]
            found = store.search(sample.vectors[some], k, labelled=True, where=where)
            distances[some], codes[some] = found.distances, found.codes
        kept[rows] = True
    kept &= present(distances, codes).any(axis=1)
    return LeftOut(left_out.own[kept], left_out.mates[kept], distances[kept], codes[kept], left_out.sizes)


def present(distances: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Which neighbours (q, k) are labelled items at all."""
    return (codes >= 0) & np.isfinite(distances)


def shares_of(sizes: np.ndarray, codes: np.ndarray, less: np.ndarray | int = 0) -> np.ndarray:
    """What each neighbour (q, k) counts: one over the size of its class, so that a class of few items is not outvoted.

    Args:
        sizes: of the classes, by code (C,).
        codes: classes of the neighbours (q, k), negative for none.
        less: how many items fewer the class of each has (q, k).
    """
    # A class that came since the sizes were counted is small.
    padded = np.pad(sizes, (0, max(0, int(codes.max(initial=-1)) + 1 - len(sizes))), constant_values=1)
    counts = (padded if len(padded) else np.ones(1, np.int64))[np.maximum(codes, 0)] - less
    return 1.0 / np.maximum(counts, 1)


def class_sizes(store: GalleryStore, codes: np.ndarray) -> np.ndarray:
    """How many items each class has, int64 (C,), by code; at least as long as the codes (n,) need."""
    names, sizes = store.classes(), store.class_sizes()
    counts = np.array([sizes.get(name, 0) for name in names], np.int64)
    # An item may have come between two readings of the store; it is as if it were alone in its class.
    return np.pad(counts, (0, max(0, int(codes.max(initial=-1)) + 1 - len(counts))))


LEAST_CLASSES = 2
"""Classes with two items or more without which nothing is fitted."""

LEAST_ITEMS = 30
"""Items of such classes without which nothing is fitted."""

_BINS = 15
_NO_NAMES = np.empty(0, object)


@dataclass(frozen=True)
class Identification:
    """How probabilities are made from neighbours, and how well that went on the gallery itself.

    Attributes:
        temperature: T; None where there was too little to fit it to.
        sharpness: a; None with T.
        items: how many were left out, all of classes with two items or more.
        lonely: how many of these have no item of their class among their neighbours: nothing could name them rightly.
        accuracy: the share of the left-out items whose likeliest class is theirs; None with T.
        ece: the mean gap between confidence and accuracy over bins; None with T.
        bins: of equal width in confidence, those that are not empty: "low", "high", "confidence", "accuracy", "count".
        reason: why there is no T; empty if there is one.
        notes: what a reader must know.
        similarity: whether distances are minus a similarity S, so that S takes the place of `-d^2`.
        widening: how much less sure an answer gets the farther a query lies from the items; 0: not at all.
        usual: the energy from which on it counts as far.
    """

    temperature: float | None = None
    sharpness: float | None = None
    items: int = 0
    lonely: int = 0
    accuracy: float | None = None
    ece: float | None = None
    bins: tuple[dict[str, Any], ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()
    similarity: bool = False
    widening: float = 0.0
    usual: float = 1.0

    @property
    def fitted_by(self) -> str:
        """How temperature and sharpness were fitted, in words; empty without them."""
        return "" if self.temperature is None else fit_in_words("sharpened", self.widening)

    @property
    def ceiling(self) -> float:
        """The largest probability that is ever given: n items that were all named rightly show no more than this."""
        return (self.items + 1) / (self.items + 2)

    def probabilities(self, distances: np.ndarray, codes: np.ndarray, shares: np.ndarray) -> ClassProbabilities:
        """Class probabilities by code from neighbours (q, k), nearest first, one at least of each query labelled.

        Only codes are known here: the result has no names.

        Args:
            distances: of the neighbours (q, k).
            codes: their classes (q, k).
            shares: one over the size of each one's class (q, k).
        """
        found = self.class_sums(distances, codes, shares)
        return ClassProbabilities(
            _NO_NAMES, found.offsets, found.codes, np.minimum(found.sums, self.ceiling), found.best
        )

    def class_sums(self, distances: np.ndarray, codes: np.ndarray, shares: np.ndarray) -> ClassSums:
        """The same before the ceiling, in float64."""
        assert self.temperature is not None
        assert self.sharpness is not None
        there = present(distances, codes)
        energies, known = _energies(np.where(there, distances, 0), self.similarity), np.where(there, codes, -1)
        widened = Widening(self.widening, self.usual).powers(torch.from_numpy(np.where(there, energies, np.inf)))
        return sharpened_shares(energies, known, self.temperature, self.sharpness * widened.numpy(), shares)

    def exponents(self, distances: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Logarithms of the kernels of neighbours, float64 (q, k); anything where there is none."""
        assert self.temperature is not None
        there = present(distances, codes)
        return -_energies(np.where(there, distances, 0), self.similarity).astype(np.float64) / self.temperature


def too_few_for_probabilities(classes: int, items: int) -> str:
    """Why so many classes with two items or more, and so many items of these, are too few; empty if they are not."""
    if classes >= LEAST_CLASSES and items >= LEAST_ITEMS:
        return ""
    return (
        f"Probabilities need at least {LEAST_CLASSES} classes with two items or more and {LEAST_ITEMS} items in such "
        f"classes, but the gallery has {classes:,} and {items:,}: add more items to the classes."
    )


def fit_identification(left_out: LeftOut, similarity: bool = False) -> Identification:
    """Fit T and a to the items that have others of their class, and measure how sure and how right they are.

    Args:
        left_out: the items.
        similarity: whether distances are minus a similarity.
    """
    tried = left_out.with_mates()
    filled = tried.filled()
    positive = filled.codes == filled.own[:, None]
    reached = int(positive.any(axis=1).sum())
    if reached < LEAST_ITEMS:
        return Identification(
            items=len(tried.own),
            similarity=similarity,
            reason=(
                f"Probabilities need {LEAST_ITEMS} items with one of their class among their neighbours, but only "
                f"{reached:,} have one: these vectors hardly tell the classes apart, or classes need more items."
            ),
        )
    energies = _energies(filled.distances, similarity)
    plain = fit_temperature(energies, positive, lost="have no item of their class among their neighbours")
    sharp = fit_sharpened(energies, filled.codes, filled.own, plain.temperature, filled.shares)
    widening = Widening.of(DEFAULT_WIDENING, energies)
    lonely = int((~(tried.codes == tried.own[:, None]).any(axis=1)).sum())
    fitted = Identification(
        sharp.temperature,
        sharp.sharpness,
        len(tried.own),
        lonely,
        similarity=similarity,
        widening=widening.power,
        usual=widening.usual,
    )
    some = present(tried.distances, tried.codes).any(axis=1)
    found = fitted.probabilities(tried.distances[some], tried.codes[some], tried.shares[some])
    result = calibration_metrics(found.confidence, found.best == tried.own[some], bins=_BINS)
    curve = result.reliability
    bins = tuple(
        {
            "low": place / _BINS,
            "high": (place + 1) / _BINS,
            "confidence": float(curve.confidence[place]),
            "accuracy": float(curve.accuracy[place]),
            "count": int(curve.counts[place]),
        }
        for place in np.flatnonzero(curve.counts).tolist()
    )
    notes = (*(note.replace("support points", "items") for note in plain.notes), *sharp.notes)
    return replace(fitted, accuracy=result.values["accuracy"], ece=result.values["ECE"], bins=bins, notes=notes)


def _energies(distances: np.ndarray, similarity: bool) -> np.ndarray:
    """Squares (q, k) of distances (q, k), in float64 where float32 cannot hold them; `-S` as it is."""
    if similarity:
        return np.array(distances)
    return squarable(torch.from_numpy(np.ascontiguousarray(distances))).square().numpy()
