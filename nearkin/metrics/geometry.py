"""The shape of an embedding: how far classes lie apart, how widely each spreads, and in how many directions.

How far classes lie apart, and how widely each spreads: measures that need of each class its size, mean and spread.
With mu_k the mean of class k of C, v_k the mean squared distance of its n_k points to mu_k, and points of length 1:

- D_inter: mean of `|mu_k - mu_l|^2` over all ordered pairs k != l; the means keep the length they have;
- D_intra: mean of v_k over classes;
- phi: `D_inter / D_intra`;
- pi_ratio: mean cosine distance of two items of a class, over all such pairs, divided by that of two class means;
- R2: `1 - d_within / d_total`, mean cosine distances of items to items of their class and to all, classes weighed
  alike, an item's distance to itself included.

Sums of cosines are inner products of class sums, so no two items are ever compared. Derivation:
docs/methods/geometry.md. Reference: Kim 2023, section 2.4.

In how many directions an embedding varies: its singular values, their decay, and the directions above average.
With s the singular values of the points, brought to length 1 and not centred, the first d - 1 scaled to sum to 1:

- rho: `KL(uniform || s) = mean of ln(1 / ((d - 1) s_i))`; 0 if all directions count alike;
- d_DoV: how many s_i exceed `1 / (d - 1)`, the directions of significant variance.

Reference: Roth et al. 2020, Revisiting training strategies and generalization performance in deep metric learning; Kim
2023, equation 2.9 and section 5.2.

Does an embedding keep the distances of its inputs? The mean correlation of both, item by item.
For each of N items, Spearman's correlation of its distances to all others among the inputs and among the features,
averaged over items by Fisher's z. Reference: Kim 2023, section 5.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import check_whole
from nearkin.errors import DataError
from nearkin.metrics.hierarchy import MeanCorrelation, mean_correlation
from nearkin.metrics.intervals import Interval, check_resampling, percentile_interval
from nearkin.metrics.labels import label_array, label_codes
from nearkin.search import as_vectors
from nearkin.spaces import Euclidean, Space, covering_radius
from nearkin.spaces.principal import triangular_factor

SEPARATION = ("D_inter", "D_intra", "phi", "pi_ratio", "R2")
InputNorm = Literal["l2", "linf"]

_NORMS = {"l2": 2.0, "linf": torch.inf}
_BLOCK = 2**22
"""Numbers that are held in double precision at a time."""
_ROUNDING = 1e-12
"""Squared distances of points of length 1 below which there is nothing but rounding."""


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """What separation needs of classes.

    Attributes:
        sizes: items of each class (C,).
        means: (C, d) float64, of points of length 1; not brought to length 1 again.
        spread: mean squared distance of each class's items to its mean (C,).
    """

    sizes: np.ndarray = field(repr=False)
    means: np.ndarray = field(repr=False)
    spread: np.ndarray = field(repr=False)

    def separation(self, weights: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The measures of `SEPARATION`, each (B,), of B weightings of the classes.

        A class that a resample has twice is no pair of two different ones: between classes only pairs of different ones
        count, each as often as both are drawn. So a resample is no less spread out than the classes are.

        Args:
            weights: how often each class counts (B, C); None: each once, B = 1.
        """
        w = np.ones((1, len(self.sizes))) if weights is None else np.asarray(weights, dtype=np.float64)
        total, squares = w.sum(axis=1), np.square(w).sum(axis=1)
        pairs = total**2 - squares
        # Around their common mean, where no large numbers cancel.
        centred = self.means - self.means.mean(axis=0)
        around = total * (w @ np.square(centred).sum(axis=1)) - np.square(w @ centred).sum(axis=1)
        inter = _settled(_ratio(2 * around, pairs))
        intra = _settled((w @ self.spread) / total)
        between = inter / 2 + _ratio((w * (total[:, None] - w)) @ self.spread, pairs)
        share = 1 / len(self.sizes)
        # Mean cosine distance of two items of a class: 1 - |mu|^2 = v is that of all n^2 pairs of a class.
        alike = _ratio(w @ (self.spread * self.sizes**2), w @ (self.sizes * (self.sizes - 1.0)))
        return {
            "D_inter": inter,
            "D_intra": intra,
            "phi": _ratio(inter, intra),
            "pi_ratio": _ratio(_settled(alike), self._inter_cosine(w, pairs)),
            "R2": 1 - _ratio(intra, share * intra + (1 - share) * between),
        }

    def _inter_cosine(self, w: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        """Mean cosine distance (B,) of two class means; one of length 0 is at a right angle to all."""
        lengths = np.linalg.norm(self.means, axis=1)
        pointing = lengths > _ROUNDING
        unit = self.means / np.where(pointing, lengths, 1.0)[:, None] * pointing[:, None]
        alike = np.square(w @ unit).sum(axis=1) - np.square(w) @ pointing
        return _settled(_ratio(pairs - alike, pairs))


def class_moments(embeddings: Any, labels: Any) -> ClassMoments:
    """Size, mean and spread of each class of embeddings (n, d), which are brought to length 1 first.

    Args:
        embeddings: array or tensor (n, d), none of them zero.
        labels: n labels of any hashable kind; at least two classes, one of them with two items.
    """
    # The spread is 1 - |mu|^2, but by differences, where nothing cancels.
    sizes, means, spread = _moments(as_vectors(embeddings), labels, 2.0, normalise=True)
    return ClassMoments(sizes, means.numpy(), spread)


def class_separation(points: Any, labels: Any, *, norm: InputNorm = "l2", normalise: bool = False) -> dict[str, float]:
    """D_inter, D_intra and phi of points as they are, such as pixels, by a norm.

    Squared distances are `|x|_2^2` or `|x|_inf^2`. The mean of a class is its arithmetic mean for both. With
    `norm="l2"` and `normalise=True` these are the values of `geometry_metrics`.

    Reference: Kim 2023, table 5.3.

    Args:
        points: (n, d), or any shape (n, ...), which is flattened.
        labels: n labels of any hashable kind.
        norm: "l2" or "linf".
        normalise: whether points are brought to length 1 (always by the l2 norm) first.
    """
    order = _norm_order(norm)
    _, means, spread = _moments(as_vectors(flattened(points), "points"), labels, order, normalise=normalise)
    inter, intra = _between(means, norm), float(spread.mean())
    return {"D_inter": inter, "D_intra": intra, "phi": float(_ratio(np.array(inter), np.array(intra)))}


def flattened(points: Any) -> Any:
    """Points (n, ...) as (n, d); what has no shape is left to whoever checks it."""
    shape: tuple[int, ...] = getattr(points, "shape", ())
    return points.reshape(shape[0], -1) if len(shape) > 2 else points


def unit_blocks(points: Tensor, *, normalise: bool = True) -> Iterator[tuple[int, Tensor]]:
    """The first row and the points, float64 (m, d), of each block of rows, brought to length 1 if wished.

    Raises:
        DataError: if one is to be brought to length 1 that is zero.
    """
    start = 0
    for rows in points.split(max(1, _BLOCK // points.shape[1])):
        wide = rows.double().cpu()
        if normalise:
            lengths = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
            if not bool(lengths.all()):
                row = start + int((lengths[:, 0] == 0).int().argmax())
                raise DataError(f"The embedding in row {row} is zero and has no direction: remove it.")
            wide = wide / lengths
        yield start, wide
        start += len(rows)


def _norm_order(norm: str) -> float:
    if norm not in _NORMS:
        raise DataError(f"The norm must be one of {', '.join(_NORMS)}, not {norm!r}.")
    return _NORMS[norm]


def _moments(points: Tensor, labels: Any, order: float, *, normalise: bool) -> tuple[np.ndarray, Tensor, np.ndarray]:
    """Of each class the size (C,), the mean, float64 (C, d), and the mean squared distance to it by a norm (C,)."""
    (numbers,) = label_codes(label_array(labels, len(points)))
    sizes = np.bincount(numbers)
    if len(sizes) < 2:
        raise DataError(f"Separation needs at least two classes, but the labels have {len(sizes)}.")
    if sizes.max() < 2:
        raise DataError("No class has two items, so spread is undefined: add classes with at least two items.")
    codes = torch.from_numpy(numbers)
    sums, squares = (torch.zeros(len(sizes), *width, dtype=torch.float64) for width in ((points.shape[1],), ()))
    for start, block in unit_blocks(points, normalise=normalise):
        sums.index_add_(0, codes[start : start + len(block)], block)
    means = sums / torch.from_numpy(sizes)[:, None]
    for start, block in unit_blocks(points, normalise=normalise):
        own = codes[start : start + len(block)]
        squares.index_add_(0, own, torch.linalg.vector_norm(block - means[own], order, dim=1).square())
    return sizes, means, squares.numpy() / sizes


def _between(means: Tensor, norm: InputNorm) -> float:
    """The mean squared distance of means (C, d) over all ordered pairs of different ones."""
    classes = len(means)
    if norm == "l2":
        return float(2 * (means - means.mean(dim=0)).square().sum() / (classes - 1))
    rows = (torch.linalg.vector_norm(means[k + 1 :] - means[k], torch.inf, dim=1) for k in range(classes - 1))
    return float(2 * sum(row.square().sum() for row in rows) / (classes * (classes - 1)))


def _settled(values: np.ndarray) -> np.ndarray:
    """Values without what is only rounding."""
    return np.where(values < _ROUNDING, 0.0, values)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Quotients; over zero infinite, and NaN where both are zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return above / below


_FLOOR = 1e-6
"""Share of the largest singular value that any counts at least: what lies below is rounding of single precision."""
_TIE = 1e-9
"""Share by which a singular value must exceed the average."""


def singular_spectrum(embeddings: Any) -> np.ndarray:
    """The first d - 1 singular values of embeddings (n, d) of length 1, scaled to sum to 1: descending, (d - 1,).

    Each counts as at least 1e-6 of the largest, so that a direction without any variance has a finite logarithm.

    Args:
        embeddings: array or tensor (n, d) with d >= 2, none of them zero; they are brought to length 1 first.
    """
    points = as_vectors(embeddings)
    count = points.shape[1] - 1
    if count < 1 or not len(points):
        raise DataError(
            f"A spectrum needs at least one embedding with at least two dimensions, not shape {tuple(points.shape)}."
        )
    factor = triangular_factor(block.numpy() for _, block in unit_blocks(points))
    values = np.zeros(count)
    found = np.linalg.svd(factor, compute_uv=False)[:count]
    values[: len(found)] = found
    values = np.maximum(values, _FLOOR * values[0])
    return values / values.sum()


def floored_directions(spectrum: np.ndarray) -> int:
    """How many values of a spectrum (m,) are at the floor of `singular_spectrum`: directions that hold nothing.

    Each adds the same `ln` of the floor to rho, so that many of them decide it, whatever the others are.
    """
    return int((spectrum <= _FLOOR * spectrum[0] * (1 + _TIE)).sum())


def spectral_decay(spectrum: np.ndarray) -> float:
    """rho of a spectrum (m,) that sums to 1: its divergence from the uniform one, 0 if it is that."""
    return max(0.0, float(-np.log(len(spectrum) * spectrum).mean()))


def significant_directions(spectrum: np.ndarray) -> int:
    """d_DoV of a spectrum (m,) that sums to 1: how many values lie above their mean."""
    return int((spectrum * len(spectrum) > 1 + _TIE).sum())


_MOST = 100
"""Items of a class that are looked at: the cost grows with their square."""


def mean_class_radius(embeddings: np.ndarray, labels: np.ndarray) -> float:
    """The mean over classes of the covering radius, itself an average over k = 1 ... n centers.

    Of each class the first hundred items count.
    Reference: Gürbüz 2022, figure 3.3.

    Args:
        embeddings: points of the space (n, d); their Euclidean distances count.
        labels: their classes (n,).
    """
    _, codes = np.unique(labels, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    starts = np.cumsum(counts) - counts
    width = min(_MOST, int(counts.max()))
    places = starts[:, None] + np.arange(width)
    mask = np.arange(width) < counts[:, None]
    points = torch.from_numpy(embeddings[order[np.minimum(places, len(order) - 1)]])
    return float(covering_radius(points, mask=torch.from_numpy(mask)).mean())


_EUCLIDEAN = Euclidean()
_FEWEST = 3
"""Items: with two, each has one other and nothing can be ordered."""


@dataclass(frozen=True, eq=False)
class DistanceStructure:
    """Distances between the same items, of inputs and of features.

    Attributes:
        inputs: float64 (N, N).
        features: float64 (N, N).
    """

    inputs: np.ndarray = field(repr=False)
    features: np.ndarray = field(repr=False)

    def correlation(self) -> MeanCorrelation:
        """The mean correlation; its `per_class` is by item here."""
        return mean_correlation(self.inputs, self.features)


def distance_correlation(
    inputs: Any,
    features: Any,
    *,
    norm: InputNorm = "l2",
    sample: int = 1000,
    seed: int = 0,
    space: Space = _EUCLIDEAN,
) -> MeanCorrelation:
    """The mean correlation (MC) between distances of inputs and distances of their features.

    The higher, the more the embedding keeps the order of distances that the inputs have. An item's distance to itself
    does not count. `per_class` of the result is by item.

    Example:
        >>> import numpy as np
        >>> pixels = np.random.default_rng(0).random((50, 3, 8, 8))
        >>> round(distance_correlation(pixels, pixels.reshape(50, -1)).value, 6)
        1.0

    Args:
        inputs: (n, ...), such as pixels (n, C, H, W), which are flattened.
        features: (n, d), points of the space.
        norm: of differences of inputs: "l2" or "linf".
        sample: how many items at the most are compared, all with all; they are drawn.
        seed: of the draw.
        space: how features are compared; a model's is `model.space`.
    """
    rows = sampled_rows(len(inputs), sample, seed)
    if len(features) != len(inputs):
        raise DataError(f"There are {len(inputs)} inputs but {len(features)} features: pass both for the same items.")
    structure = DistanceStructure(input_distances(inputs[rows], norm), feature_distances(features[rows], space))
    return structure.correlation()


def sampled_rows(items: int, most: int, seed: int) -> np.ndarray:
    """At most so many of the items, drawn by a seed, ascending."""
    check_whole(most, "sample", _FEWEST)
    if items < _FEWEST:
        raise DataError(f"Ordering distances needs at least {_FEWEST} items, but there are {items}: add more.")
    if items <= most:
        return np.arange(items)
    return np.sort(np.random.default_rng(seed).permutation(items)[:most])


def input_distances(inputs: Any, norm: InputNorm = "l2") -> np.ndarray:
    """Distances of inputs (N, ...) by a norm of their differences: float64 (N, N)."""
    from scipy.spatial.distance import squareform

    order, points = _norm_order(norm), as_vectors(flattened(inputs), "inputs")
    return squareform(torch.nn.functional.pdist(points.cpu(), order).double().numpy())


def feature_distances(features: Any, space: Space = _EUCLIDEAN) -> np.ndarray:
    """Distances of points (N, d) of a space: float64 (N, N)."""
    points = as_vectors(features, "features").double()
    return space.distance(points, points).cpu().numpy()


GEOMETRY = (*SEPARATION, "rho", "d_DoV")
"""The measures, in the order of tables."""


def geometry_metrics(embeddings: Any, labels: Any) -> dict[str, float]:
    """D_inter, D_intra, phi, pi_ratio, R2, rho and d_DoV of embeddings, which are brought to length 1 first.

    A class of one item has no spread: it counts with 0 in D_intra and R2, and with no pair in pi_ratio. If no class
    spreads, phi is infinite and R2 is 1; if the class means coincide, phi is 0 and pi_ratio infinite; if all points do,
    these are NaN. None of these is better the higher: what suits depends on the task. Nothing of size n x n is held.

    Reference: Kim 2023, section 2.4, after Liu et al. 2020 (phi), Roth et al. 2020 (pi_ratio, rho) and Kornblith et al.
        2021 (R2). Definitions and corrections: docs/methods/geometry.md.

    Example:
        >>> import numpy as np
        >>> from nearkin.metrics import geometry_metrics
        >>> points = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 3]
        >>> sorted(geometry_metrics(points, np.arange(60) % 3))
        ['D_inter', 'D_intra', 'R2', 'd_DoV', 'phi', 'pi_ratio', 'rho']

    Args:
        embeddings: array or tensor (n, d) with d >= 2, none of them zero.
        labels: n labels of any hashable kind; at least two classes, one of them with two items.
    """
    moments = class_moments(embeddings, labels)
    spectrum = singular_spectrum(embeddings)
    return {
        **{name: float(value[0]) for name, value in moments.separation().items()},
        "rho": spectral_decay(spectrum),
        "d_DoV": float(significant_directions(spectrum)),
    }


def separation_intervals(
    moments: ClassMoments, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Percentile intervals (low, high) of D_inter, D_intra, phi, pi_ratio and R2, with the classes drawn anew.

    Items are not drawn: a class's mean and spread are known far better than what other classes would be like. There are
    none of rho and d_DoV: a resample has fewer different classes and so fewer directions, whatever the embedding is.

    Args:
        moments: of the classes, as `class_moments` gives them.
        resamples: how many times classes are drawn.
        level: share of the resamples inside the interval.
        seed: the same seed gives the same intervals.
    """
    check_resampling(resamples, level)
    classes = len(moments.sizes)
    drawn = np.random.default_rng(seed).multinomial(classes, np.full(classes, 1 / classes), size=resamples)
    # Of a class drawn alone there are no pairs.
    drawn = drawn[(drawn > 0).sum(axis=1) > 1]
    if not len(drawn):
        return {}
    return {
        name: percentile_interval(values, level)
        for name, values in moments.separation(drawn).items()
        if np.isfinite(values).all()
    }
