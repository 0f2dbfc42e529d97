"""How vectors are kept: as float32, float16, or int8 rows with a scale of their own, widened when they are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from nearkin.errors import DataError, suggestion

DTYPES = ("float32", "float16", "int8")
"""How the numbers of vectors may be stored."""

SCALE_BYTES = 4
"""What an int8 row takes beside its numbers: they come after its scale."""

_LARGEST = 127
_DIGITS = 17
_NOT_INT8 = ("poincare-ball",)


def check_dtype(dtype: Any, space: dict[str, Any]) -> None:
    """Refuse what vectors of a space, given by its settings, cannot be stored as.

    Raises:
        DataError: if so.
    """
    if not isinstance(dtype, str) or dtype not in DTYPES:
        known = ", ".join(map(repr, DTYPES[:-1]))
        raise DataError(
            f"Vectors are stored as {known} or {DTYPES[-1]!r}, not {dtype!r}.{suggestion(str(dtype), DTYPES)}"
        )
    if dtype == "int8" and space.get("name") in _NOT_INT8:
        raise DataError(
            f"int8 is too coarse for the space '{space['name']}', where points crowd at the edge: use float16."
        )


def row_bytes(dtype: str, dimension: int) -> int:
    """Bytes of one stored vector."""
    return dimension + SCALE_BYTES if dtype == "int8" else dimension * np.dtype(dtype).itemsize


def rounded(vectors: np.ndarray, dtype: str) -> np.ndarray:
    """Vectors (n, d) as a gallery gives them back, float32 (n, d).

    Raises:
        DataError: if a number is too large for that.
    """
    if dtype == "int8":
        return unpacked(packed(vectors))
    return halves(vectors).astype(np.float32) if dtype == "float16" else np.asarray(vectors, np.float32)


def halves(vectors: np.ndarray) -> np.ndarray:
    """Vectors (n, d) in half precision.

    Raises:
        DataError: if a number is too large for that.
    """
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray(vectors, np.float16)
    if not np.isfinite(made).all():
        raise DataError("Some numbers of the vectors are too large for float16: store them as float32.")
    return made


def packed(vectors: np.ndarray) -> np.ndarray:
    """Vectors (n, d) as int8 rows (n, 4 + d): the scale as four bytes of float32, then the numbers."""
    scales, numbers = quantised(vectors)
    rows = np.empty((len(numbers), SCALE_BYTES + numbers.shape[1]), np.int8)
    rows[:, :SCALE_BYTES] = scales.astype("<f4").view(np.int8).reshape(-1, SCALE_BYTES)
    rows[:, SCALE_BYTES:] = numbers
    return rows


def unpacked(rows: np.ndarray) -> np.ndarray:
    """The vectors float32 (..., d) of int8 rows (..., 4 + d)."""
    scales = np.ascontiguousarray(rows[..., :SCALE_BYTES]).view("<f4")
    vectors = rows[..., SCALE_BYTES:].astype(np.float32)
    vectors *= scales
    return vectors


def quantised(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales float32 (n,) and whole numbers int8 (n, d) whose products are near vectors (n, d)."""
    wide = np.asarray(vectors, np.float64)
    mantissas, exponents = np.frexp(np.abs(wide).max(axis=1, initial=0) / _LARGEST)
    scales = np.ldexp(np.ceil(np.ldexp(mantissas, _DIGITS)), exponents - _DIGITS).astype(np.float32)
    steps = np.where(scales == 0, 1, scales).astype(np.float64)[:, None]
    return scales, np.clip(np.rint(wide / steps), -_LARGEST, _LARGEST).astype(np.int8)


class PackedRows:
    """Rows that are read as float32 vectors, and held as int8 with a scale.

    Args:
        rows: int8 (capacity, 4 + d), as `packed` makes them.
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


VectorRows = np.ndarray | PackedRows
"""Vectors (capacity, d) that give float32 where they are indexed."""


def allocate(capacity: int, dimension: int, dtype: str) -> VectorRows:
    """Room for vectors; what is never written to takes no memory."""
    if dtype == "int8":
        return PackedRows(np.empty((capacity, SCALE_BYTES + dimension), np.int8))
    return np.empty((capacity, dimension), np.float32)


def raw_rows(vectors: VectorRows) -> np.ndarray:
    """The array that vectors are held in, to be written to."""
    return vectors.rows if isinstance(vectors, PackedRows) else vectors


def slice_rows(vectors: VectorRows, start: int, stop: int | None = None) -> VectorRows:
    """The vectors from one row to another; nothing is copied or widened."""
    if isinstance(vectors, PackedRows):
        return PackedRows(vectors.rows[start:stop])
    return vectors[start:stop]
