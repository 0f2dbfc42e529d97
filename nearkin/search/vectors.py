"""What search and metrics take in: arrays or tensors, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import check_whole, is_real
from nearkin.errors import DataError

_HALVES = (torch.float16, torch.bfloat16)
_CHUNK_ENTRIES = 2**19
_LEAST_MB = 64


def as_vectors(values: Any, what: str = "embeddings", *, halves: bool = False) -> Tensor:
    """A detached float32 or float64 tensor (n, d) of an array, tensor or nested list; with `halves` those stay as well.

    Raises:
        DataError: if it is not a matrix of finite numbers.
    """
    if isinstance(values, Tensor):
        if values.is_complex() or values.layout != torch.strided:
            raise DataError(f"The {what} must be a plain tensor of real numbers, not {values.dtype}, {values.layout}.")
        vectors = values.detach()
    else:
        if isinstance(values, np.ma.MaskedArray):
            raise DataError(f"The {what} are a masked array: fill in or leave out what is masked.")
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise DataError(f"The {what} must be rows of one length, a matrix of numbers ({error}).") from error
        if array.dtype.kind == "f" and array.dtype.itemsize > 8:
            array = array.astype(np.float64)
        if array.dtype.kind not in "fiub":
            raise DataError(f"The {what} must be numbers, not {array.dtype}.")
        strange = not array.dtype.isnative or min(array.strides, default=0) < 0  # to torch
        if strange or not array.flags.writeable:
            array = array.astype(array.dtype.newbyteorder("="), order="C")
        vectors = torch.from_numpy(array)
    if vectors.dim() != 2 or vectors.shape[1] == 0:
        raise DataError(f"The {what} must have the shape (items, dimensions), not {tuple(vectors.shape)}.")
    if vectors.dtype not in (torch.float32, torch.float64) and not (halves and vectors.dtype in _HALVES):
        # Whole numbers beyond 2^24 are not float32's.
        vectors = vectors.double() if vectors.dtype in (torch.int32, torch.int64) else vectors.float()
    # What is not finite makes no finite sum; a sum that is not finite may have overflowed, so rows are then looked at.
    if bool(vectors.sum().isfinite()):
        return vectors
    chunks = vectors.split(max(1, _CHUNK_ENTRIES // vectors.shape[1]))
    largest = torch.cat([torch.linalg.vector_norm(part, torch.inf, dim=1) for part in chunks])
    bad = torch.nonzero(~largest.isfinite())[:, 0]
    if len(bad):
        raise DataError(f"The {what} hold NaN or infinite values in {len(bad)} rows, the first is row {int(bad[0])}.")
    return vectors


def as_pair(queries: Any, gallery: Any | None) -> tuple[Tensor, Tensor | None]:
    """Queries (q, d) and gallery (n, d) or None as tensors that can be compared; halves stay halves."""
    x = as_vectors(queries, "queries", halves=True)
    if gallery is None:
        return x, None
    y = as_vectors(gallery, "gallery", halves=True).to(x.device)
    if x.shape[1] != y.shape[1]:
        raise DataError(f"The queries have {x.shape[1]} dimensions and the gallery has {y.shape[1]}: they must agree.")
    return x, y


def as_exclude(exclude: Any | None, queries: int, items: int, *, leave_one_out: bool) -> np.ndarray | None:
    """The item (q,) int64 that every query must not find, -1 for none; None if nothing is hidden at all."""
    if exclude is None:
        return np.arange(queries) if leave_one_out else None
    if leave_one_out:
        raise DataError("`exclude` requires a gallery: without one, every query leaves out itself.")
    hidden = np.asarray(exclude.detach().cpu() if isinstance(exclude, Tensor) else exclude)
    if hidden.shape != (queries,) or hidden.dtype.kind not in "iu":
        raise DataError(f"`exclude` must be {queries} whole numbers, an item's index or -1 for each query.")
    if len(hidden) and not (hidden.min() >= -1 and hidden.max() < items):
        raise DataError(f"`exclude` must hold indices of the gallery's {items} items, or -1 for none.")
    return hidden.astype(np.int64)


def check_k(k: int, available: int) -> None:
    """Refuse a number of neighbours that cannot be found."""
    check_whole(k, "k", 1)
    if k > available:
        raise DataError(f"Cannot return k={k} neighbours: only {available} items can be searched.")


def memory_bytes(memory_mb: float) -> int:
    """A budget in MB as bytes; a search needs some room to work in."""
    if not is_real(memory_mb) or not memory_mb >= _LEAST_MB:
        raise DataError(f"`memory_mb` must be at least {_LEAST_MB}, not {memory_mb!r}.")
    return int(min(memory_mb, 2**40) * 2**20)
