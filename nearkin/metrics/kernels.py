"""Kernels, which tell how alike two points are, the same both ways, and the two-sample test by them.

Do two sets of points come from one distribution? The maximum mean discrepancy, tested by permutations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import DataError, suggestion
from nearkin.metrics.checks import as_array
from nearkin.search import Scorer, as_scorer, as_vectors

Symmetry = Literal["max", "mean"]
KernelScale = Literal["sigmoid", "logit"]

NAMES = ("learned", "gaussian", "auto")
"""Kernels that have a name; "auto" is "learned" where the space is a similarity's, and "gaussian" elsewhere."""

_BLOCK_ENTRIES = 2**22
_MEDIAN_POINTS = 1000


@runtime_checkable
class Kernel(Protocol):
    """How alike points are."""

    name: ClassVar[str]

    def fitted(self, points: Tensor, seed: int = 0) -> Kernel:
        """The same kernel with all its parameters known, learned from points (n, d) in any order."""
        ...

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Values, float64 (n, m), of points (n, d) and (m, d): for every pair the same both ways."""
        ...


@dataclass(frozen=True)
class LearnedKernel:
    """A learned similarity, made the same both ways: `f(g(S(a, b)), g(S(b, a)))`.

    It need not be positive definite. A permutation test keeps its level all the same, since that needs no more than
    exchangeable items, but a squared discrepancy may then be negative for two different distributions, so that
    `mmd_test` looks both ways. What does need it, such as `Novelty(method="one-class-svm")`, clips the spectrum itself.

    Args:
        space: whose distance is minus a similarity, such as the `space` of a `SimilarityModel`.
        symmetry: f: "max", or "mean".
        scale: g: "sigmoid", the similarity as a probability, by which no pair counts for more than 1; or "logit", as
            it is, by which few extreme pairs may decide.
    """

    space: Any
    symmetry: Symmetry = "max"
    scale: KernelScale = "sigmoid"
    name: ClassVar[str] = "learned"
    indefinite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not is_similarity(as_scorer(self.space)):
            raise DataError(
                f"The kernel 'learned' needs a similarity, and {_named(self.space)} has a distance: give the space of "
                "a model with a learned similarity, or use the kernel 'gaussian'."
            )
        _check_choice("symmetry", self.symmetry, get_args(Symmetry))
        _check_choice("scale", self.scale, get_args(KernelScale))

    def fitted(self, points: Tensor, seed: int = 0) -> LearnedKernel:
        """Itself: nothing is to be learned."""
        return self

    @torch.no_grad()
    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Values, float64 (n, m), of points (n, d) and (m, d)."""
        scorer = as_scorer(self.space)
        there, back = -scorer.distance(x, y).double(), -scorer.distance(y, x).double().T
        if self.scale == "sigmoid":
            there, back = there.sigmoid(), back.sigmoid()
        return torch.maximum(there, back) if self.symmetry == "max" else (there + back) / 2

    def __str__(self) -> str:
        return f"learned ({self.symmetry} of both orders, {self.scale})"


@dataclass(frozen=True)
class GaussianKernel:
    """`exp(-d^2 / (2 sigma^2))` of the distance of a space.

    Positive definite over Euclidean distances and chords of the sphere; over other distances it need not be.

    Args:
        space: a space, its name, or any object with a `distance`; where that is a learned similarity, the space that
            its points live in.
        bandwidth: sigma; None takes the median distance of the points that are compared.
    """

    space: Any = "sphere"
    bandwidth: float | None = None
    name: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        as_scorer(self.space)
        if self.bandwidth is not None and not 0 < self.bandwidth < np.inf:
            raise DataError(
                f"The bandwidth of a Gaussian kernel must be a positive number, or None for the median distance, not "
                f"{self.bandwidth!r}."
            )

    def fitted(self, points: Tensor, seed: int = 0) -> GaussianKernel:
        """The kernel with its bandwidth: the median distance of points (n, d), at most 1,000 of them drawn by the seed.

        Whichever set a point is of plays no part, so that a permutation test stays valid: exactly where all points
        are taken, and over the draw of the seed where some are.
        """
        if self.bandwidth is not None:
            return self
        if len(points) > _MEDIAN_POINTS:
            rows = np.random.default_rng(seed).choice(len(points), _MEDIAN_POINTS, replace=False)
            points = points[torch.from_numpy(np.sort(rows))]
        distances = self._distances(points, points)
        away = distances[torch.triu(torch.ones_like(distances, dtype=torch.bool), diagonal=1)]
        away = away[away > 0]
        return replace(self, bandwidth=float(away.median()) if len(away) else 1.0)

    @torch.no_grad()
    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Values, float64 (n, m), of points (n, d) and (m, d)."""
        if self.bandwidth is None:
            raise DataError("This Gaussian kernel has no bandwidth yet: give one, or take `kernel.fitted(points)`.")
        return self._distances(x, y).div_(self.bandwidth).square_().div_(-2).exp_()

    @torch.no_grad()
    def _distances(self, x: Tensor, y: Tensor) -> Tensor:
        distances = self.scorer.distance(x, y).double()
        if distances.numel() and float(distances.min()) < 0:
            raise DataError(
                f"A Gaussian kernel needs distances, and those of {_named(self.space)} are negative: choose a space "
                "such as 'sphere' or 'euclidean'."
            )
        return distances

    @property
    def scorer(self) -> Scorer:
        """What tells the distances."""
        scorer = as_scorer(self.space)
        return as_scorer(scorer if (base := _base(scorer)) is None else base)

    def __str__(self) -> str:
        wide = "the median distance" if self.bandwidth is None else f"{self.bandwidth:.3g}"
        return f"gaussian (bandwidth {wide})"


def as_kernel(kernel: Any, space: Any = "sphere") -> Kernel:
    """A kernel from one, or from its name and the space of the points: "learned", "gaussian" or "auto"."""
    if isinstance(kernel, str):
        _check_choice("kernel", kernel, NAMES)
        if kernel == "auto":
            kernel = "learned" if _base(as_scorer(space)) is not None else "gaussian"
        return LearnedKernel(space) if kernel == "learned" else GaussianKernel(space)
    if isinstance(kernel, type) or not isinstance(kernel, Kernel):
        raise DataError(
            f"The kernel must be one of {', '.join(NAMES)}, or an object such as GaussianKernel(), not a "
            f"{type(kernel).__name__}."
        )
    return kernel


def is_indefinite(kernel: Kernel) -> bool:
    """Whether a kernel is not positive definite by its kind, so that a difference may make a discrepancy low."""
    return bool(getattr(kernel, "indefinite", False))


def is_similarity(scorer: Any) -> bool:
    """Whether the distance of a scorer is a similarity turned round."""
    return bool(getattr(scorer, "similarity", False))


def kernel_matrix(x: Any, y: Any | None = None, kernel: Any = "gaussian", *, space: Any = "sphere") -> np.ndarray:
    """Values of a kernel, float64 (n, m), between points (n, d) and (m, d), or (n, n) among the former alone.

    Computed in blocks; among points of one set, each pair once.

    Args:
        x: points (n, d), as a model gives them.
        y: points (m, d); None: those of x.
        kernel: a kernel, or its name; a bandwidth that is not given is the median distance of all these points.
        space: of a kernel that is given by its name: such as `model.space`.
    """
    first = as_vectors(x)
    if y is None:
        known = as_kernel(kernel, space).fitted(first)
        matrix = np.empty((len(first), len(first)))
        for start, block in upper_blocks(first, known):
            stop = start + len(block)
            matrix[start:stop, start:] = block
            matrix[stop:, start:stop] = block[:, stop - start :].T
        return matrix
    second = as_vectors(y).to(first)
    check_dimensions(first, second)
    known = as_kernel(kernel, space).fitted(torch.cat([first, second]))
    blocks = [known(part, second).cpu().numpy() for part in first.split(_rows(len(second)))]
    return np.concatenate(blocks) if blocks else np.empty((0, len(second)))


def upper_blocks(points: Tensor, kernel: Kernel) -> Iterator[tuple[int, np.ndarray]]:
    """The upper half of a kernel among points (n, d): where rows start, and their values (b, n - start) from there on.

    In the square where a block meets the diagonal, the upper half stands for both.
    """
    step = _rows(len(points))
    for start in range(0, len(points), step):
        block = kernel(points[start : start + step], points[start:]).cpu().numpy()
        square = np.triu(block[:, : len(block)])
        block[:, : len(block)] = square + np.triu(square, 1).T
        if not np.isfinite(block).all():
            raise DataError(f"The kernel {kernel} gives values that are not finite: check the model or the bandwidth.")
        yield start, block


def check_dimensions(first: Tensor, second: Tensor) -> None:
    """Refuse two sets of points that cannot have come from one model."""
    if first.shape[1] != second.shape[1]:
        raise DataError(
            f"One set has {first.shape[1]} dimensions and the other {second.shape[1]}: embed both with the same model."
        )


def _rows(columns: int) -> int:
    return max(1, _BLOCK_ENTRIES // max(1, columns))


def _base(scorer: Any) -> Any:
    """The space that the points of a learned similarity live in; None for what is no learned similarity."""
    return getattr(scorer, "base", None) if is_similarity(scorer) else None


def _named(space: Any) -> str:
    return f"'{space if isinstance(space, str) else getattr(space, 'name', type(space).__name__)}'"


def _check_choice(what: str, given: Any, known: tuple[str, ...]) -> None:
    if given not in known:
        raise DataError(f"There is no {what} '{given}'.{suggestion(str(given), known)}")


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
    # The share of divisions as far as the observed one, itself counted; values apart by no more than `close` tie.
    upper = (1 + int((null >= observed - close).sum())) / (1 + len(null))
    lower = (1 + int((null <= observed + close).sum())) / (1 + len(null))
    own = np.where(chosen[:, 0], m - 1, m), np.where(chosen[:, 0], n, n - 1)
    witness = sums.to_first / own[0] - (sums.rows - sums.to_first) / own[1]
    inside, outside = sums.inside[0], float(sums.rows[:m].sum())
    between = outside - inside
    return TwoSampleResult(
        statistic=observed,
        p_value=min(1.0, 2 * min(upper, lower)) if two_sided else upper,
        null=null,
        within_x=float(inside / (m * (m - 1))),
        within_y=float((sums.rows.sum() - inside - 2 * between) / (n * (n - 1))),
        between=float(between / (m * n)),
        witness_x=witness[:m],
        witness_y=witness[m:],
        kernel=known,
        two_sided=two_sided,
    )


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of kernel values between different points."""

    inside: np.ndarray  # over ordered pairs inside the first set of each division (P + 1,)
    rows: np.ndarray  # of each point (N,) with all others
    to_first: np.ndarray  # of each point (N,) with the others of the first set, as given
    size: float  # over all pairs, of absolute values

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
