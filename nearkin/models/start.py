"""Where a head starts: within-class whitening and principal components of the training features.

With mean mu, within-class covariance W and A A^T = (W + r tr(W)/F I)^-1, the head is the top d principal components of
(x - mu) A, scaled to unit mean norm. The ridge r and the size d are chosen by leaving training classes out.
Derivation: docs/methods/start.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.linalg import cholesky, eigh, solve_triangular
from scipy.linalg.blas import strmm
from scipy.linalg.lapack import dsygst, ssygst, strtri
from torch import Tensor

from nearkin.checks import is_real, is_whole
from nearkin.errors import ModelError
from nearkin.metrics import retrieval_metrics
from nearkin.models.moments import FeaturePass, Moments, sum_features
from nearkin.spaces import LipschitzBall, PoincareBall, Space, Sphere

Kind = Literal["whitened", "pca"]
Dimension = int | Literal["auto"]

MEASURES = {"P@1": "precision", "MAP@R": "map_at_r"}
"""What starts are judged by, and what a trial calls it."""
DIMENSIONS = (64, 128, 256, 512)
"""Sizes that "auto" weighs against all F of the features."""
RIDGES = (0.3, 1.0, 3.0, 10.0)
STRONG_RIDGES = (30.0, 100.0)
"""Tried besides where there are fewer items than features."""
DAMPINGS = (0.0, 0.5)
"""Powers by which components that vary more than the mean component are brought towards it; 0 leaves them alone."""

_TOLERANCE = 0.005
"""What a smaller size may cost of each measure."""
_FOLDS = 3
"""Folds of the classes, at the most."""
_ITEMS_A_DIMENSION, _DIMENSIONS_A_CLASS = 4, 1
"""Items for each dimension of a projection, and dimensions for each class: fewer items or classes cannot tell which
directions unseen classes need."""
_SMALLEST = 2e-3
"""Deviation of a direction, relative to the first one's, below which it is rounding."""
_TINY = float(np.finfo(np.float32).tiny)
_NO_CHOICE = 10.0
"""The ridge where there are too few classes to leave any out."""
_MOST_DIMENSIONS = 65536
_MOST_RIDGE = 1e6
"""Far beyond what still changes the map: it is that of principal components."""
_TOO_UNEQUAL = (
    "The training features differ too much in size for the head to start from them: look for an item whose features "
    "are about 100,000 times larger than the others', or more, or set model.head_start to random."
)
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

    @property
    def rank(self) -> int:
        """How many of the dimensions do not start at 0."""
        return int((self.weight != 0).any(dim=1).sum())

    def to_dict(self) -> dict[str, Any]:
        """All but the weights, as JSON can hold it."""
        return {
            "layer": self.layer,
            "kind": self.kind,
            "dimension": self.dimension,
            "rank": self.rank,
            "features": self.weight.shape[1],
            "ridge": self.ridge,
            "damping": self.damping,
            "trials": [asdict(trial) for trial in self.trials],
            "notes": list(self.notes),
        }


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

    Memory is that of a few matrices (F, F), of the sums of the classes (C, F), of a sample of the items, and of a few
    dozen bytes for each item.

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
    to_choose = dimension == "auto" or (kind == "whitened" and ridge is None)
    summed = sum_features(chunks, class_ids, _FOLDS if to_choose else 1, seed)
    notes = []
    if kind == "whitened" and not summed.whole.can_whiten:
        kind = "pca"
        notes.append("No training class has two items that differ, so the features were not whitened.")
    try:
        best, trials, of_choice = _choose(summed, kind, dimension, ridge, space)
        size = best.dimension if dimension == "auto" else int(dimension)
        weight, bias, of_layer = _layer(summed, best, size, space)
    except np.linalg.LinAlgError as error:
        raise ModelError(_TOO_UNEQUAL) from error
    return HeadStart(weight, bias, kind, best.ridge, best.damping, trials, (*notes, *of_choice, *of_layer))


def _choose(
    summed: FeaturePass, kind: Kind, dimension: Dimension, ridge: float | None, space: Space
) -> tuple[Trial, tuple[Trial, ...], list[str]]:
    """Size, ridge and damping, the trials that they were chosen by, and what to say of it."""
    items, notes = summed.whole.count, []
    ridges = _ridges(kind, ridge, fewer_items=items < summed.width)
    sizes = _sizes(dimension, summed.width, items, summed.classes)
    trials = _trials(summed, sizes, ridges, space)
    if trials:
        best = _smallest(trials)
    else:
        best = Trial(sizes[-1], ridges[0] if len(ridges) == 1 else _NO_CHOICE, 0.0, 0.0, 0.0, 0)
        if len(sizes) * len(ridges) > 1:
            notes.append("There are too few training classes with two items to leave some out, so nothing was chosen.")
    if dimension == "auto" and len(sizes) == 1 and summed.width > DIMENSIONS[0]:
        notes.append(
            f"{summed.classes} class{'es' * (summed.classes > 1)} with {items} items are too few to choose fewer than "
            f"{summed.width} dimensions."
        )
    return best, trials, notes


def _check_arguments(
    class_ids: np.ndarray, kind: str, dimension: Dimension, ridge: float | None, space: Space, seed: int
) -> None:
    found = np.unique(class_ids)
    if class_ids.ndim != 1 or class_ids.dtype.kind not in "iu" or not np.array_equal(found, np.arange(len(found))):
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
    if ridge is not None and (not is_real(ridge) or not 0 <= ridge <= _MOST_RIDGE):
        raise ModelError(f"ridge must be a number from 0 to {_MOST_RIDGE:,.0f}, not {ridge!r}.")
    if not is_whole(seed) or seed < 0:
        raise ModelError(f"seed must be a whole number from 0, not {seed!r}.")


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


def _trials(summed: FeaturePass, sizes: list[int], ridges: tuple[float | None, ...], space: Space) -> tuple[Trial, ...]:
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
        if ridges != (None,) and not others.can_whiten:
            continue  # nothing to whiten by
        for key, embedded in _embeddings(summed.sample[rows], others, sizes, ridges, dampings):
            scaled = torch.from_numpy(embedded / _length(embedded, space))
            result = retrieval_metrics(space.project(scaled).numpy(), labels, space=space)
            found.setdefault(key, []).append((result.values["P@1"], result.values["MAP@R"], len(result.labels)))
    trials = []
    for key, folds in found.items():
        table = np.array(folds)
        precision, map_at_r = np.average(table[:, :2], axis=0, weights=table[:, 2])
        trials.append(Trial(*key, float(precision), float(map_at_r), int(table[:, 2].sum())))
    return tuple(_best([trial for trial in trials if trial.dimension == size]) for size in sizes if trials)


def _embeddings(
    points: np.ndarray,
    moments: Moments,
    sizes: list[int],
    ridges: tuple[float | None, ...],
    dampings: tuple[float, ...],
) -> Iterator[tuple[tuple[int, float | None, float], np.ndarray]]:
    """Points (n, F) as heads from these moments embed them, for each size, ridge and damping.

    One decomposition serves all ridges: in its directions S, as `basis` whitens it for the ridge in the middle, is the
    identity, and for another ridge the identity and a multiple of `gram`. Principal components of other ridges are the
    best within the first `_BASIS` x d, by Rayleigh and Ritz; beyond the items' rank there are none. All F directions
    together compare alike however they are rotated. Single precision is enough to choose by.
    """
    width, smaller = len(moments.sum), [size for size in sizes if size < len(moments.sum)]
    most = min(smaller[-1], moments.count - 1) if smaller else 0
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
            whitened, usual = strmm(1.0, inverse, seen.T, lower=1).T, ((inverse**2).sum(axis=0) * values).mean()
            half = inverse[:kept, :kept] * np.sqrt(values[:kept])
            variances, vectors = _eigen(half @ half.T, most)
            components = whitened[:, :kept] @ vectors
        for size in sizes[len(smaller) :]:
            yield (size, ridge, 0.0), whitened
        for damping in dampings:
            damped = components * _scales(variances[:most], usual, damping, moments.count)
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


def _scales(variances: np.ndarray, usual: float, damping: float, items: int) -> np.ndarray:
    """What components with these variances (n,) are multiplied by: less for more than the usual variance.

    Those in which no item varies could be any, and get 0.
    """
    usual = max(float(usual), _TINY)
    known = np.sqrt(variances) > _SMALLEST * np.sqrt(variances[:1])
    known[items - 1 :] = False
    return np.where(known, (usual / np.maximum(variances, usual)) ** (damping / 2), 0)


def _best(trials: list[Trial]) -> Trial:
    """Of one size; of equals the undamped one with the largest ridge, which is nearest to raw features."""
    return max(trials, key=lambda trial: (trial.precision + trial.map_at_r, -trial.damping, trial.ridge or 0.0))


def _smallest(trials: Sequence[Trial]) -> Trial:
    """The smallest size, of trials of ascending sizes, that is about as good as the best in each measure.

    Half a point is meant where half of the queries fail. A few left-out classes are an easier task, on which
    differences shrink, and the tolerance with them.
    """
    least = {}
    for name in MEASURES.values():
        best = max(getattr(trial, name) for trial in trials)
        least[name] = best - min(_TOLERANCE, 2 * _TOLERANCE * (1 - best))
    near = [trial for trial in trials if all(getattr(trial, name) >= value for name, value in least.items())]
    return near[0] if near else _best(list(trials))


def _length(points: np.ndarray, space: Space) -> float:
    """What points (n, d) are divided by: their mean norm, or the largest where longer ones would be clipped."""
    norms = np.linalg.norm(points, axis=1)
    return max(float(norms.max() if isinstance(space, LipschitzBall) else norms.mean()), 1e-12)


def _layer(summed: FeaturePass, chosen: Trial, size: int, space: Space) -> tuple[Tensor, Tensor, list[str]]:
    """Weight (d, F) and bias (d,) of the layer, and what to say of it."""
    whole, covariance, notes = summed.whole, summed.whole.total, []
    lower = np.eye(summed.width)
    if chosen.ridge is not None:
        lower = cholesky(whole.within + whole.floor(chosen.ridge) * lower, lower=True, check_finite=False)
        covariance, _ = dsygst(covariance, lower, lower=1)  # A^T T A with A = L^-T
    variances, vectors = _eigen(covariance, min(size, summed.width))
    scales = np.ones_like(variances)  # all F together lose nothing, and are not damped
    if size < summed.width:
        scales = _scales(variances, covariance.diagonal().mean(), chosen.damping, whole.count)
    directions = solve_triangular(lower, vectors * scales, lower=True, trans="T", check_finite=False)
    rank = int((directions != 0).any(axis=0).sum())
    if size > summed.width:
        notes.append(
            f"The features have {summed.width} numbers: of the {size} dimensions {size - summed.width} start at 0."
        )
        directions = np.pad(directions, ((0, 0), (0, size - summed.width)))
    elif size > rank:
        notes.append(
            f"The training items give only {rank} of the {size} dimensions: the other {size - rank} start at 0. To "
            "keep all that the features have, set model.dimension to auto (of a convolution, model.local_dimension to "
            f"{summed.width})."
        )
    sample = (summed.sample - whole.mean.astype(np.float32)) @ directions.astype(np.float32)
    directions = directions / _length(sample, space)
    weight, bias = directions.T, -(whole.mean + summed.shift) @ directions
    return torch.from_numpy(np.ascontiguousarray(weight)).float(), torch.from_numpy(bias).float(), notes
