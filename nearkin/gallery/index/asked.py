"""What a search is asked for, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from nearkin.errors import DataError
from nearkin.gallery.index.forms import lengths_of
from nearkin.gallery.index.snapshot import Snapshot


@dataclass(frozen=True, eq=False)
class Asked:
    """A search.

    Attributes:
        queries: float32 (q, d).
        lengths: of the queries, float64 (q,).
        k: how many neighbours.
        allowed: which slots (count,) may be found; None: all.
        exclude: a slot (q,) that a query must not find, -1 for none; None: there are none.
    """

    queries: np.ndarray
    lengths: np.ndarray
    k: int
    allowed: np.ndarray | None = None
    exclude: np.ndarray | None = None


def checked(now: Snapshot, queries: Any, k: Any, allowed: Any, labelled: bool, exclude: Any) -> Asked:
    """What is asked for of a snapshot; arguments as for `VectorIndex.search`."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise DataError(f"The number of neighbours must be a whole number from 1 on, not k={k!r}.")
    x, lengths = as_points(queries, now.vectors.shape[1])
    return Asked(x, lengths, int(k), _as_mask(now, allowed, labelled), _as_exclude(exclude, len(x)))


def as_points(vectors: Any, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors as a contiguous float32 matrix (n, d), and their lengths float64 (n,)."""
    if isinstance(vectors, Tensor):
        vectors = vectors.detach().cpu().numpy()
    try:
        with np.errstate(over="ignore"):
            matrix = np.ascontiguousarray(vectors, np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"Vectors must be a matrix of numbers ({error}).") from error
    if matrix.ndim != 2 or matrix.shape[1] != dimension:
        raise DataError(f"Vectors must have the shape (n, {dimension}), not {matrix.shape}.")
    lengths = lengths_of(matrix)
    bad = np.flatnonzero(~np.isfinite(lengths))
    if len(bad):
        raise DataError(f"{len(bad)} of {len(matrix)} vectors hold NaN or infinite values, the first is row {bad[0]}.")
    return matrix, lengths


def _as_mask(now: Snapshot, allowed: Any | None, labelled: bool) -> np.ndarray | None:
    """Which slots (count,) may be found: what is allowed, not removed and, if asked for, labelled; None: all."""
    mask = now.visible(slice(0, now.count), labelled) if now.hides(labelled) else None
    if allowed is None:
        return mask
    given = np.asarray(allowed)
    if given.dtype != bool or given.ndim != 1 or len(given) > now.count:
        raise DataError(
            f"`allowed` must be truth values for the {now.count} slots or the first of them, not {given.dtype} of the "
            f"shape {given.shape}."
        )
    whole = np.zeros(now.count, bool)
    whole[: len(given)] = given
    return whole if mask is None else whole & mask


def _as_exclude(exclude: Any | None, q: int) -> np.ndarray | None:
    """The slot (q,) int64 that every query must not find; None: there is none."""
    if exclude is None:
        return None
    hidden = np.asarray(exclude)
    if hidden.shape != (q,) or hidden.dtype.kind not in "iu":
        raise DataError(f"`exclude` must be {q} whole numbers, a slot or -1 for each query.")
    return hidden.astype(np.int64)
