"""Embeddings as search and metrics take them: arrays or tensors in, checked tensors out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import DataError


def as_vectors(values: Any, what: str = "embeddings") -> Tensor:
    """A detached float32 or float64 tensor (n, d) of an array, tensor or nested list.

    Raises:
        DataError: if it is not a matrix of finite numbers.
    """
    if isinstance(values, Tensor):
        vectors = values.detach()
    else:
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise DataError(f"The {what} must be numbers, not {array.dtype}.")
        vectors = torch.from_numpy(array if array.flags.writeable else array.copy())
    if vectors.dim() != 2 or vectors.shape[1] == 0:
        raise DataError(f"The {what} must have the shape (items, dimensions), not {tuple(vectors.shape)}.")
    if vectors.dtype not in (torch.float32, torch.float64):
        vectors = vectors.float()
    finite = vectors.isfinite().all(dim=1)
    if not finite.all():
        bad = torch.nonzero(~finite)[:, 0]
        raise DataError(f"The {what} hold NaN or infinite values in {len(bad)} rows, the first is row {int(bad[0])}.")
    return vectors


def as_pair(queries: Any, gallery: Any | None) -> tuple[Tensor, Tensor | None]:
    """Queries (q, d) and gallery (n, d) or None as tensors that can be compared."""
    x = as_vectors(queries, "queries")
    if gallery is None:
        return x, None
    y = as_vectors(gallery, "gallery").to(x.device)
    if x.shape[1] != y.shape[1]:
        raise DataError(f"The queries have {x.shape[1]} dimensions and the gallery has {y.shape[1]}: they must agree.")
    common = torch.promote_types(x.dtype, y.dtype)
    return x.to(common), y.to(common)
