"""Kernels: how alike two points are, the same both ways, for tests and scores that add similarities up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import DataError, suggestion
from nearkin.search import Scorer, as_scorer, as_vectors

Symmetry = Literal["max", "mean"]
KernelScale = Literal["sigmoid", "logit"]

NAMES = ("learned", "gaussian", "auto")
"""Kernels that have a name; "auto" is "learned" where the space is a similarity's, and "gaussian" elsewhere."""

_SYMMETRIES = ("max", "mean")
_SCALES = ("sigmoid", "logit")
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
        _check_choice("symmetry", self.symmetry, _SYMMETRIES)
        _check_choice("scale", self.scale, _SCALES)

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
        return as_scorer(scorer.base) if is_similarity(scorer) and hasattr(scorer, "base") else scorer

    def __str__(self) -> str:
        wide = "the median distance" if self.bandwidth is None else f"{self.bandwidth:.3g}"
        return f"gaussian (bandwidth {wide})"


def as_kernel(kernel: Any, space: Any = "sphere") -> Kernel:
    """A kernel from one, or from its name and the space of the points: "learned", "gaussian" or "auto"."""
    if isinstance(kernel, str):
        _check_choice("kernel", kernel, NAMES)
        if kernel == "auto":
            kernel = "learned" if _is_learned(as_scorer(space)) else "gaussian"
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


def _is_learned(scorer: Any) -> bool:
    """Whether a similarity was learned: it has a space below it that its points live in."""
    return is_similarity(scorer) and hasattr(scorer, "base")


def _named(space: Any) -> str:
    return f"'{space if isinstance(space, str) else getattr(space, 'name', type(space).__name__)}'"


def _check_choice(what: str, given: Any, known: tuple[str, ...]) -> None:
    if given not in known:
        raise DataError(f"There is no {what} '{given}'.{suggestion(str(given), known)}")
