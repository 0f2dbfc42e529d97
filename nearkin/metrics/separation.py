"""How far classes lie apart, and how widely each spreads: measures that need of each class its size, mean and spread.

With mu_k the mean of class k of C, v_k the mean squared distance of its n_k points to mu_k, and points of length 1:

- D_inter: mean of `|mu_k - mu_l|^2` over all ordered pairs k != l; the means keep the length they have;
- D_intra: mean of v_k over classes;
- phi: `D_inter / D_intra`;
- pi_ratio: mean cosine distance of two items of a class, over all such pairs, divided by that of two class means;
- R2: `1 - d_within / d_total`, mean cosine distances of items to items of their class and to all, classes weighed
  alike, an item's distance to itself included.

Sums of cosines are inner products of class sums, so no two items are ever compared. Derivation:
docs/methods/geometry.md. Reference: Kim 2023, section 2.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import DataError
from nearkin.metrics.labels import label_array, label_codes
from nearkin.search import as_vectors

SEPARATION = ("D_inter", "D_intra", "phi", "pi_ratio", "R2")
Norm = Literal["l2", "linf"]

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
        return {
            "D_inter": inter,
            "D_intra": intra,
            "phi": _ratio(inter, intra),
            "pi_ratio": _ratio(self._intra_cosine(w), self._inter_cosine(w, pairs)),
            "R2": 1 - _ratio(intra, share * intra + (1 - share) * between),
        }

    def _intra_cosine(self, w: np.ndarray) -> np.ndarray:
        """Mean cosine distance (B,) of two items of a class: `1 - |mu|^2 = v` is that of all n^2 pairs of a class."""
        return _settled(_ratio(w @ (self.spread * self.sizes**2), w @ (self.sizes * (self.sizes - 1.0))))

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
    points = as_vectors(embeddings)
    codes = _class_codes(points, labels)
    sizes = np.bincount(codes.numpy())
    means = _means(points, codes, sizes, normalise=True)
    # The same as 1 - |mu|^2, but by differences, where nothing cancels.
    spread = _mean_squares(points, codes, sizes, means, 2.0, normalise=True)
    return ClassMoments(sizes, means.numpy(), spread)


def class_separation(points: Any, labels: Any, *, norm: Norm = "l2", normalise: bool = False) -> dict[str, float]:
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
    if norm not in _NORMS:
        raise DataError(f"The norm must be one of {', '.join(_NORMS)}, not {norm!r}.")
    vectors = as_vectors(flattened(points), "points")
    codes = _class_codes(vectors, labels)
    sizes = np.bincount(codes.numpy())
    means = _means(vectors, codes, sizes, normalise=normalise)
    spread = _mean_squares(vectors, codes, sizes, means, _NORMS[norm], normalise=normalise)
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
                raise DataError(f"The embedding in row {row} is zero and has no direction: leave it out.")
            wide = wide / lengths
        yield start, wide
        start += len(rows)


def _class_codes(points: Tensor, labels: Any) -> Tensor:
    """The class (n,) of each point."""
    (codes,) = label_codes(label_array(labels, len(points)))
    sizes = np.bincount(codes)
    if len(sizes) < 2:
        raise DataError(f"Separation is between classes, and the labels name {len(sizes)}: give two classes or more.")
    if sizes.max() < 2:
        raise DataError("No class has two items, so none has a spread: give classes with at least two items each.")
    return torch.from_numpy(codes)


def _means(points: Tensor, codes: Tensor, sizes: np.ndarray, *, normalise: bool) -> Tensor:
    """The mean of each class, float64 (C, d)."""
    sums = torch.zeros(len(sizes), points.shape[1], dtype=torch.float64)
    for start, block in unit_blocks(points, normalise=normalise):
        sums.index_add_(0, codes[start : start + len(block)], block)
    return sums / torch.from_numpy(sizes)[:, None]


def _mean_squares(
    points: Tensor, codes: Tensor, sizes: np.ndarray, means: Tensor, order: float, *, normalise: bool
) -> np.ndarray:
    """The mean squared distance (C,) of the points of each class to its mean (C, d)."""
    sums = torch.zeros(len(sizes), dtype=torch.float64)
    for start, block in unit_blocks(points, normalise=normalise):
        own = codes[start : start + len(block)]
        sums.index_add_(0, own, torch.linalg.vector_norm(block - means[own], order, dim=1).square())
    return sums.numpy() / sizes


def _between(means: Tensor, norm: Norm) -> float:
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
