"""Checks of what users pass to metrics: scores and flags, distance matrices, rankings of classes; results for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import check_whole
from nearkin.errors import DataError, suggestion
from nearkin.metrics.labels import label_array


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
        raise DataError(f"The {what} are NaN or infinite in {len(bad)} rows, first in row {bad[0]}: remove these rows.")
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
        raise DataError(f"'{what}' must be True or False (1 or 0) for each item; row {row} has {column[row]}.")
    return found


def as_array(values: Any, what: str) -> np.ndarray:
    """Numbers of any shape as an array; a tensor is detached.

    Raises:
        DataError: if they are not numbers, or some are masked.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(f"The {what} are a masked array: fill or remove the masked values.")
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


def number_table(values: Any, what: str, shape: str, kinds: str = "fiub") -> np.ndarray:
    """Numbers of one of these kinds of dtype in two dimensions, neither of them empty."""
    table = as_array(values, what)
    if table.ndim != 2 or 0 in table.shape or table.dtype.kind not in kinds:
        kind = "whole numbers of" if kinds == "iu" else "of"
        raise DataError(f"The {what} must be {kind} shape {shape}, not {table.dtype} of shape {table.shape}.")
    return table


def _column(values: Any, what: str, expected: int | None) -> np.ndarray:
    column = as_array(values, what)
    if column.ndim != 1:
        raise DataError(f"The {what} must be one-dimensional, one per item, not of shape {column.shape}.")
    if len(column) == 0:
        raise DataError(f"There are no {what}: pass at least one.")
    if expected is not None and len(column) != expected:
        raise DataError(f"There are {len(column)} {what} for {expected} items: pass one per item.")
    return column


_ROUNDING = 1e-6
"""Share of the largest distance by which the two directions of a pair may differ."""


def square_matrix(values: Any, what: str, classes: int | None = None) -> np.ndarray:
    """Finite numbers between classes, float64 (C, C).

    Raises:
        DataError: if they are not square and finite, or not of `classes` classes.
    """
    matrix = as_array(values, what).astype(np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise DataError(f"The {what} must be a square matrix (classes, classes), not of shape {matrix.shape}.")
    if classes is not None and len(matrix) != classes:
        raise DataError(f"The {what} cover {len(matrix)} classes, but there are {classes}.")
    if not np.isfinite(matrix).all():
        row = int(np.argmin(np.isfinite(matrix).all(axis=1)))
        raise DataError(f"The {what} contain NaN or infinite values, first in row {row}.")
    return matrix


def symmetric_distances(values: Any, what: str, classes: int | None = None) -> np.ndarray:
    """Distances between classes, float64 (C, C): not negative, zero to itself, the same both ways.

    Raises:
        DataError: if they are not.
    """
    matrix = square_matrix(values, what, classes)
    allowed = _ROUNDING * np.abs(matrix).max()
    if matrix.min() < -allowed:
        raise DataError(f"The {what} must not be negative, such as {matrix.min():g}: pass distances, not similarities.")
    if np.abs(np.diagonal(matrix)).max() > allowed:
        raise DataError(f"The {what} must be 0 on the diagonal: pass distances, not similarities.")
    gap = np.abs(matrix - matrix.T)
    if gap.max() > allowed:
        row, column = np.unravel_index(int(gap.argmax()), gap.shape)
        raise DataError(
            f"The {what} must be symmetric, but those between classes {row} and {column} are "
            f"{matrix[row, column]:g} and {matrix[column, row]:g}."
        )
    matrix = np.maximum((matrix + matrix.T) / 2, 0.0)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def class_ids(labels: Any, expected: int, classes: int, names: Sequence[str] | None, of: str) -> np.ndarray:
    """Labels (n,) as rows of a matrix between classes, int64 (n,).

    Args:
        labels: whole numbers from 0 without `names`, else labels that are spelt like one of them.
        expected: how many there must be.
        classes: how many classes there are.
        names: the class of each row.
        of: what the labels are of, for messages.
    """
    array = label_array(labels, expected, of=of)
    if names is None:
        if len(array) and array.dtype.kind not in "iu":
            raise DataError(
                f"Without class names the labels must be whole numbers, rows of the distances, not {array[0]!r}."
            )
        if len(array) and not (array.min() >= 0 and array.max() < classes):
            raise DataError(
                f"Labels from {array.min()} to {array.max()} do not fit distances between {classes} classes: they must "
                f"be from 0 to {classes - 1}."
            )
        return array.astype(np.int64)
    if len(names) != classes or len(set(names)) != len(names):
        raise DataError(f"There are {len(set(names))} different class names for {classes} classes: pass one per class.")
    rows = {str(name): row for row, name in enumerate(names)}
    present, place = np.unique(array.astype(str), return_inverse=True)
    missing = [str(label) for label in present if label not in rows]
    if missing:
        raise DataError(
            f"The class '{missing[0]}' is not among the {classes} class names"
            f"{f' (nor are {len(missing) - 1} others)' if missing[1:] else ''}.{suggestion(missing[0], rows)}"
        )
    return np.array([rows[str(label)] for label in present], np.int64)[place]


def ascending_ks(given: Any, what: str) -> list[int]:
    """Whole numbers from 1 up, each once, ascending; a single one is a list of one."""
    several = [given] if not isinstance(given, Sequence | np.ndarray) or isinstance(given, str) else list(given)
    for k in several:
        check_whole(k, f"k of {what}", 1)
    return sorted({int(k) for k in several})


def as_plain(result: Mapping[str, Any]) -> dict[str, Any]:
    """The same as JSON can hold it: arrays and tuples as lists, None for what is not finite."""
    return {key: _plain(value) for key, value in result.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return as_plain(value)
    if isinstance(value, np.ndarray) and (value.dtype.kind != "f" or np.isfinite(value).all()):
        return value.tolist()
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(one) for one in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return None if isinstance(value, float) and not math.isfinite(value) else value
