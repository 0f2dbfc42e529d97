"""Labels of any hashable type as integer codes, compared exactly, and half of each class drawn as reference."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from nearkin.errors import DataError
from nearkin.search import as_pair


def label_array(labels: Any, expected: int, what: str = "labels", of: str = "embeddings") -> np.ndarray:
    """Labels (n,) as a numpy array; an object array if they are neither all strings nor all numbers of a kind.

    Raises:
        DataError: if there are not `expected` of them, or one is missing (None or NaN).
    """
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise DataError(f"The {what} must be a list with one label per item, not {labels!r}.")
    array = labels
    if not isinstance(array, np.ndarray):
        values = list(labels)
        kinds = {type(value) for value in values}
        array = np.empty(len(values), dtype=object)
        array[:] = values
        if len(kinds) == 1 and isinstance(values[0], (str, int, float, np.generic)):
            array = np.array(values)
    if array.ndim != 1:
        raise DataError(f"The {what} must be one-dimensional, one per item, not of shape {array.shape}.")
    if len(array) != expected:
        raise DataError(f"There are {len(array)} {what} for {expected} {of}: pass one for each.")
    if array.dtype.kind in "fcOmM":
        missing = [row for row, label in enumerate(array.tolist()) if label is None or label != label]
        if missing:
            raise DataError(f"The {what} are missing (None or NaN) in {len(missing)} rows, first in row {missing[0]}.")
    return array


def label_codes(*arrays: np.ndarray) -> list[np.ndarray]:
    """Codes (n,) int64 for every array, from one code book; equal labels and only those have equal codes."""
    if len({array.dtype for array in arrays}) == 1 and arrays[0].dtype.kind in "iubUS":
        _, codes = np.unique(np.concatenate(arrays), return_inverse=True)
        return np.split(codes.astype(np.int64), np.cumsum([len(array) for array in arrays])[:-1])
    book: dict[Any, int] = {}  # by hash: numpy would turn the numbers of a mixture into strings or floats
    try:
        return [np.array([book.setdefault(label, len(book)) for label in array.tolist()], np.int64) for array in arrays]
    except TypeError as error:
        raise DataError(f"Labels must be strings, numbers or other hashable values ({error}).") from error


def label_pair(
    embeddings: Any, labels: Any, gallery: Any | None, gallery_labels: Any | None
) -> tuple[Tensor, Tensor | None, np.ndarray, np.ndarray, np.ndarray | None]:
    """Queries (q, d), gallery (n, d), the queries' labels (q,), and codes (q,) and (n,) of both from one code book.

    Without a gallery, that and its codes are None.
    """
    if (gallery is None) != (gallery_labels is None):
        raise DataError("gallery and gallery_labels go together: pass both or neither.")
    queries, points = as_pair(embeddings, gallery)
    names = label_array(labels, len(queries))
    if points is None:
        return queries, None, names, label_codes(names)[0], None
    codes, point_codes = label_codes(names, label_array(gallery_labels, len(points), "gallery labels"))
    return queries, points, names, codes, point_codes


def class_names(labels: np.ndarray, codes: np.ndarray) -> list[str]:
    """How the classes of labels (n,) are spelt, in the order of their codes (n,), whole numbers with none left out."""
    _, first = np.unique(codes, return_index=True)
    spelt = [str(labels[row]) for row in first]
    # 1 and "1" are two classes: where spellings meet, quotes tell them apart.
    return spelt if len(set(spelt)) == len(spelt) else [repr(label) for label in labels[first].tolist()]


def halves(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Half of each class as support, rounded up, and the other half as queries; ascending rows of labels (n,).

    A class with one item has it in the support. What the classes are called makes no difference.
    """
    (codes,) = label_codes(np.asarray(labels))
    shuffled = np.random.default_rng(seed).permutation(len(codes))
    grouped = shuffled[np.argsort(codes[shuffled], kind="stable")]
    sizes = np.bincount(codes)
    place = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    support = place < np.repeat((sizes + 1) // 2, sizes)
    return np.sort(grouped[support]), np.sort(grouped[~support])
