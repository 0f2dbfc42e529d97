"""Vectors in memory as int8 rows, a quarter of float32; what is looked at is widened then."""

from __future__ import annotations

from typing import Any

import numpy as np

from nearkin.gallery.rounding import SCALE_BYTES, unpacked


class PackedRows:
    """Rows that are read as float32 vectors, and held as int8 with a scale.

    Args:
        rows: int8 (capacity, 4 + d), as `rounding.packed` makes them.
    """

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    @property
    def shape(self) -> tuple[int, int]:
        """How many vectors there is room for, and their size."""
        return len(self.rows), self.rows.shape[1] - SCALE_BYTES

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: Any) -> np.ndarray:
        """Vectors float32 (..., d) of a slice, or of rows by number (...)."""
        return unpacked(self.rows[which])


Vectors = np.ndarray | PackedRows
"""Vectors (capacity, d) that give float32 where they are indexed."""


def room(capacity: int, dimension: int, dtype: str) -> Vectors:
    """Room for vectors; what is never written to takes no memory."""
    if dtype == "int8":
        return PackedRows(np.empty((capacity, SCALE_BYTES + dimension), np.int8))
    return np.empty((capacity, dimension), np.float32)


def held(vectors: Vectors) -> np.ndarray:
    """The array that vectors are held in, to be written to."""
    return vectors.rows if isinstance(vectors, PackedRows) else vectors


def stretch(vectors: Vectors, start: int, stop: int | None = None) -> Vectors:
    """The vectors from one row to another; nothing is copied or widened."""
    if isinstance(vectors, PackedRows):
        return PackedRows(vectors.rows[start:stop])
    return vectors[start:stop]
