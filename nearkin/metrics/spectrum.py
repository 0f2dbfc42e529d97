"""In how many directions an embedding varies: its singular values, their decay, and the directions above average.

With s the singular values of the points, brought to length 1 and not centred, the first d - 1 scaled to sum to 1:

- rho: `KL(uniform || s) = mean of ln(1 / ((d - 1) s_i))`; 0 if all directions count alike;
- d_DoV: how many s_i exceed `1 / (d - 1)`, the directions of significant variance.

Reference: Roth et al. 2020, Revisiting training strategies and generalization performance in deep metric learning; Kim
2023, equation 2.9 and section 5.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearkin.errors import DataError
from nearkin.metrics.separation import unit_blocks
from nearkin.search import as_vectors
from nearkin.spaces.factor import triangular_factor

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
            f"A spectrum needs embeddings of at least two dimensions, at least one of them, not {tuple(points.shape)}."
        )
    factor = triangular_factor(block.numpy() for _, block in unit_blocks(points))
    values = np.zeros(count)
    found = np.linalg.svd(factor, compute_uv=False)[:count]
    values[: len(found)] = found
    values = np.maximum(values, _FLOOR * values[0])
    return values / values.sum()


def spectral_decay(spectrum: np.ndarray) -> float:
    """rho of a spectrum (m,) that sums to 1: its divergence from the uniform one, 0 if it is that."""
    return max(0.0, float(-np.log(len(spectrum) * spectrum).mean()))


def significant_directions(spectrum: np.ndarray) -> int:
    """d_DoV of a spectrum (m,) that sums to 1: how many values lie above their mean."""
    return int((spectrum * len(spectrum) > 1 + _TIE).sum())
