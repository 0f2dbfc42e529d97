"""Where a head starts: within-class whitening and principal components of the training features.

With mean mu, within-class covariance W and A A^T = (W + r tr(W)/F I)^-1, the head is the top d principal components of
(x - mu) A, scaled to unit mean norm. The ridge r and the size d are chosen by leaving training classes out.
Derivation: docs/methods/start.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, reduce
from typing import Any, Literal

import numpy as np
import torch
from scipy.linalg import cholesky, eigh, solve_triangular
from scipy.linalg.blas import ssyrk
from scipy.linalg.lapack import dsygst, ssygst, strtri
from scipy.sparse import csr_matrix
from torch import Tensor

from nearkin.checks import is_real, is_whole
from nearkin.errors import ModelError
from nearkin.metrics import retrieval_metrics
from nearkin.spaces import LipschitzBall, PoincareBall, Space, Sphere

Kind = Literal["whitened", "pca"]
Dimension = int | Literal["auto"]

DIMENSIONS = (64, 128, 256, 512)
"""Sizes that "auto" weighs against all F of the features."""
RIDGES = (0.3, 1.0, 3.0, 10.0)
STRONG_RIDGES = (30.0, 100.0)
"""Tried besides where there are fewer items than features."""
DAMPINGS = (0.0, 0.5)
"""Powers by which components that vary more than the mean component are brought towards it; 0 leaves them alone."""

_MEASURES = ("precision", "map_at_r")
_TOLERANCE = 0.005
"""What a smaller size may cost of each measure."""
_FOLDS, _MANY_CLASSES = 3, 500
"""Folds of the classes; from so many classes on two, either of which leaves enough to learn from."""
_ITEMS_A_DIMENSION, _DIMENSIONS_A_CLASS = 4, 1
"""Items for each dimension of a projection, and dimensions for each class: fewer items or classes cannot tell which
directions unseen classes need."""
_SAMPLE = 2048
_CONSTANT = 1e-10
_FLAT = 1e-6
"""Shares of a variance below which nothing is left but the rounding of sums in single precision."""
_FLOOR = 1e-5
_SMALLEST = 2e-3
"""Deviation of a direction, relative to the first one's, below which it is rounding."""
_NO_CHOICE = 10.0
"""The ridge where there are too few classes to leave any out."""
_MOST_DIMENSIONS = 65536
_TOO_UNEQUAL = (
    "The training features differ too much in size for the head to start from them: look for an item whose features "
    "are about 100,000 times larger than the others', or more, or set model.head_start to random."
)
_SINGLE = 16
"""Chunks whose products are added in single precision before they go to double."""
_BASIS = 1.25
"""Directions that trials of other ridges choose from, for each that they need."""


@dataclass(frozen=True)
class Trial:
    """What left-out training classes gave for one size, with the ridge and the damping that suit it best.

    Attributes:
        dimension: size of the embedding.
        ridge: r; None with "pca".
        damping: power by which leading components are brought towards the mean one.
        precision: P@1, mean over the left-out queries.
        map_at_r: MAP@R, likewise.
        queries: how many there were.
    """

    dimension: int
    ridge: float | None
    damping: float
    precision: float
    map_at_r: float
    queries: int


@dataclass(frozen=True, eq=False)
class HeadStart:
    """A first linear layer.

    Attributes:
        weight: (d, F).
        bias: (d,).
        kind: how it was made.
        ridge: the ridge r; None with "pca".
        damping: as in `Trial`.
        trials: one for each size that was tried on left-out classes; empty where nothing was to be chosen.
        notes: what a reader must know.
        layer: what the layer is called.
    """

    weight: Tensor
    bias: Tensor
    kind: Kind
    ridge: float | None
    damping: float
    trials: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()
    layer: str = "head"

    @property
    def dimension(self) -> int:
        """Size of the embedding."""
        return len(self.weight)

    def to_dict(self) -> dict[str, Any]:
        """All but the weights, as JSON can hold it."""
        return {
            "layer": self.layer,
            "kind": self.kind,
            "dimension": self.dimension,
            "features": self.weight.shape[1],
            "ridge": self.ridge,
            "damping": self.damping,
            "trials": [asdict(trial) for trial in self.trials],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, eq=False)
class _Moments:
    """Count, sum (F,), second moment (F, F), and the second moment of class means weighted by their items."""

    count: int
    sum: np.ndarray
    second: np.ndarray
    between: np.ndarray

    def plus(self, other: _Moments) -> _Moments:
        """These and those of `other`."""
        return _Moments(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def minus(self, other: _Moments) -> _Moments:
        """These without those of `other`."""
        return _Moments(*(getattr(self, name) - getattr(other, name) for name in self.__dataclass_fields__))

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

    def floor(self, ridge: float | None) -> float:
        """What is added to the variance of each direction within classes; 1 where nothing is whitened."""
        if ridge is None:
            return 1.0
        return (ridge * float(np.trace(self.within)) + _FLOOR * float(np.trace(self.total))) / len(self.sum)


@dataclass
class _Pass:
    """What one pass over the features leaves: moments of each fold of classes, and a sample of the items."""

    folds: list[_Moments]
    shift: np.ndarray
    sample: np.ndarray
    """Features (n, F) less the shift."""
    sample_classes: np.ndarray
    fold_of_class: np.ndarray
    width: int = field(init=False)

    def __post_init__(self) -> None:
        self.width = len(self.shift)

    @cached_property
    def whole(self) -> _Moments:
        """The moments of all items."""
        return reduce(_Moments.plus, self.folds)


def fit_start(
    chunks: Iterable[tuple[Tensor, np.ndarray]],
    class_ids: np.ndarray,
    *,
    kind: Kind = "whitened",
    dimension: Dimension = "auto",
    ridge: float | None = None,
    space: Space | None = None,
    seed: int = 0,
) -> HeadStart:
    """The first weights of a head, from one pass over the features of the training items.

    Memory is that of a few matrices (F, F), of the sums of the classes (C, F) and of a sample of the items.

    Args:
        chunks: features (n, F) and the positions (n,) of their items; every item once, in any order.
        class_ids: class of each item as 0 ... C - 1, (N,).
        kind: "whitened", or "pca" for principal components alone.
        dimension: d; "auto": the smallest of `DIMENSIONS` and F that costs less than half a point of P@1 and MAP@R; no
            more of `DIMENSIONS` than there are classes, nor than a quarter of the items.
        ridge: r; None: the best of `RIDGES`. Both are judged on training classes that the map has not seen.
        space: where embeddings are compared; None: the sphere.
        seed: of the folds and of the sample.

    Raises:
        ModelError: if the features are not finite or all the same, or if an argument is wrong.
    """
    space = Sphere() if space is None else space
    class_ids = np.asarray(class_ids)
    _check_arguments(class_ids, kind, dimension, ridge, space, seed)
    chosen_needed = dimension == "auto" or (kind == "whitened" and ridge is None)
    summed = _one_pass(chunks, class_ids, _FOLDS if chosen_needed else 1, seed)
    whole, notes = summed.whole, []
    if kind == "whitened" and _is_flat(whole.within, whole.total, _FLAT):
        kind = "pca"
        notes.append("No training class has two items that differ, so the features were not whitened.")
    ridges = _ridges(kind, ridge, fewer_items=whole.count < summed.width)
    sizes = _sizes(dimension, summed.width, whole.count, len(summed.fold_of_class))
    try:
        trials = _trials(summed, sizes, ridges, space)
    except np.linalg.LinAlgError as error:
        raise ModelError(_TOO_UNEQUAL) from error
    if trials:
        best = _smallest(trials)
    else:
        best = Trial(sizes[-1], ridges[0] if len(ridges) == 1 else _NO_CHOICE, 0.0, 0.0, 0.0, 0)
        if len(sizes) * len(ridges) > 1:
            notes.append("There are too few training classes with two items to leave some out, so nothing was chosen.")
    if dimension == "auto" and len(sizes) == 1 and summed.width > DIMENSIONS[0]:
        classes = len(summed.fold_of_class)
        notes.append(
            f"{classes} class{'es' * (classes > 1)} with {whole.count} items are too few to choose fewer than "
            f"{summed.width} dimensions."
        )
    size = best.dimension if dimension == "auto" else int(dimension)
    try:
        weight, bias, more = _layer(summed, best, size, space)
    except np.linalg.LinAlgError as error:
        raise ModelError(_TOO_UNEQUAL) from error
    return HeadStart(weight, bias, kind, best.ridge, best.damping, trials, (*notes, *more))


def _check_arguments(
    class_ids: np.ndarray, kind: str, dimension: Dimension, ridge: float | None, space: Space, seed: int
) -> None:
    if class_ids.ndim != 1 or class_ids.dtype.kind not in "iu" or not _is_complete(class_ids):
        raise ModelError("class_ids must be whole numbers 0 ... C - 1 without gaps, one for each item.")
    if kind not in ("whitened", "pca"):
        raise ModelError(f"kind must be 'whitened' or 'pca', not {kind!r}.")
    if not isinstance(space, Space):
        raise ModelError(f"space must be one of nearkin.spaces, not {space!r}.")
    if isinstance(space, PoincareBall):
        raise ModelError("A linear layer cannot start from data in the Poincaré ball: choose another space.")
    if dimension != "auto" and (not is_whole(dimension) or not 1 <= dimension <= _MOST_DIMENSIONS):
        raise ModelError(
            f"dimension must be a whole number from 1 to {_MOST_DIMENSIONS}, or 'auto', not {dimension!r}."
        )
    if ridge is not None and (not is_real(ridge) or not 0 <= ridge < math.inf):
        raise ModelError(f"ridge must be a finite number from 0, not {ridge!r}.")
    if not is_whole(seed) or seed < 0:
        raise ModelError(f"seed must be a whole number from 0, not {seed!r}.")


def _is_complete(class_ids: np.ndarray) -> bool:
    """Whether every class 0 ... C - 1 has an item."""
    found = np.unique(class_ids)
    return len(found) == 0 or bool(found[0] == 0 and found[-1] == len(found) - 1)


def _ridges(kind: Kind, ridge: float | None, fewer_items: bool) -> tuple[float | None, ...]:
    if kind == "pca":
        return (None,)
    if ridge is not None:
        return (float(ridge),)
    return RIDGES + STRONG_RIDGES if fewer_items else RIDGES


def _sizes(dimension: Dimension, width: int, items: int, classes: int) -> list[int]:
    """The sizes to try, ascending; the last one is the safest."""
    if dimension != "auto":
        return [min(int(dimension), width)]
    most = min(items // _ITEMS_A_DIMENSION, classes * _DIMENSIONS_A_CLASS, width - 1)
    return [size for size in DIMENSIONS if size <= most] + [width]


def _one_pass(chunks: Iterable[tuple[Tensor, np.ndarray]], class_ids: np.ndarray, most_folds: int, seed: int) -> _Pass:
    counts = np.bincount(class_ids)
    folds = max(1, min(most_folds, len(counts) // 2 if len(counts) < _MANY_CLASSES else 2))
    rng = np.random.default_rng([seed, len(counts)])
    fold_of_class = rng.permutation(np.arange(len(counts)) % folds)
    kept = _sample(class_ids, counts, rng)
    place = np.full(len(class_ids), -1)
    place[kept] = np.arange(len(kept))
    sums: _FeatureSums | None = None
    seen = np.zeros(len(class_ids), dtype=bool)
    # NumPy alone: after each operation of PyTorch its threads spin for a while, and those of NumPy wait for a core.
    for chunk in chunks:
        features, positions = _pair(chunk)
        if not len(positions):
            continue
        rows = torch.as_tensor(features).detach().float().cpu().numpy()
        if rows.ndim != 2 or len(rows) != len(positions) or rows.shape[1] == 0:
            raise ModelError(f"A chunk has features {rows.shape} and {len(positions)} positions: give one each.")
        if sums is not None and rows.shape[1] != len(sums.shift):
            raise ModelError(f"A chunk has features of {rows.shape[1]} numbers, the one before {len(sums.shift)}.")
        positions = np.asarray(positions)
        _check_positions(positions, seen)
        if sums is None:
            with np.errstate(invalid="ignore", over="ignore"):  # said later, in words
                shift = rows.mean(axis=0)
            sums = _FeatureSums(shift, folds, len(counts))
            sample = np.zeros((len(kept), rows.shape[1]), dtype=np.float32)
        of_fold = fold_of_class[class_ids[positions]]
        order = np.argsort(of_fold, kind="stable")
        positions = positions[order]
        rows = np.take(rows, order, axis=0, mode="clip")  # a copy
        with np.errstate(invalid="ignore", over="ignore"):
            rows -= sums.shift
        sums.add(rows, class_ids[positions], np.bincount(of_fold, minlength=folds))
        there = place[positions] >= 0
        sample[place[positions][there]] = rows[there]
    if sums is None:
        raise ModelError("There are no training features for the head to start from.")
    if not seen.all():
        raise ModelError(f"The chunks have {seen.sum()} items and class_ids {len(class_ids)}: give every item once.")
    summed = _Pass(sums.moments(fold_of_class, counts), sums.shift, sample, class_ids[kept], fold_of_class)
    if _is_flat(summed.whole.total, np.outer(summed.shift, summed.shift), _CONSTANT):
        raise ModelError(
            "The training features are the same for every item, or so nearly the same beside their mean that rounding "
            "could make the difference: check the backbone's weights and the data, take the mean from features of your "
            "own, or set model.head_start to random."
        )
    return summed


def _pair(chunk: Any) -> tuple[Any, Any]:
    """The features of a chunk and the positions of their items."""
    if not isinstance(chunk, tuple | list) or len(chunk) != 2 or not all(hasattr(part, "__len__") for part in chunk):
        raise ModelError("Each chunk must be a pair: features (n, F), and the positions (n,) of their items.")
    return chunk[0], chunk[1]


def _check_positions(positions: np.ndarray, seen: np.ndarray) -> None:
    """Refuse positions that are no items, or of items that came before; note these."""
    if positions.dtype.kind not in "iu" or positions.min() < 0 or positions.max() >= len(seen):
        raise ModelError(f"Positions of items must be whole numbers from 0 to {len(seen) - 1}.")
    if seen[positions].any() or len(np.unique(positions)) < len(positions):
        raise ModelError("A position comes twice: give every item once.")
    seen[positions] = True


class _FeatureSums:
    """Adds up rows of features less a shift: their classes' sums (C, F), and of each fold the second moment (F, F)."""

    def __init__(self, shift: np.ndarray, folds: int, classes: int) -> None:
        width = len(shift)
        self.shift = shift
        self.counts = np.zeros(folds, dtype=np.int64)
        self._classes = np.zeros((classes, width), dtype=np.float32)
        self._second = [np.zeros((width, width), order="F") for _ in range(folds)]
        self._recent = [np.zeros((width, width), dtype=np.float32, order="F") for _ in range(folds)]
        self._chunks = 0

    def add(self, rows: np.ndarray, classes: np.ndarray, of_each_fold: np.ndarray) -> None:
        """Add rows (n, F) that stand in the order of their folds."""
        ones = np.ones(len(rows), dtype=np.float32)
        table = csr_matrix((ones, (classes, np.arange(len(rows)))), shape=(len(self._classes), len(rows)))
        self._classes += table @ rows
        self.counts += of_each_fold
        last = np.cumsum(of_each_fold)
        for fold, (first, end) in enumerate(zip(last - of_each_fold, last, strict=True)):
            if end > first:  # the upper triangle of the sum of outer products
                part = rows[first:end].T
                self._recent[fold] = ssyrk(1.0, part, beta=1.0, c=self._recent[fold], overwrite_c=True)
        self._chunks += 1
        if self._chunks % _SINGLE == 0:
            self._to_double()

    def _to_double(self) -> None:
        for second, recent in zip(self._second, self._recent, strict=True):
            second += recent
            recent[:] = 0.0

    def moments(self, fold_of_class: np.ndarray, counts: np.ndarray) -> list[_Moments]:
        """Of each fold."""
        self._to_double()
        if not np.isfinite(self._classes).all():
            raise ModelError(
                "Some training features are not finite, so the head cannot start from them: check the weights of the "
                "backbone, or set model.cache_dtype to float32."
            )
        return [
            self._of_fold(fold, np.flatnonzero((fold_of_class == fold) & (counts > 0)), counts)
            for fold in range(len(self.counts))
        ]

    def _of_fold(self, fold: int, classes: np.ndarray, counts: np.ndarray) -> _Moments:
        second = self._second[fold]
        if not np.isfinite(second).all():
            raise ModelError("The training features are too large to start from: scale them down.")
        second = second + second.T  # of an upper triangle
        second[np.diag_indices_from(second)] /= 2
        of_classes = self._classes[classes]
        means = of_classes / np.sqrt(counts[classes])[:, None].astype(np.float32)
        between = (means.T @ means).astype(np.float64)
        return _Moments(int(self.counts[fold]), of_classes.sum(axis=0, dtype=np.float64), second, between)


def _sample(class_ids: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Positions of at most `_SAMPLE` items, as many of each class as of any other, pairs at least."""
    per_class = max(2, _SAMPLE // max(1, len(counts)))
    shuffled = np.lexsort((rng.random(len(class_ids)), class_ids))
    rank = np.arange(len(class_ids)) - (np.cumsum(counts) - counts)[class_ids[shuffled]]
    classes = rng.permutation(len(counts))[: _SAMPLE // per_class]
    return shuffled[(rank < per_class) & np.isin(class_ids[shuffled], classes)]


def _is_flat(covariance: np.ndarray, of: np.ndarray, share: float) -> bool:
    return float(np.trace(covariance)) <= share * max(float(np.trace(of)), 1e-300)


def _trials(summed: _Pass, sizes: list[int], ridges: tuple[float | None, ...], space: Space) -> tuple[Trial, ...]:
    """The best ridge and damping for each size; none where nothing is to be chosen, or no classes can be left out."""
    smaller = [size for size in sizes if size < summed.width]
    # Where all F directions are kept, damping some costs as much as finding them, and never paid.
    dampings = DAMPINGS if len(ridges) > 1 and smaller else (0.0,)
    if len(summed.folds) < 2 or len(sizes) * len(ridges) * len(dampings) == 1:
        return ()
    found: dict[tuple[int, float | None, float], list[tuple[float, float, int]]] = {}
    for number, fold in enumerate(summed.folds):
        rows = np.flatnonzero(summed.fold_of_class[summed.sample_classes] == number)
        labels = summed.sample_classes[rows]
        if len(np.unique(labels)) == len(labels):
            continue  # no class has a pair to find
        others = summed.whole.minus(fold)
        if ridges != (None,) and _is_flat(others.within, others.total, _FLAT):
            continue  # nothing to whiten by
        for key, embedded in _embeddings(summed.sample[rows], others, sizes, ridges, dampings):
            result = retrieval_metrics(_in(space, embedded), labels, space=space)
            found.setdefault(key, []).append((result.values["P@1"], result.values["MAP@R"], len(result.labels)))
    trials = [Trial(*key, *_mean(rows)) for key, rows in found.items()]
    return tuple(_best([trial for trial in trials if trial.dimension == size]) for size in sizes if trials)


def _embeddings(
    points: np.ndarray,
    moments: _Moments,
    sizes: list[int],
    ridges: tuple[float | None, ...],
    dampings: tuple[float, ...],
) -> Iterator[tuple[tuple[int, float | None, float], np.ndarray]]:
    """Points (n, F) as heads from these moments embed them, for each size, ridge and damping.

    One decomposition serves all ridges: in its directions S, as `basis` whitens it for the ridge in the middle, is the
    identity, and for another ridge the identity and a multiple of `gram`. Principal components of other ridges are the
    best within the first `_BASIS` x d, by Rayleigh and Ritz. All F directions together compare alike however they are
    rotated. Single precision is enough to choose by.
    """
    width, smaller = len(moments.sum), [size for size in sizes if size < len(moments.sum)]
    most = smaller[-1] if smaller else 0
    kept = min(width, math.ceil(_BASIS * most))
    middle = ridges[(len(ridges) - 1) // 2]
    floor = moments.floor(middle)
    covariance, lower = moments.total.astype(np.float32), np.eye(width, dtype=np.float32)
    if middle is not None:
        lower = cholesky(moments.within.astype(np.float32) + floor * lower, lower=True, check_finite=False)
        covariance, _ = ssygst(covariance, lower, lower=1)
    values, vectors = _eigen(covariance)
    basis = solve_triangular(lower, vectors, lower=True, trans="T", check_finite=False)
    gram, seen = basis.T @ basis, (points - moments.mean.astype(np.float32)) @ basis
    for ridge in ridges:
        whitened, variances, usual = seen, values, values.mean()
        components = seen[:, :most]
        if ridge != middle:
            change = np.eye(width, dtype=np.float32) + np.float32(moments.floor(ridge) - floor) * gram
            inverse, _ = strtri(cholesky(change, lower=True, check_finite=False), lower=1)
            whitened, usual = seen @ inverse.T, ((inverse**2).sum(axis=0) * values).mean()
            half = inverse[:kept, :kept] * np.sqrt(values[:kept])
            variances, vectors = _eigen(half @ half.T, most)
            components = whitened[:, :kept] @ vectors
        for size in sizes[len(smaller) :]:
            yield (size, ridge, 0.0), whitened
        for damping in dampings:
            damped = components * _damp(variances[:most], usual, damping)
            yield from (((size, ridge, damping), damped[:, :size]) for size in smaller)


def _eigen(matrix: np.ndarray, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues, from 0, of a symmetric matrix (F, F) in descending order, and their vectors (F, n).

    Only its lower triangle is read.
    """
    width = len(matrix)
    count = width if most is None else most
    # SciPy's: PyTorch's gives up on some matrices with many equal eigenvalues, as fewer items than features have.
    # Divide and conquer finds all of them, and is the faster one unless few are wanted.
    some: dict[str, Any] = {"driver": "evd"}
    if 3 * count < width:
        some = {"driver": "evr", "subset_by_index": (width - count, width - 1)}
    values, vectors = eigh(matrix, check_finite=False, **some)
    return np.maximum(values[-count:][::-1], 0.0), vectors[:, -count:][:, ::-1]


def _damp(variances: np.ndarray, usual: float, damping: float) -> np.ndarray:
    """What components with these variances (n,) are multiplied by: less for more than the usual variance."""
    usual = max(float(usual), 0.0)
    if damping == 0 or usual == 0:
        return np.full_like(variances, 0.0 if damping else 1.0)
    return (usual / np.maximum(variances, usual)) ** (damping / 2)


def _best(trials: list[Trial]) -> Trial:
    """Of one size; of equals the undamped one with the largest ridge, which is nearest to raw features."""
    return max(trials, key=lambda trial: (trial.precision + trial.map_at_r, -trial.damping, trial.ridge or 0.0))


def _smallest(trials: Sequence[Trial]) -> Trial:
    """The smallest size, of trials of ascending sizes, that is about as good as the best in each measure.

    Half a point is meant where half of the queries fail. A few left-out classes are an easier task, on which
    differences shrink, and the tolerance with them.
    """
    least = {}
    for name in _MEASURES:
        best = max(getattr(trial, name) for trial in trials)
        least[name] = best - min(_TOLERANCE, 2 * _TOLERANCE * (1 - best))
    near = [trial for trial in trials if all(getattr(trial, name) >= value for name, value in least.items())]
    return near[0] if near else _best(list(trials))


def _in(space: Space, points: np.ndarray) -> np.ndarray:
    """Points of the space, scaled to fit."""
    return space.project(torch.from_numpy(points / _length(points, space))).numpy()


def _length(points: np.ndarray, space: Space) -> float:
    """What points (n, d) are divided by: their mean norm, or the largest where longer ones would be clipped."""
    norms = np.linalg.norm(points, axis=1)
    return max(float(norms.max() if isinstance(space, LipschitzBall) else norms.mean()), 1e-12)


def _mean(rows: list[tuple[float, float, int]]) -> tuple[float, float, int]:
    table = np.array(rows)
    precision, map_at_r = np.average(table[:, :2], axis=0, weights=table[:, 2])
    return float(precision), float(map_at_r), int(table[:, 2].sum())


def _layer(summed: _Pass, chosen: Trial, size: int, space: Space) -> tuple[Tensor, Tensor, list[str]]:
    """Weight (d, F) and bias (d,) of the layer, and what to say of it."""
    whole, covariance, notes = summed.whole, summed.whole.total, []
    lower = np.eye(summed.width)
    if chosen.ridge is not None:
        lower = cholesky(whole.within + whole.floor(chosen.ridge) * lower, lower=True, check_finite=False)
        covariance, _ = dsygst(covariance, lower, lower=1)  # A^T T A with A = L^-T
    variances, vectors = _eigen(covariance, min(size, summed.width))
    scales = _damp(variances, covariance.diagonal().mean(), chosen.damping)
    if size < summed.width:
        # All F together lose nothing; of fewer, directions in which no item varies would be any.
        known = np.sqrt(variances) > _SMALLEST * np.sqrt(variances[0])
        known[whole.count - 1 :] = False
        scales = np.where(known, scales, 0.0)
    directions = solve_triangular(lower, vectors * scales, lower=True, trans="T", check_finite=False)
    rank = int((directions != 0).any(axis=0).sum())
    if size > rank:
        notes.append(
            f"The training features give only {rank} of the {size} dimensions: the other {size - rank} start at 0."
        )
        directions = np.pad(directions, ((0, 0), (0, size - directions.shape[1])))
    sample = (summed.sample - whole.mean.astype(np.float32)) @ directions.astype(np.float32)
    directions = directions / _length(sample, space)
    weight, bias = directions.T, -(whole.mean + summed.shift) @ directions
    return torch.from_numpy(np.ascontiguousarray(weight)).float(), torch.from_numpy(bias).float(), notes
