"""Checks of labels, metadata, ids, counts and vectors, before any store sees them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.checks import check_whole
from nearkin.errors import DataError
from nearkin.gallery.values import Scalar
from nearkin.search.scorers import as_vectors
from nearkin.spaces import Space, Sphere

MAX_LABEL = 1000
MAX_ID = 200
MAX_KEY = 200
MAX_METADATA = 65_536

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NO_TEXT = re.compile(r"[\x00\ud800-\udfff]")
_MISSING_TYPES = ("NAType", "NaTType")


def check_label(label: Any) -> str:
    """A label as text, from any scalar."""
    label = _plain(label)
    if isinstance(label, bool | int) or (isinstance(label, float) and math.isfinite(label)):
        label = str(label)
    if not isinstance(label, str):
        raise DataError(f"A label must be a text, not {_shown(label)}.")
    if not label:
        raise DataError("A label is empty: give a text, or None for an item without a label.")
    if len(label) > MAX_LABEL:
        raise DataError(
            f"A label has {len(label):,} characters (it starts with {label[:30]!r}): at most {MAX_LABEL:,}."
        )
    if _CONTROL.search(label):
        raise DataError(f"The label {label[:60]!r} holds a control character: remove it.")
    return label


def labels_of(labels: Any, count: int) -> list[str | None]:
    """A label or None for each of `count` items.

    Args:
        labels: None, one text for all, or a sequence of `count` scalars, in which None and NaN mean no label.
        count: how many items there are.
    """
    if labels is None or isinstance(labels, str):
        return [None if labels is None else check_label(labels)] * count
    known: dict[Any, str | None] = {}
    found = []
    for label in _sequence(labels, count, "labels"):
        try:
            # The kind is part of the key: 1 and True are one key of a dictionary.
            key = (type(label), label)
            if key not in known:
                known[key] = None if _is_missing(label) else check_label(label)
        except TypeError as error:  # a list or the like
            raise DataError(f"A label must be a text, not {_shown(label)}.") from error
        found.append(known[key])
    return found


def check_metadata(metadata: Any) -> dict[str, Scalar]:
    """The facts of one item, with NumPy's scalars turned into plain ones."""
    if not isinstance(metadata, Mapping):
        raise DataError(f"The metadata of an item must be a mapping, not {_shown(metadata)}.")
    found: dict[str, Scalar] = {}
    for key, value in metadata.items():
        if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY:
            raise DataError(f"A name in the metadata must be a text of 1 to {MAX_KEY} characters, not {_shown(key)}.")
        if not is_text(key):
            raise DataError(f"The name {key!r} in the metadata holds a NUL or half a character: remove it.")
        try:
            found[str(key)] = scalar(value)
        except ValueError as error:
            raise DataError(f"The metadata '{key}' {error}.") from error
    size = len(json.dumps(found, ensure_ascii=False).encode())
    if size > MAX_METADATA:
        raise DataError(f"The metadata of an item has {size:,} bytes as JSON: at most {MAX_METADATA:,}.")
    return found


def metadata_of(metadata: Any, count: int) -> list[dict[str, Scalar]]:
    """Facts for each of `count` items.

    Args:
        metadata: None, one mapping for all, or a sequence of `count` mappings, in which None means no facts.
        count: how many items there are.
    """
    if metadata is None or isinstance(metadata, Mapping):
        return [check_metadata(metadata or {})] * count
    return [check_metadata({} if facts is None else facts) for facts in _sequence(metadata, count, "metadata")]


def check_ids(ids: Any, count: int) -> list[str]:
    """Ids for `count` items."""
    chosen = _sequence([ids] if isinstance(ids, str) else ids, count, "ids")
    for id in chosen:
        if not isinstance(id, str):
            raise DataError(f"An id must be a text, not {_shown(id)}.")
        if not 1 <= len(id) <= MAX_ID:
            raise DataError(f"An id has {len(id):,} characters ({id[:30]!r}): give 1 to {MAX_ID}.")
        if "/" in id or _CONTROL.search(id) or id in (".", ".."):
            raise DataError(f"The id {id!r} cannot be used: leave out '/', control characters, '.' and '..'.")
    check_distinct(chosen)
    return [str(id) for id in chosen]


def check_distinct(ids: Sequence[str]) -> None:
    """Refuse an id that comes twice."""
    if len(set(ids)) < len(ids):
        [(twice, _)] = Counter(ids).most_common(1)
        raise DataError(f"The id {twice!r} is given twice: give every item an id of its own.")


def vector_rows(vectors: Any, dimension: int | None) -> np.ndarray:
    """Vectors as float32 (n, d).

    Args:
        vectors: an array, a tensor or lists of numbers, (n, d); (d,) is one row.
        dimension: the d that is needed; None takes any.
    """
    rows = _numbers(vectors)
    if rows.shape == (0,) and dimension is not None:
        return np.empty((0, dimension), np.float32)
    rows = rows[None] if rows.ndim == 1 else rows
    wanted = "d" if dimension is None else str(dimension)
    if rows.ndim != 2 or not rows.shape[1] or dimension not in (None, rows.shape[1]):
        raise DataError(f"Vectors must have the shape (n, {wanted}) or ({wanted},), not {tuple(rows.shape)}.")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(rows, dtype=np.float32)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise DataError(
            f"The vector in row {int(np.argmin(finite))} holds NaN, or a value too large for float32: leave it out."
        )
    return rows


def check_vectors(vectors: Any, count: int | None, dimension: int) -> np.ndarray:
    """Vectors as a store takes them, float32 (n, d) and finite; n is `count` if that is given."""
    points = as_vectors(vectors, "vectors").cpu().numpy()
    if points.shape[1] != dimension:
        raise DataError(
            f"The vectors have {points.shape[1]} dimensions and the gallery has {dimension}: they must agree."
        )
    if count is not None and len(points) != count:
        raise DataError(f"You passed {len(points):,} vectors for {count:,} items: pass one for each.")
    with np.errstate(over="ignore"):
        narrow = points.astype(np.float32, copy=False)
    if narrow is not points and not np.isfinite(narrow).all():
        raise DataError("Some numbers of the vectors are too large for float32: scale them down.")
    return narrow


def _numbers(vectors: Any) -> np.ndarray:
    if isinstance(vectors, Tensor):
        return _numbers_of_tensor(vectors)
    if isinstance(vectors, list | tuple) and vectors and isinstance(vectors[0], Tensor):
        vectors = [_numbers_of_tensor(row) if isinstance(row, Tensor) else row for row in vectors]
    if isinstance(vectors, str | bytes):
        raise DataError("Vectors must be numbers (n, d), not a text: read the file first.")
    try:
        rows = np.asarray(vectors)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError("Vectors must be numbers (n, d), and all of one length.") from error
    if rows.size and rows.dtype.kind not in "iuf":
        raise DataError(f"Vectors must be numbers (n, d), not {rows.dtype} values.")
    return rows


def _numbers_of_tensor(tensor: Tensor) -> np.ndarray:
    if tensor.is_complex():
        raise DataError("Vectors must be real numbers (n, d), not complex ones.")
    try:
        tensor = tensor.detach().cpu()
        # NumPy knows no bfloat16.
        numbers: np.ndarray = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    except (TypeError, RuntimeError) as error:
        raise DataError("Vectors must be a dense tensor of numbers (n, d), not a sparse or a meta tensor.") from error
    return numbers


def _sequence(given: Any, count: int, name: str) -> list[Any]:
    """A list of `count` values from what was given for each item."""
    if isinstance(given, np.ndarray | Tensor):
        given = given.tolist()
    if isinstance(given, str | bytes | Mapping | set | frozenset) or not isinstance(given, Iterable):
        raise DataError(f"The {name} must be a list with one for each item, not {_shown(given)}.")
    values = list(given)
    if len(values) != count:
        raise DataError(f"There are {count:,} items and {len(values):,} {name}: give one for each.")
    return values


def is_text(text: str) -> bool:
    """Whether a text is without NUL and halves of characters, which no database can take."""
    return _NO_TEXT.search(text) is None


def scalar(value: Any) -> Scalar:
    """A value as metadata can hold it, NumPy's as Python's; a `ValueError` says what is wrong with another."""
    value = _plain(value)
    if isinstance(value, str):
        if not is_text(value):
            raise ValueError("holds a NUL or half a character: remove it")
        return str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError("is a whole number beyond 64 bit: give it as a text")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"is {value}: give a finite number, or None")
        return float(value)
    raise ValueError(f"is {_shown(value)}: give a text, a number, true, false or None")


def _plain(value: Any) -> Any:
    """NumPy's scalars, and arrays and tensors of one value, as Python's."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray | Tensor) and value.ndim == 0):
        return value.item()
    return value


def _is_missing(value: Any) -> bool:
    """Whether a value is None, NaN or what pandas calls missing."""
    if value is None or type(value).__name__ in _MISSING_TYPES:
        return True
    return isinstance(value, float | np.floating) and math.isnan(value)


def _shown(value: Any) -> str:
    """A value as errors tell it, in few words."""
    if value is None or isinstance(value, bool | int | float):
        return str(value)[:40]
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


MOST = 2**31 - 1
"""More than any gallery holds."""

_HALF_CHARACTER = re.compile(r"[\ud800-\udfff]")


def how_many(number: Any, name: str) -> int:
    """A whole number from 1 on; beyond what any gallery holds it is as good as that."""
    check_whole(number, name, 1)
    return min(int(number), MOST)


def is_id(id: object) -> bool:
    """Whether an item may have this id: any text of whole characters."""
    return isinstance(id, str) and not _HALF_CHARACTER.search(id)


def check_id(id: Any) -> str:
    """The id of an item that may be there or not."""
    if not is_id(id):
        shown = repr(id[:40]) if isinstance(id, str) else f"a {type(id).__name__}"
        raise DataError(f"The id of an item is a text, not {shown}.")
    return str(id)


def ids_of(ids: Any) -> list[str]:
    """Ids from one or several."""
    if isinstance(ids, str):
        return [check_id(ids)]
    if isinstance(ids, bytes | Mapping) or not isinstance(ids, Iterable):
        raise DataError(f"Give the id of an item or a list of ids, not a {type(ids).__name__}.")
    return [check_id(id) for id in ids]


def points_of_space(space: Space, rows: np.ndarray) -> np.ndarray:
    """Vectors (n, d) as points of a space, float32 (n, d).

    Raises:
        DataError: if a vector is all zeros where directions are compared.
    """
    if isinstance(space, Sphere) and len(rows) and not rows.any(axis=1).all():
        number = int(np.flatnonzero(~rows.any(axis=1))[0])
        raise DataError(f"Vector {number} is all zeros, which has no direction to compare by: leave it out.")
    with torch.no_grad():
        return space.project(torch.from_numpy(rows)).numpy().astype(np.float32, copy=False)
