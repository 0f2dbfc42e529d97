"""The triangular factor of points that come in blocks: all that their singular values and directions need.

R with `R'R = X'X`, by orthogonal steps alone: squares would lose every singular value below 1e-8 of the largest.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def triangular_factor(blocks: Iterable[np.ndarray]) -> np.ndarray:
    """The factor R, float64 (at most d, d), of the rows of all blocks (m, d), of which only one is held at a time."""
    factor: np.ndarray | None = None
    for block in blocks:
        rows = np.asarray(block, dtype=np.float64)
        stacked = rows if factor is None else np.concatenate([factor, rows])
        factor = np.asarray(np.linalg.qr(stacked, mode="r"))
    return np.zeros((0, 0)) if factor is None else factor
