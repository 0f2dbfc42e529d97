"""What a local store is given, checked before anything is written."""

from __future__ import annotations

from typing import Any

import numpy as np

from nearkin.errors import DataError, suggestion
from nearkin.gallery.kept_similarity import check_space_settings
from nearkin.gallery.sqlite.graph import KINDS
from nearkin.gallery.sqlite.state import DTYPES
from nearkin.gallery.values import Settings
from nearkin.search.vectors import as_vectors


def check_vectors(vectors: Any, n: int, dimension: int) -> np.ndarray:
    """Vectors as a float32 matrix (n, d) of finite numbers."""
    points = as_vectors(vectors, "vectors").cpu().numpy()
    if points.shape != (n, dimension):
        raise DataError(f"The vectors of {n} items must have the shape ({n}, {dimension}), not {points.shape}.")
    with np.errstate(over="ignore"):
        narrow = points.astype(np.float32, copy=False)
    if narrow is not points and not np.isfinite(narrow).all():
        raise DataError("Some numbers of the vectors are too large for float32: scale them down.")
    return narrow


def check_settings(settings: Settings) -> None:
    """Refuse settings of vectors that cannot be stored."""
    if settings.dtype not in DTYPES:
        raise DataError(f"Vectors cannot be stored as '{settings.dtype}'.{suggestion(str(settings.dtype), DTYPES)}")
    if isinstance(settings.dimension, bool) or not isinstance(settings.dimension, int) or settings.dimension < 1:
        raise DataError(f"The dimension must be a whole number from 1 on, not {settings.dimension!r}.")
    check_space_settings(settings.space)


def check_index(index: str) -> str:
    """Refuse another way to search than there are."""
    if index not in KINDS:
        raise DataError(f"A gallery cannot be searched by '{index}'.{suggestion(str(index), KINDS)}")
    return index
