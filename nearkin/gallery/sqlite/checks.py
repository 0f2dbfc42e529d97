"""What a local store is given, checked before anything is written."""

from __future__ import annotations

from typing import Any

import numpy as np

from nearkin.errors import DataError, suggestion
from nearkin.gallery.kept_similarity import check_space_settings
from nearkin.gallery.layout import Layout
from nearkin.gallery.rounding import check_dtype
from nearkin.gallery.sqlite.graph import KINDS
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
    check_dtype(settings.dtype, settings.space)
    if isinstance(settings.dimension, bool) or not isinstance(settings.dimension, int) or settings.dimension < 1:
        raise DataError(f"The dimension must be a whole number from 1 on, not {settings.dimension!r}.")
    check_space_settings(settings.space)


def check_layout(layout: Layout) -> None:
    """Refuse a layout that is none of a local gallery."""
    if layout.partition is not None:
        raise DataError(
            "A local gallery has no partitions: a condition is looked up in its table, however large it is; leave the "
            "partition key out, or use Milvus."
        )
    if layout.index not in KINDS:
        raise DataError(f"The index '{layout.index}' is one of Milvus: a local gallery has {', '.join(KINDS)}.")
    if layout.parameters:
        raise DataError("The index of a local gallery has no parameters to set: leave them out, or use Milvus.")


def check_index(index: str) -> str:
    """Refuse another way to search than there are."""
    if index not in KINDS:
        raise DataError(f"A gallery cannot be searched by '{index}'.{suggestion(str(index), KINDS)}")
    return index
