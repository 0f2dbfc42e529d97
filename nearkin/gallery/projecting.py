"""From vectors that a user brings to points of the gallery's space."""

from __future__ import annotations

import numpy as np
import torch

from nearkin.errors import DataError
from nearkin.spaces import Space, Sphere


def projected(space: Space, rows: np.ndarray) -> np.ndarray:
    """Vectors (n, d) as points of a space, float32 (n, d).

    Raises:
        DataError: if a vector is all zeros where directions are compared.
    """
    if isinstance(space, Sphere) and len(rows) and not rows.any(axis=1).all():
        number = int(np.flatnonzero(~rows.any(axis=1))[0])
        raise DataError(f"Vector {number} is all zeros, which has no direction to compare by: leave it out.")
    with torch.no_grad():
        return space.project(torch.from_numpy(rows)).numpy().astype(np.float32, copy=False)
