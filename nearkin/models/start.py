"""Where a head starts: within-class whitening and principal components of the training features.

With mean mu, within-class covariance W and A A^T = (W + r tr(W)/F I)^-1, the head is the top d principal components of
(x - mu) A, scaled to unit mean norm. The ridge r and the size d are chosen by leaving training classes out.
Derivation: docs/methods/start.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from scipy.linalg import eigh
from torch import Tensor

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
_FOLDS = 3
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


class _Moments:
    """Count, sum, second moment, and the second moment of class means weighted by their items."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self.sum = torch.zeros(width, dtype=torch.float64)
        self.second = torch.zeros(width, width, dtype=torch.float64)
        self.between = torch.zeros(width, width, dtype=torch.float64)

    def plus(self, other: _Moments, sign: int = 1) -> _Moments:
        """These and those of `other`; with sign -1, these without them."""
        both = _Moments(0)
        both.count = self.count + sign * other.count
        both.sum, both.second, both.between = (
            getattr(self, name) + sign * getattr(other, name) for name in ("sum", "second", "between")
        )
        return both

    def mean(self) -> Tensor:
        """The mean (F,)."""
        return self.sum / self.count

    def total(self) -> Tensor:
        """The covariance (F, F)."""
        mean = self.mean()
        return self.second / self.count - torch.outer(mean, mean)

    def within(self) -> Tensor:
        """The pooled within-class covariance (F, F)."""
        return (self.second - self.between) / self.count


@dataclass
class _Pass:
    """What one pass over the features leaves: moments of each fold of classes, and a sample of the items."""

    folds: list[_Moments]
    shift: Tensor
    sample: Tensor
    """Features (n, F) less the shift."""
    sample_classes: np.ndarray
    fold_of_class: np.ndarray
    width: int = field(init=False)

    def __post_init__(self) -> None:
        self.width = len(self.shift)

    def whole(self) -> _Moments:
        """The moments of all items."""
        moments = self.folds[0]
        for fold in self.folds[1:]:
            moments = moments.plus(fold)
        return moments


@dataclass(frozen=True)
class _Whitened:
    """Features less their mean, times a matrix that whitens them within classes; by no ridge, as they are."""

    mean: Tensor
    matrix: Tensor
    covariance: Tensor
    """Of the training items once they are whitened, (F, F)."""

    @classmethod
    def of(cls, moments: _Moments, ridge: float | None, dtype: torch.dtype) -> _Whitened:
        """By the inverse of W + r tr(W)/F I."""
        total, identity = moments.total().to(dtype), torch.eye(len(moments.sum), dtype=dtype)
        if ridge is None:
            return cls(moments.mean(), identity, total)
        within = moments.within().to(dtype)
        floor = ridge * float(torch.trace(within)) + _FLOOR * float(torch.trace(total))
        lower = torch.linalg.cholesky(within + floor / len(identity) * identity)
        matrix = torch.linalg.solve_triangular(lower, identity, upper=False).T
        return cls(moments.mean(), matrix, matrix.T @ total @ matrix)

    def __call__(self, features: Tensor) -> Tensor:
        return (features - self.mean.to(features)) @ self.matrix.to(features)

    def principal(self, count: int) -> tuple[Tensor, Tensor]:
        """The directions (F, count) in which the items vary most, and their standard deviations (count,)."""
        width = len(self.covariance)
        # SciPy's: PyTorch's gives up on some matrices with many equal eigenvalues, as fewer items than features have.
        found = eigh(
            ((self.covariance + self.covariance.T) / 2).numpy(),
            subset_by_index=(width - count, width - 1),
            driver="evr",
            overwrite_a=True,
            check_finite=False,
        )
        values, vectors = (torch.from_numpy(np.ascontiguousarray(part)).flip(-1) for part in found)
        return vectors, values.clamp(min=0.0).sqrt()

    def damp(self, deviations: Tensor, damping: float) -> Tensor:
        """What components with these deviations (n,) are multiplied by: less for more than the usual deviation."""
        usual = self.covariance.diagonal().mean().clamp(min=0.0).sqrt()
        return (usual / deviations.clamp(min=usual)) ** damping


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
    _check_arguments(class_ids, kind, dimension, ridge, space)
    chosen_needed = dimension == "auto" or (kind == "whitened" and ridge is None)
    summed = _one_pass(chunks, class_ids, _FOLDS if chosen_needed else 1, seed)
    whole, notes = summed.whole(), []
    if kind == "whitened" and _is_flat(whole.within(), whole.total(), _FLAT):
        kind = "pca"
        notes.append("No training class has two items that differ, so the features were not whitened.")
    ridges = _ridges(kind, ridge, fewer_items=whole.count < summed.width)
    sizes = _sizes(dimension, summed.width, whole.count, len(summed.fold_of_class))
    trials = _trials(summed, sizes, ridges, space)
    if trials:
        best = _smallest(trials)
    else:
        best = Trial(sizes[-1], ridges[0] if len(ridges) == 1 else _NO_CHOICE, 0.0, 0.0, 0.0, 0)
        if len(sizes) * len(ridges) > 1:
            notes.append("There are too few training classes with two items to leave some out, so nothing was chosen.")
    if dimension == "auto" and len(sizes) == 1 and summed.width > DIMENSIONS[0]:
        notes.append(
            f"{len(summed.fold_of_class)} classes with {whole.count} items are too few to choose fewer than "
            f"{summed.width} dimensions."
        )
    size = best.dimension if dimension == "auto" else int(dimension)
    weight, bias, more = _layer(summed, whole, best, size, space)
    return HeadStart(weight, bias, kind, best.ridge, best.damping, trials, (*notes, *more))


def _check_arguments(class_ids: np.ndarray, kind: str, dimension: Dimension, ridge: float | None, space: Space) -> None:
    if class_ids.ndim != 1 or class_ids.dtype.kind not in "iu" or (class_ids < 0).any():
        raise ModelError("class_ids must be whole numbers from 0, one for each item.")
    if kind not in ("whitened", "pca"):
        raise ModelError(f"kind must be 'whitened' or 'pca', not {kind!r}.")
    if isinstance(space, PoincareBall):
        raise ModelError("A linear layer cannot start from data in the Poincaré ball: choose another space.")
    if dimension != "auto" and (not isinstance(dimension, int | np.integer) or dimension < 1):
        raise ModelError(f"dimension must be a whole number of at least 1, or 'auto', not {dimension!r}.")
    if ridge is not None and not 0 <= ridge < math.inf:
        raise ModelError(f"ridge must be a finite number from 0, not {ridge!r}.")


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
    folds = max(1, min(most_folds, len(counts) // 2))
    rng = np.random.default_rng([seed, len(counts)])
    fold_of_class = rng.permutation(np.arange(len(counts)) % folds)
    kept = _sample(class_ids, counts, rng)
    place = np.full(len(class_ids), -1)
    place[kept] = np.arange(len(kept))
    summed: _Pass | None = None
    sums = torch.empty(0)
    for features, positions in chunks:
        if not len(positions):
            continue
        features = torch.as_tensor(features).detach().float().cpu()
        if features.ndim != 2 or len(features) != len(positions):
            raise ModelError(
                f"A chunk has features {tuple(features.shape)} and {len(positions)} positions: give one each."
            )
        if summed is None:
            shift = features.mean(dim=0)
            width = len(shift)
            moments = [_Moments(width) for _ in range(folds)]
            summed = _Pass(moments, shift, torch.zeros(len(kept), width), class_ids[kept], fold_of_class)
            sums = torch.zeros(len(counts), width)
        shifted = features - summed.shift
        if not bool(torch.isfinite(shifted.sum())):
            raise ModelError(
                "Some training features are not finite, so the head cannot start from them: check the weights of the "
                "backbone, or set model.cache_dtype to float32."
            )
        ids = torch.from_numpy(np.ascontiguousarray(class_ids[positions]))
        sums.index_add_(0, ids, shifted)
        there = place[positions] >= 0
        summed.sample[torch.from_numpy(place[positions][there])] = shifted[torch.from_numpy(there)]
        of_fold = fold_of_class[class_ids[positions]]
        for number, fold in enumerate(summed.folds):
            rows = shifted if folds == 1 else shifted[torch.from_numpy(of_fold == number)]
            fold.count += len(rows)
            part = rows.numpy()
            with np.errstate(over="ignore"):  # told below
                fold.second += torch.from_numpy(part.T @ part)  # NumPy sees the symmetry, and does half the work
    if summed is None:
        raise ModelError("There are no training features for the head to start from.")
    seen = sum(fold.count for fold in summed.folds)
    if seen != len(class_ids):
        raise ModelError(f"The chunks have {seen} items and class_ids {len(class_ids)}: give every item once.")
    if not all(bool(torch.isfinite(fold.second).all()) for fold in summed.folds):
        raise ModelError("The training features are too large to start from: scale them down.")
    for number, fold in enumerate(summed.folds):
        classes = torch.from_numpy(np.flatnonzero((fold_of_class == number) & (counts > 0)))
        of_classes = sums[classes]
        fold.sum += of_classes.double().sum(dim=0)
        means = of_classes / torch.from_numpy(counts)[classes].sqrt().unsqueeze(1).float()
        fold.between += means.T @ means
    if _is_flat(summed.whole().total(), torch.outer(summed.shift, summed.shift).double(), _CONSTANT):
        raise ModelError(
            "The training features are the same for every item, so there is nothing for the head to start from: check "
            "the backbone's weights and the data, or set model.head_start to random."
        )
    return summed


def _sample(class_ids: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Positions of at most `_SAMPLE` items, as many of each class as of any other, pairs at least."""
    per_class = max(2, _SAMPLE // max(1, len(counts)))
    shuffled = np.lexsort((rng.random(len(class_ids)), class_ids))
    rank = np.arange(len(class_ids)) - (np.cumsum(counts) - counts)[class_ids[shuffled]]
    classes = rng.permutation(len(counts))[: _SAMPLE // per_class]
    return shuffled[(rank < per_class) & np.isin(class_ids[shuffled], classes)]


def _is_flat(covariance: Tensor, of: Tensor, share: float) -> bool:
    return float(torch.trace(covariance)) <= share * max(float(torch.trace(of)), 1e-300)


def _trials(summed: _Pass, sizes: list[int], ridges: tuple[float | None, ...], space: Space) -> tuple[Trial, ...]:
    """The best ridge and damping for each size; none where nothing is to be chosen, or no classes can be left out."""
    smaller = [size for size in sizes if size < summed.width]
    # Where all F directions are kept, damping some costs as much as finding them, and never paid.
    dampings = DAMPINGS if len(ridges) > 1 and smaller else (0.0,)
    if len(summed.folds) < 2 or len(sizes) * len(ridges) * len(dampings) == 1:
        return ()
    whole = summed.whole()
    found: dict[tuple[int, float | None, float], list[tuple[float, float, int]]] = {}
    for number, fold in enumerate(summed.folds):
        rows = np.flatnonzero(summed.fold_of_class[summed.sample_classes] == number)
        labels = summed.sample_classes[rows]
        if len(np.unique(labels)) == len(labels):
            continue  # no class has a pair to find
        left_out, others = summed.sample[torch.from_numpy(rows)], whole.plus(fold, -1)
        if ridges != (None,) and _is_flat(others.within(), others.total(), _FLAT):
            continue  # nothing to whiten by
        for ridge in ridges:
            # Single precision is enough to choose by. All F directions together compare alike however they are rotated.
            whitened = _Whitened.of(others, ridge, torch.float32)
            points = whitened(left_out)
            tried = {(size, 0.0): points for size in sizes if size == summed.width}
            if smaller:
                vectors, deviations = whitened.principal(smaller[-1])
                components = points @ vectors
                for damping in dampings:
                    damped = components * whitened.damp(deviations, damping)
                    tried |= {(size, damping): damped[:, :size] for size in smaller}
            for (size, damping), embedded in tried.items():
                result = retrieval_metrics(_in(space, embedded), labels, space=space)
                value = (result.values["P@1"], result.values["MAP@R"], len(result.labels))
                found.setdefault((size, ridge, damping), []).append(value)
    trials = [Trial(*key, *_mean(rows)) for key, rows in found.items()]
    return tuple(_best([trial for trial in trials if trial.dimension == size]) for size in sizes if trials)


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


def _in(space: Space, points: Tensor) -> np.ndarray:
    """Points of the space, scaled to fit."""
    return space.project(points / _length(points, space)).numpy()


def _length(points: Tensor, space: Space) -> Tensor:
    """What points (n, d) are divided by: their mean norm, or the largest where longer ones would be clipped."""
    norms = points.norm(dim=1)
    return (norms.max() if isinstance(space, LipschitzBall) else norms.mean()).clamp(min=1e-12)


def _mean(rows: list[tuple[float, float, int]]) -> tuple[float, float, int]:
    table = np.array(rows)
    precision, map_at_r = np.average(table[:, :2], axis=0, weights=table[:, 2])
    return float(precision), float(map_at_r), int(table[:, 2].sum())


def _layer(summed: _Pass, whole: _Moments, chosen: Trial, size: int, space: Space) -> tuple[Tensor, Tensor, list[str]]:
    """Weight (d, F) and bias (d,) of the layer, and what to say of it."""
    whitened, notes = _Whitened.of(whole, chosen.ridge, torch.float64), []
    vectors, deviations = whitened.principal(min(size, summed.width))
    scales = whitened.damp(deviations, chosen.damping)
    if size < summed.width:
        # All F together lose nothing; of fewer, directions in which no item varies would be any.
        known = deviations > _SMALLEST * deviations[0]
        known[whole.count - 1 :] = False
        scales = torch.where(known, scales, 0.0)
    directions = whitened.matrix @ vectors * scales
    rank = int((directions != 0).any(dim=0).sum())
    if size > rank:
        notes.append(
            f"The training features give only {rank} of the {size} dimensions: the other {size - rank} stay 0."
        )
        directions = torch.nn.functional.pad(directions, (0, size - directions.shape[1]))
    sample = (summed.sample.double() - whitened.mean) @ directions
    directions = directions / _length(sample, space)
    mean = whitened.mean + summed.shift.double()
    return directions.T.float().contiguous(), -(mean @ directions).float(), notes
