"""Principal directions: re-weight them, or rotate onto them so that the first dimensions hold as much as possible.

The triangular factor of points that come in blocks: all that their singular values and directions need.
R with `R'R = X'X`, by orthogonal steps alone: squares would lose every singular value below 1e-8 of the largest.

Principal-direction re-weighting: change how much each direction of an embedding counts, without training again.
With m the mean and u_i the unit principal directions of the points fitted, `f_new = sum_i w_i ((f - m) . u_i) u_i`.
When to use it, and what it does: docs/methods/principal-reweighting.md.

Principal components: embeddings turned so that their first dimensions hold as much as any so many can.
`f_new = U (f - c)`, the rows of U being the unit principal directions of the points fitted: those in which points vary
most around their mean. In Euclidean space c is the mean. On the sphere c is zero: angles are seen from there, and what
is turned around it keeps them all, while taking the mean off changes them. Turning by itself changes no neighbour;
cutting short what was turned is PCA. What else was tried, and when to use it: docs/guide/short-embeddings.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import is_real
from nearkin.errors import DataError
from nearkin.spaces.space import Euclidean, Sphere


def triangular_factor(blocks: Iterable[np.ndarray]) -> np.ndarray:
    """The factor R, float64 (at most d, d), of the rows of all blocks (m, d), of which only one is held at a time."""
    factor: np.ndarray | None = None
    for block in blocks:
        rows = np.asarray(block, dtype=np.float64)
        stacked = rows if factor is None else np.concatenate([factor, rows])
        factor = np.asarray(np.linalg.qr(stacked, mode="r"))
    return np.zeros((0, 0)) if factor is None else factor


_TINY = 1e-6
"""Share of the largest singular value below which a direction holds rounding of single precision alone."""
_SAME = 1e-12
"""Share of the mean's largest entry below which points differ by rounding alone."""
_BLOCK = 2**22
"""Numbers that are held in double precision at a time."""


def _principal_directions(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean (d,) of points (n, d), their unit directions (d, d), those that vary most first, and singular values."""
    if len(points) < 2:
        raise DataError(f"Principal directions need at least two embeddings, but there are {len(points)}: add more.")
    dimension = points.shape[1]
    mean = points.mean(axis=0, dtype=np.float64)
    factor = triangular_factor(points[rows].astype(np.float64) - mean for rows in _blocks(points))
    _, values, directions = np.linalg.svd(factor, full_matrices=True)
    values = np.append(values, np.zeros(dimension - len(values)))
    if values[0] <= _SAME * math.sqrt(len(points)) * np.abs(mean).max():
        raise DataError("All embeddings are identical, so there are no principal directions: fit others.")
    # The largest entry of each is positive: a direction has no sign of its own.
    largest = np.abs(directions).argmax(axis=1)
    signs = np.where(directions[np.arange(dimension), largest] < 0, -1.0, 1.0)
    return mean, directions * signs[:, None], values


class _LinearMap:
    """A linear map of embeddings that is learned from some."""

    components_: np.ndarray

    def fit(self, embeddings: Any) -> Self:
        """Learn from embeddings (n, d), array or tensor, at least two."""
        raise NotImplementedError

    def _matrix(self) -> tuple[np.ndarray, np.ndarray]:
        """What is taken off (d,), and what embeddings are then multiplied by (d, d)."""
        raise NotImplementedError

    def transform(self, embeddings: Any) -> np.ndarray:
        """Embeddings (n, d), mapped, in the precision they were given in."""
        if not hasattr(self, "components_"):
            raise DataError(f"This {type(self).__name__} is not fitted: call fit(embeddings) first.")
        points, (centre, matrix) = _as_points(embeddings), self._matrix()
        if points.shape[1] != len(centre):
            raise DataError(f"The embeddings have {points.shape[1]} dimensions, but those fitted had {len(centre)}.")
        found = np.empty(points.shape, dtype=np.float32 if points.dtype == np.float32 else np.float64)
        for rows in _blocks(points):
            found[rows] = (points[rows].astype(np.float64) - centre) @ matrix
        return found

    def fit_transform(self, embeddings: Any) -> np.ndarray:
        """Fit embeddings (n, d), and give them mapped."""
        return self.fit(embeddings).transform(embeddings)


@dataclass(eq=False)
class PrincipalReweighting(_LinearMap):
    """Weigh the principal directions of embeddings, by given weights or by a power of how much they vary.

    With a power, `w_i = c s_i^(-power)`, s_i being the singular value of direction i: 0 leaves the points as they are
    up to centring, 1 makes all directions vary alike (whitening), a negative one strengthens the strongest. The factor
    c keeps the mean squared distance of the fitted points from their mean. A direction whose singular value is below
    1e-6 of the largest has the weight 0 unless the power is 0, as a large one would only show rounding.

    Reference: Kim 2023, section 6.2.3.

    Example:
        >>> import numpy as np
        >>> points = np.random.default_rng(0).normal(size=(500, 3)) * [10.0, 1.0, 0.1]
        >>> white = PrincipalReweighting(power=1.0).fit_transform(points)
        >>> bool(np.ptp(white.std(axis=0)) < 1e-9)
        True

    Args:
        power: how far directions are made alike; plays no part if there are weights.
        weights: of the directions (d,), those that vary most first, none below 0; None: by the power.

    Attributes:
        mean_: of the fitted points (d,).
        components_: the unit principal directions (d, d), one a row, those that vary most first.
        singular_values_: of the centred fitted points (d,), descending; 0 beyond their number.
        weights_: of the directions (d,).
    """

    power: float = 0.5
    weights: Sequence[float] | np.ndarray | None = None
    mean_: np.ndarray = field(init=False, repr=False)
    components_: np.ndarray = field(init=False, repr=False)
    singular_values_: np.ndarray = field(init=False, repr=False)
    weights_: np.ndarray = field(init=False, repr=False)

    def fit(self, embeddings: Any) -> Self:
        """Find mean, directions and weights of embeddings (n, d), array or tensor, at least two."""
        mean, components, values = _principal_directions(_as_points(embeddings))
        self.weights_ = self._weights(values)
        self.mean_, self.components_, self.singular_values_ = mean, components, values
        return self

    def _matrix(self) -> tuple[np.ndarray, np.ndarray]:
        return self.mean_, (self.components_.T * self.weights_) @ self.components_

    def _weights(self, values: np.ndarray) -> np.ndarray:
        if self.weights is not None:
            return _as_weights(self.weights, len(values))
        if not is_real(self.power) or not math.isfinite(self.power):
            raise DataError(
                f"power must be a finite number, such as 0 (centring) or 1 (whitening), not {self.power!r}."
            )
        if self.power == 0:
            return np.ones(len(values))
        held = values > _TINY * values[0]
        # Relative to the first, so that no power overflows.
        with np.errstate(over="ignore"):
            weights = np.where(held, np.where(held, values / values[0], 1.0) ** -float(self.power), 0.0)
            spread = np.square(weights * values).sum()
        if not math.isfinite(spread):
            raise DataError(f"The power {self.power:g} makes weights too large for numbers: lower it, 1 whitens.")
        return weights * math.sqrt(np.square(values[held]).sum() / spread)


def _as_points(embeddings: Any) -> np.ndarray:
    """Embeddings (n, d) as an array of finite numbers."""
    given = embeddings.detach().cpu() if isinstance(embeddings, Tensor) else embeddings
    given = given.float() if isinstance(given, Tensor) and given.dtype is torch.bfloat16 else given
    try:
        points = np.asarray(given)
    except ValueError as error:
        raise DataError(f"The embeddings must be rows of one length, a matrix of numbers ({error}).") from error
    if points.dtype.kind not in "fiub" or points.ndim != 2 or points.shape[1] == 0:
        raise DataError(
            f"The embeddings must be numbers of shape (items, dimensions), not {points.dtype} of shape {points.shape}."
        )
    finite = np.isfinite(points).all(axis=1)
    if not finite.all():
        raise DataError(f"The embeddings hold NaN or infinite values, first in row {int(np.argmin(finite))}.")
    return points


def _as_weights(weights: Any, dimension: int) -> np.ndarray:
    try:
        given = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"The weights must be a flat list of numbers ({error}).") from error
    if given.shape != (dimension,):
        raise DataError(f"There must be {dimension} weights, one for each direction, not an array of {given.shape}.")
    if not (np.isfinite(given) & (given >= 0)).all():
        raise DataError("The weights must be finite and none below 0.")
    if not given.any():
        raise DataError("All weights are 0, which would put all embeddings in one place: give one above 0.")
    return given


def _blocks(points: np.ndarray) -> Iterator[slice]:
    """Which rows of points (n, d) to take to double precision at a time."""
    count = max(1, _BLOCK // points.shape[1])
    return (slice(start, start + count) for start in range(0, len(points), count))


@dataclass(eq=False)
class PrincipalRotation(_LinearMap):
    """Turn embeddings onto their principal directions, those that vary most first; the first k are PCA to k.

    Example:
        >>> import numpy as np
        >>> from nearkin.spaces import Euclidean
        >>> points = np.random.default_rng(0).normal(size=(500, 3)) * [0.1, 10.0, 1.0]
        >>> turned = PrincipalRotation(Euclidean()).fit_transform(points)
        >>> bool(np.all(np.diff(turned.std(axis=0)) < 0))
        True

    Args:
        space: where embeddings are compared, the sphere or Euclidean space: in others, what is left of a point has no
            linear form.

    Attributes:
        centre_: what is taken off (d,): zero on the sphere, else the mean of the fitted points.
        components_: the unit principal directions (d, d), one a row.
        kept_: the share (d,) of the variance that the first 1 ... d dimensions keep.
        items_: how many points were fitted; directions beyond their number are arbitrary.
    """

    space: Any = Sphere()  # noqa: RUF009 - frozen, so it may be shared
    centre_: np.ndarray = field(init=False, repr=False)
    components_: np.ndarray = field(init=False, repr=False)
    kept_: np.ndarray = field(init=False, repr=False)
    items_: int = field(init=False, repr=False)

    def fit(self, embeddings: Any) -> Self:
        """Find the directions of embeddings (n, d), array or tensor, at least two."""
        check_turnable(self.space)
        points = _as_points(embeddings)
        on_sphere = isinstance(self.space, Sphere)
        if on_sphere:
            points = self.space.project(torch.from_numpy(np.asarray(points, dtype=np.float64))).numpy()
        mean, self.components_, values = _principal_directions(points)
        self.centre_, self.items_ = np.zeros_like(mean) if on_sphere else mean, len(points)
        squares = np.square(values)
        self.kept_ = np.cumsum(squares) / squares.sum()
        return self

    def _matrix(self) -> tuple[np.ndarray, np.ndarray]:
        return self.centre_, self.components_.T


def check_turnable(space: Any) -> None:
    """Refuse a space other than the sphere and Euclidean space."""
    if not isinstance(space, Sphere | Euclidean):
        name = getattr(space, "name", type(space).__name__)
        raise DataError(
            f"Shortening works on the sphere and in Euclidean space, but these embeddings "
            f"are compared by '{name}': compare them in one of both, or shorten the model to its first dimensions "
            "(method prefix) and audit that."
        )
