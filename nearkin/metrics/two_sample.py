"""Do two sets of points come from one distribution? The maximum mean discrepancy, tested by permutations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import DataError
from nearkin.metrics.checks import as_array
from nearkin.metrics.kernels import Kernel, as_kernel, check_dimensions, is_indefinite, upper_blocks
from nearkin.search import as_vectors

_ROUNDING = 1e-10
"""Share of the mean kernel value by which sums in another order may differ: such ties count as at least as far."""

_UNCOUNTABLE = 60
"""Points of the smaller set beyond which divisions are not counted: there are more than 10^34."""

_COLUMNS = 256
"""Permutations that go into one matrix product."""


@dataclass(frozen=True, eq=False)
class TwoSampleResult:
    """What a two-sample test found.

    Attributes:
        statistic: the unbiased squared discrepancy: within x plus within y minus twice between; it may be negative.
        p_value: how often a division of all points at random gives at least as much, this division counted with them;
            of a two-sided test twice the smaller of that and of how often it gives at most as much, 1 at the most.
        null: the statistic of each random division (P,).
        within_x: mean kernel value of two different points of x.
        within_y: the same of y.
        between: mean kernel value of a point of x and one of y.
        witness_x: for each point of x (m,), its mean kernel value to the other points of x minus that to those of y.
        witness_y: for each point of y (n,), the same: mean to x minus mean to the other points of y. The lowest are
            the points that belong least to x.
        kernel: the kernel with its parameters.
        two_sided: whether a statistic that is low counts too, as with a kernel that is not positive definite.
    """

    statistic: float
    p_value: float
    null: np.ndarray = field(repr=False)
    within_x: float
    within_y: float
    between: float
    witness_x: np.ndarray = field(repr=False)
    witness_y: np.ndarray = field(repr=False)
    kernel: Kernel
    two_sided: bool = False

    @property
    def deviations(self) -> float:
        """The statistic in standard deviations of the random divisions, from their mean; it grows with the sets."""
        spread = float(self.null.std())
        return (self.statistic - float(self.null.mean())) / spread if spread > 0 else 0.0

    @property
    def smallest_p(self) -> float:
        """The smallest p that so many permutations can give."""
        return min(1.0, (1 + self.two_sided) / (1 + len(self.null)))

    @property
    def reachable_p(self) -> float:
        """The smallest p that sets of these sizes can give, by `reachable_p`."""
        return reachable_p(len(self.witness_x), len(self.witness_y), two_sided=self.two_sided)


def reachable_p(m: int, n: int, *, two_sided: bool = False) -> float:
    """The smallest p that all divisions of m + n points can give: 1 / C(m + n, m), twice that where m = n.

    Sets of one size may change places without a change of the statistic. A two-sided test doubles it once more. Fewer
    divisions, drawn at random, go below it by luck alone.
    """
    small, large = sorted((m, n))
    number = math.comb(small + large, min(small, _UNCOUNTABLE))  # with many points a bound, and p is as good as zero
    return min(1.0, (1 + two_sided) * (1 + (m == n)) / number)


def mmd_squared(matrix: Any, first: int) -> float:
    """The unbiased squared maximum mean discrepancy of two sets, from the kernel among all their points.

    `mean of k(x, x') + mean of k(y, y') - 2 mean of k(x, y)` over pairs of different points; the diagonal plays no
    part (Gretton et al., *A kernel two-sample test*, 2012).

    Args:
        matrix: kernel values (m + n, m + n), the same both ways, those of the first set first.
        first: m, how many points the first set has.
    """
    values = as_array(matrix, "kernel values").astype(np.float64)
    if values.ndim != 2 or values.shape[0] != values.shape[1]:
        raise DataError(f"The kernel values must be a square matrix, not of shape {values.shape}.")
    if not np.isfinite(values).all():
        raise DataError("The kernel values hold NaN or infinite numbers: every pair of points needs a value.")
    second = len(values) - first
    _check_sizes(first, second)
    inside = [values[:first, :first], values[first:, first:]]
    within = [float(part.sum() - np.trace(part)) / (len(part) * (len(part) - 1)) for part in inside]
    return within[0] + within[1] - 2 * float(values[:first, first:].mean())


def mmd_test(
    x: Any, y: Any, kernel: Any = "gaussian", *, permutations: int = 1000, seed: int = 0, space: Any = "sphere"
) -> TwoSampleResult:
    """Test whether two sets of points come from one distribution, by the maximum mean discrepancy.

    If they did, any division of all points into sets of these sizes would have been as likely, whatever the kernel:
    `p = (1 + #{null >= statistic}) / (1 + permutations)`. Equal values count as at least as far. That holds for points
    drawn independently; frames of one film are not. Other shares of the same classes are a difference too.

    With a kernel that is not positive definite (`LearnedKernel`) a difference may make the statistic low as well, and
    the test is two-sided: p is twice the smaller of this one and its twin with `<=`, 1 at the most.

    All permutations are one matrix product, `a' K a` for each column `a` of a 0/1 matrix; the kernel passes in blocks
    and is never held whole.

    Example:
        >>> import numpy as np
        >>> from nearkin.metrics import mmd_test
        >>> rng = np.random.default_rng(0)
        >>> x, y = rng.normal(size=(40, 2)), rng.normal(size=(40, 2)) + 1
        >>> round(mmd_test(x, y, space="euclidean", permutations=199).p_value, 3)
        0.005

    Args:
        x: points (m, d), two or more.
        y: points (n, d), two or more.
        kernel: a kernel, such as `LearnedKernel(model.space)`, or its name: "gaussian", "learned" or "auto".
        permutations: how many random divisions to compare with.
        seed: the same seed gives the same result.
        space: of a kernel that is given by its name: such as `model.space`.

    Raises:
        DataError: if a set has fewer than two points, numbers are not finite, or dimensions differ.
    """
    first, second = as_vectors(x, "points of the first set"), as_vectors(y, "points of the second set")
    check_dimensions(first, second)
    m, n = len(first), len(second)
    _check_sizes(m, n)
    if permutations < 1:
        raise DataError(f"A permutation test needs at least one permutation, not {permutations}.")
    points = torch.cat([first, second.to(first)])
    known = as_kernel(kernel, space).fitted(points, seed)
    chosen = _divisions(m, n, permutations, seed)
    sums = _Sums.of(points, known, chosen)
    statistics = sums.statistics(chosen, m, n)
    close = _ROUNDING * sums.size / (len(points) * (len(points) - 1))
    observed, null = float(statistics[0]), statistics[1:]
    two_sided = is_indefinite(known)
    own = np.where(chosen[:, 0], m - 1, m), np.where(chosen[:, 0], n, n - 1)
    witness = sums.to_first / own[0] - (sums.rows - sums.to_first) / own[1]
    inside, outside = sums.inside[0], float(sums.rows[:m].sum())
    between = outside - inside
    return TwoSampleResult(
        statistic=observed,
        p_value=_p_value(null, observed, close, two_sided),
        null=null,
        within_x=float(inside / (m * (m - 1))),
        within_y=float((sums.rows.sum() - inside - 2 * between) / (n * (n - 1))),
        between=float(between / (m * n)),
        witness_x=witness[:m],
        witness_y=witness[m:],
        kernel=known,
        two_sided=two_sided,
    )


def _p_value(null: np.ndarray, observed: float, close: float, two_sided: bool) -> float:
    """Share of divisions (P,) as far as the observed one, itself counted; values apart by no more than `close` tie."""
    upper = (1 + int((null >= observed - close).sum())) / (1 + len(null))
    lower = (1 + int((null <= observed + close).sum())) / (1 + len(null))
    return min(1.0, 2 * min(upper, lower)) if two_sided else upper


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of kernel values between different points.

    Attributes:
        inside: over ordered pairs inside the first set of each division (P + 1,).
        rows: of each point (N,) with all others.
        to_first: of each point (N,) with the others of the first set, as given.
        size: over all pairs, of absolute values.
    """

    inside: np.ndarray
    rows: np.ndarray
    to_first: np.ndarray
    size: float

    @classmethod
    def of(cls, points: Tensor, kernel: Kernel, chosen: np.ndarray) -> _Sums:
        """Go once through the upper half of the kernel among points (N, d), with divisions (N, P + 1)."""
        inside, ends, size = np.zeros(chosen.shape[1]), np.zeros((len(points), 2)), 0.0
        pair = np.stack([np.ones(len(points)), chosen[:, 0]], axis=1)
        for start, block in upper_blocks(points, kernel):
            stop = start + len(block)
            np.fill_diagonal(block, 0.0)
            ends[start:stop] += block @ pair[start:]
            ends[stop:] += block[:, stop - start :].T @ pair[start:stop]
            size += float(np.abs(block[:, : stop - start]).sum() + 2 * np.abs(block[:, stop - start :]).sum())
            block[:, stop - start :] *= 2  # each of these pairs stands for both of its orders
            for left in range(0, chosen.shape[1], _COLUMNS):
                some = chosen[start:, left : left + _COLUMNS].astype(np.float64)
                inside[left : left + _COLUMNS] += np.einsum("bp,bp->p", block @ some, some[: len(block)])
        return cls(inside, ends[:, 0], ends[:, 1], size)

    def statistics(self, chosen: np.ndarray, m: int, n: int) -> np.ndarray:
        """The unbiased squared discrepancy of each division (P + 1,)."""
        touching = self.rows @ chosen  # pairs whose first point is in the first set
        across = touching - self.inside
        rest = self.rows.sum() - self.inside - 2 * across
        return self.inside / (m * (m - 1)) + rest / (n * (n - 1)) - 2 * across / (m * n)


def _divisions(m: int, n: int, permutations: int, seed: int) -> np.ndarray:
    """Which points are in the first set, bool (m + n, 1 + permutations): as given, then at random."""
    chosen = np.zeros((m + n, 1 + permutations), dtype=bool)
    chosen[:m] = True
    return np.concatenate([chosen[:, :1], np.random.default_rng(seed).permuted(chosen[:, 1:], axis=0)], axis=1)


def _check_sizes(m: int, n: int) -> None:
    if min(m, n) < 2:
        raise DataError(f"A two-sample test needs at least two points in each set, not {m} and {n}: add items.")
