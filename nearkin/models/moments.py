"""Moments of training features from one pass over chunks of them: within classes and in all, of folds of the classes.

Besides the moments, a pass keeps a sample of the items, on which maps can be judged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import torch
from scipy.linalg.blas import ssyrk
from scipy.sparse import csr_matrix
from torch import Tensor

from nearkin.errors import ModelError

_MANY_CLASSES = 500
"""From so many classes on two folds are enough, either of which leaves enough to learn from."""
_SAMPLE = 2048
_CONSTANT = 1e-10
_FLAT = 1e-6
"""Shares of a variance below which nothing is left but the rounding of sums in single precision."""
_SMALL = 1e-15
"""Features below it may have squares that single precision does not hold."""
_FLOOR = 1e-5
_SINGLE = 16
"""Chunks whose products are added in single precision before they go to double."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, sum (F,), second moment (F, F), and the second moment of class means weighted by their items."""

    count: int
    sum: np.ndarray
    second: np.ndarray
    between: np.ndarray

    def plus(self, other: Moments) -> Moments:
        """These and those of `other`."""
        return Moments(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def minus(self, other: Moments) -> Moments:
        """These without those of `other`."""
        return Moments(*(getattr(self, name) - getattr(other, name) for name in self.__dataclass_fields__))

    @cached_property
    def mean(self) -> np.ndarray:
        """The mean (F,)."""
        return self.sum / self.count

    @cached_property
    def total(self) -> np.ndarray:
        """The covariance (F, F)."""
        covariance = self.second / self.count
        covariance -= np.outer(self.mean, self.mean)
        return covariance

    @cached_property
    def within(self) -> np.ndarray:
        """The pooled within-class covariance (F, F)."""
        return (self.second - self.between) / self.count

    @cached_property
    def can_whiten(self) -> bool:
        """Whether items of a class differ by more than rounding."""
        return not _is_flat(self.within, self.total, _FLAT)

    def floor(self, ridge: float | None) -> float:
        """What is added to the variance of each direction within classes; 1 where nothing is whitened."""
        if ridge is None:
            return 1.0
        return (ridge * float(np.trace(self.within)) + _FLOOR * float(np.trace(self.total))) / len(self.sum)


@dataclass
class FeaturePass:
    """What one pass over the features leaves: moments of each fold of classes, and a sample of the items."""

    folds: list[Moments]
    shift: np.ndarray
    sample: np.ndarray
    """Features (n, F) less the shift."""
    sample_classes: np.ndarray
    fold_of_class: np.ndarray

    @property
    def width(self) -> int:
        """F."""
        return len(self.shift)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.fold_of_class)

    @cached_property
    def whole(self) -> Moments:
        """The moments of all items."""
        return reduce(Moments.plus, self.folds)


def sum_features(
    chunks: Iterable[tuple[Tensor, np.ndarray]], class_ids: np.ndarray, most_folds: int, seed: int
) -> FeaturePass:
    """The moments of features from one pass; arguments as of `fit_start`, and into how many folds classes may go.

    Raises:
        ModelError: if the chunks do not give every item once, or features are not finite or all the same.
    """
    sums: _FeatureSums | None = None
    seen = np.zeros(len(class_ids), dtype=bool)
    if not isinstance(chunks, Iterable):
        raise ModelError(f"chunks must be pairs of features (n, F) and the positions of their items, not {chunks!r}.")
    # NumPy alone: after each operation of PyTorch its threads spin for a while, and those of NumPy wait for a core.
    for chunk in chunks:
        rows, positions = _rows(chunk)
        if not len(positions):
            continue
        if sums is not None and rows.shape[1] != len(sums.shift):
            raise ModelError(f"A chunk has features of {rows.shape[1]} numbers, the one before {len(sums.shift)}.")
        _check_positions(positions, seen)
        if sums is None:
            with np.errstate(invalid="ignore", over="ignore"):  # said later, in words
                shift = rows.mean(axis=0)
            sums = _FeatureSums(shift, class_ids, most_folds, seed)
        sums.add(rows, positions)
    if sums is None:
        raise ModelError("There are no training features for the head to start from.")
    if not seen.all():
        raise ModelError(f"The chunks have {seen.sum()} items and class_ids {len(class_ids)}: give every item once.")
    summed = sums.found()
    largest = np.abs(summed.sample + summed.shift).max()
    if 0 < largest < _SMALL and np.trace(summed.whole.total) < len(summed.shift) * np.finfo(np.float32).tiny:
        raise ModelError("The training features are too small to start from: scale them up.")
    if _is_flat(summed.whole.total, np.outer(summed.shift, summed.shift), _CONSTANT):
        raise ModelError(
            "The training features are the same for every item, or so nearly the same beside their mean that rounding "
            "could make the difference: check the backbone's weights and the data, take the mean from features of your "
            "own, or set model.head_start to random."
        )
    return summed


def _rows(chunk: Any) -> tuple[np.ndarray, np.ndarray]:
    """The features (n, F) of a chunk in single precision, and the positions (n,) of their items."""
    if not isinstance(chunk, tuple | list) or len(chunk) != 2 or not all(hasattr(part, "__len__") for part in chunk):
        raise ModelError("Each chunk must be a pair: features (n, F), and the positions (n,) of their items.")
    try:
        features, positions = torch.as_tensor(chunk[0]).detach(), np.asarray(chunk[1])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"Features must be real numbers, and positions whole ones ({error}).") from error
    if features.is_complex():
        raise ModelError("Features must be real numbers, not complex ones.")
    rows = features.float().cpu().numpy()
    if len(positions) and (rows.ndim != 2 or len(rows) != len(positions) or rows.shape[1] == 0):
        raise ModelError(f"A chunk has features {rows.shape} and {len(positions)} positions: give one each.")
    return rows, positions


def _check_positions(positions: np.ndarray, seen: np.ndarray) -> None:
    """Refuse positions that are no items, or of items that came before; note these."""
    if positions.dtype.kind not in "iu" or positions.min() < 0 or positions.max() >= len(seen):
        raise ModelError(f"Positions of items must be whole numbers from 0 to {len(seen) - 1}.")
    if seen[positions].any() or len(np.unique(positions)) < len(positions):
        raise ModelError("A position comes twice: give every item once.")
    seen[positions] = True


class _FeatureSums:
    """Adds up rows of features less a shift: their classes' sums (C, F), and of each fold the second moment (F, F)."""

    def __init__(self, shift: np.ndarray, class_ids: np.ndarray, most_folds: int, seed: int) -> None:
        self.shift = shift
        self._class_ids, self._counts = class_ids, np.bincount(class_ids)
        width, classes = len(shift), len(self._counts)
        folds = max(1, min(most_folds, classes // 2 if classes < _MANY_CLASSES else 2))
        rng = np.random.default_rng([seed, classes])
        self._fold_of_class = rng.permutation(np.arange(classes) % folds)
        self._kept = _sample(class_ids, self._counts, rng)
        self._place = np.full(len(class_ids), -1)
        self._place[self._kept] = np.arange(len(self._kept))
        self._samples = np.zeros((len(self._kept), width), dtype=np.float32)
        self._items = np.zeros(folds, dtype=np.int64)
        self._classes = np.zeros((classes, width), dtype=np.float32)
        self._second = [np.zeros((width, width), order="F") for _ in range(folds)]
        self._recent = [np.zeros((width, width), dtype=np.float32, order="F") for _ in range(folds)]
        self._chunks = 0

    def add(self, rows: np.ndarray, positions: np.ndarray) -> None:
        """Add rows (n, F) of the items at these positions (n,)."""
        folds = self._fold_of_class[self._class_ids[positions]]
        order = np.argsort(folds, kind="stable")
        positions = positions[order]
        rows = np.take(rows, order, axis=0, mode="clip")  # a copy
        with np.errstate(invalid="ignore", over="ignore"):
            rows -= self.shift
        ones = np.ones(len(rows), dtype=np.float32)
        of_classes = (self._class_ids[positions], np.arange(len(rows)))
        self._classes += csr_matrix((ones, of_classes), shape=(len(self._classes), len(rows))) @ rows
        of_each_fold = np.bincount(folds, minlength=len(self._items))
        self._items += of_each_fold
        last = np.cumsum(of_each_fold)
        for fold, (first, end) in enumerate(zip(last - of_each_fold, last, strict=True)):
            if end > first:  # the upper triangle of the sum of outer products
                part = rows[first:end].T
                self._recent[fold] = ssyrk(1.0, part, beta=1.0, c=self._recent[fold], overwrite_c=True)
        places = self._place[positions]
        self._samples[places[places >= 0]] = rows[places >= 0]
        self._chunks += 1
        if self._chunks % _SINGLE == 0:
            self._to_double()

    def _to_double(self) -> None:
        for second, recent in zip(self._second, self._recent, strict=True):
            second += recent
            recent[:] = 0.0

    def found(self) -> FeaturePass:
        """What all rows give."""
        self._to_double()
        if not np.isfinite(self._classes).all():
            raise ModelError(
                "Some training features are not finite, so the head cannot start from them: check the weights of the "
                "backbone."
            )
        folds = [self._of_fold(fold) for fold in range(len(self._items))]
        return FeaturePass(folds, self.shift, self._samples, self._class_ids[self._kept], self._fold_of_class)

    def _of_fold(self, fold: int) -> Moments:
        second, classes = self._second[fold], np.flatnonzero((self._fold_of_class == fold) & (self._counts > 0))
        if not np.isfinite(second).all():
            raise ModelError("The training features are too large to start from: scale them down.")
        second = second + second.T  # of an upper triangle
        second[np.diag_indices_from(second)] /= 2
        of_classes = self._classes[classes]
        means = of_classes / np.sqrt(self._counts[classes])[:, None].astype(np.float32)
        between = (means.T @ means).astype(np.float64)
        return Moments(int(self._items[fold]), of_classes.sum(axis=0, dtype=np.float64), second, between)


def _sample(class_ids: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Positions of at most `_SAMPLE` items, as many of each class as of any other, pairs at least."""
    per_class = max(2, _SAMPLE // max(1, len(counts)))
    shuffled = np.lexsort((rng.random(len(class_ids)), class_ids))
    rank = np.arange(len(class_ids)) - (np.cumsum(counts) - counts)[class_ids[shuffled]]
    classes = rng.permutation(len(counts))[: _SAMPLE // per_class]
    return shuffled[(rank < per_class) & np.isin(class_ids[shuffled], classes)]


def _is_flat(covariance: np.ndarray, of: np.ndarray, share: float) -> bool:
    return float(np.trace(covariance)) <= share * max(float(np.trace(of)), 1e-300)
