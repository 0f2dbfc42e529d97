"""What users say of scored answers, a number or True and False for each, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.errors import DataError


def number_column(values: Any, what: str, expected: int | None = None) -> np.ndarray:
    """Finite numbers (n,), floats as precise as they were given.

    Raises:
        DataError: if they are not flat, finite and at least one, or not `expected` of them.
    """
    column = _column(values, what, expected)
    if column.dtype.kind in "iub":
        column = column.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(column))
    if len(bad):
        raise DataError(f"The {what} are NaN or infinite in {len(bad)} rows, first in row {bad[0]}: leave these out.")
    return column


def flag_column(values: Any, what: str, expected: int, where: np.ndarray | None = None) -> np.ndarray:
    """True or False (n,), also given as 1 or 0; outside `where` (n,) anything may stand and False is returned.

    Raises:
        DataError: if there are not `expected` of them, or one is something else.
    """
    column = _column(values, f"values of '{what}'", expected)
    found = column == 1
    odd = ~found & (column != 0)
    if where is not None:
        found, odd = found & where, odd & where
    if odd.any():
        row = int(np.argmax(odd))
        raise DataError(f"'{what}' must say True or False (1 or 0) of each item, not {column[row]} as in row {row}.")
    return found


def as_array(values: Any, what: str) -> np.ndarray:
    """Numbers of any shape as an array; a tensor is detached.

    Raises:
        DataError: if they are not numbers, or some are masked.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(f"The {what} are a masked array: fill in or leave out what is masked.")
    try:
        if isinstance(values, Tensor):
            # numpy knows no bfloat16
            values = values.detach().cpu()
            values = values.float() if values.dtype == torch.bfloat16 else values
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"The {what} cannot be read as an array of numbers ({error}).") from error
    if array.dtype.kind not in "fiub":
        raise DataError(f"The {what} must be numbers, not values of type {array.dtype}.")
    return array


def _column(values: Any, what: str, expected: int | None) -> np.ndarray:
    column = as_array(values, what)
    if column.ndim != 1:
        raise DataError(f"The {what} must be a flat list, one for each item, not of shape {column.shape}.")
    if len(column) == 0:
        raise DataError(f"There are no {what}: give at least one.")
    if expected is not None and len(column) != expected:
        raise DataError(f"There are {len(column)} {what} for {expected} items: give one for each.")
    return column
