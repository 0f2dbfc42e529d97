"""The ledger: what was measured of each finished cell, as one JSON line, with the values of its queries beside it."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from nearkin.audits.subject import asked_and_searched, published_gallery
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError, RunError
from nearkin.metrics import clustering_metrics, retrieval_metrics
from nearkin.protocol.book import Contents
from nearkin.protocol.candidates import Cell, CellKind
from nearkin.search import Scorer
from nearkin.spaces import Euclidean, LipschitzBall, Space, Sphere
from nearkin.storage import replacing, storing, write_text

METRICS = ("MAP@R", "P@1", "R-precision")
"""What every line of a ledger has."""

PRIMARY = "MAP@R"
"""What recipes are compared by."""

KEPT = METRICS[:2]
"""The metrics of which single queries and classes are kept."""

COUNTED = ("Recall@2", "Recall@4", "Recall@8", "kNN-Acc")
"""Metrics that are right or wrong for a query, of which single queries are kept; older ledgers lack them."""

CLUSTERED = "NMI"
"""Of k-means with as many clusters as test classes; older ledgers lack it."""

_NEIGHBOURS = 5  # that vote in kNN-Acc
_SEED = 0  # of k-means


@dataclass(frozen=True, eq=False)
class Measurement:
    """What one measurement found.

    Args:
        values: metric to its mean over the queries.
        per_query: values (2, n) of MAP@R and P@1, float32.
        hits: whether (4, n) each query is right by the counted metrics.
        per_class: metric to the means (c,) of the classes.
    """

    values: dict[str, float]
    per_query: np.ndarray
    hits: np.ndarray
    per_class: dict[str, np.ndarray]


class HeldOut:
    """The items that judge: which of them ask, and which are searched.

    Args:
        items: the items of the test classes.

    Attributes:
        classes: the classes that have queries, sorted.
        codes: the class of each query as an index into `classes`, int32 (n,).
        dropped: queries that were left out because nothing of their class is there to be found.
    """

    def __init__(self, items: Dataset) -> None:
        self.items = items
        self.gallery = published_gallery(items)
        labels = items.labels
        asking = labels if self.gallery is None else labels[~self.gallery]
        names, sizes = np.unique(labels if self.gallery is None else labels[self.gallery], return_counts=True)
        # A query without a gallery is one of its class's items itself.
        findable = names[sizes > (1 if self.gallery is None else 0)]
        answerable = np.isin(asking, findable)
        self.dropped = int((~answerable).sum())
        asking = asking[answerable]
        if not len(asking):
            raise DataError("No test class has two items, so nothing can be found: add items to the test classes.")
        classes, codes = np.unique(asking, return_inverse=True)
        self.classes = [str(name) for name in classes]
        self.codes = codes.astype(np.int32)

    def measure(self, embeddings: np.ndarray, space: Scorer) -> Measurement:
        """Retrieval among the items, and clusters of all of them.

        Args:
            embeddings: points (m, d) in the data's order; of length one for the sphere, for k-means takes them as they
                are.
            space: how two of them are compared.
        """
        labels = self.items.labels
        asked = asked_and_searched(embeddings, labels, self.gallery)
        result = retrieval_metrics(**asked, metrics=(*METRICS, *COUNTED), knn=_NEIGHBOURS, space=space)
        clusters = clustering_metrics(embeddings, labels, seed=_SEED)
        sizes = np.bincount(self.codes)
        return Measurement(
            result.values | {CLUSTERED: clusters[CLUSTERED]},
            np.stack([result.per_query[metric] for metric in KEPT]),
            np.stack([result.per_query[metric] > 0 for metric in COUNTED]),
            {metric: np.bincount(self.codes, weights=result.per_query[metric]) / sizes for metric in KEPT},
        )


@dataclass(frozen=True)
class ProductSpace:
    """Several spaces at once: `d(x, y)^2` is the sum of the squared distances of the parts.

    Args:
        space: the space of every part.
        parts: how many equally long parts a vector has.
    """

    space: Space
    parts: int

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (..., n, m) between (..., n, d) and (..., m, d)."""
        pairs = zip(x.chunk(self.parts, dim=-1), y.chunk(self.parts, dim=-1), strict=True)
        squares = [self.space.distance(left, right).square() for left, right in pairs]
        return torch.stack(squares).sum(dim=0).sqrt()


def concatenate(parts: Sequence[np.ndarray], space: Space) -> tuple[np.ndarray, Scorer]:
    """Points of several models, each (n, d), as one array (n, k d), and how these are compared.

    Everywhere the order is that of the product distance, the root of the summed squared distances of the models. On the
    sphere that is the renormalised concatenation; in Euclidean space and in the Lipschitz ball the concatenation as it
    is; in other spaces it is computed part by part.
    """
    joined = np.concatenate(parts, axis=1)
    if isinstance(space, Sphere):
        return Sphere().project(torch.from_numpy(joined)).numpy(), Sphere()
    if isinstance(space, Euclidean | LipschitzBall):
        return joined, Euclidean()
    return joined, ProductSpace(space, len(parts))


DIGITS = 5
"""What numbers are rounded to: a hundredth of what any table shows, and short enough to be committed."""


class Ledger:
    """What has been measured, by cell; opening it checks every line and every file of queries.

    A last line that a crash cut short is dropped.

    Args:
        path: the file.
        queries: the folder with the values of single queries, one file a cell.
        contents: what the book is about.
        count: how many queries there are.
    """

    def __init__(self, path: Path, queries: Path, contents: Contents, count: int) -> None:
        self.path = path
        self.queries = queries
        self.count = count
        self.rows: dict[Cell, dict[str, Any]] = {}
        for number, row in enumerate(_read(path), start=1):
            if not _is_whole(row, len(contents.classes)):
                raise RunError(f"Line {number} of {path} is damaged: remove it to have its cell repeated.")
            self._check_recipe(number, row, contents)
            self.rows[Cell.of(row)] = row
        for cell in self.rows:
            self.per_query(cell)

    def __contains__(self, cell: Cell) -> bool:
        return cell in self.rows

    def add(self, cell: Cell, measured: Measurement, facts: dict[str, Any]) -> None:
        """Write a finished cell down; its queries first, so that a line in the ledger always has them."""
        with replacing(self._file(cell)) as temporary, open(temporary, "wb") as handle:
            np.savez_compressed(handle, values=measured.per_query.astype(np.float16), hits=measured.hits)
        row: dict[str, Any] = {"recipe": cell.recipe, "kind": cell.kind, "seed": cell.seed, "fold": cell.fold}
        row |= {metric: round(value, DIGITS) for metric, value in measured.values.items()} | facts
        row["per_class"] = {metric: np.round(measured.per_class[metric], DIGITS).tolist() for metric in KEPT}
        with storing(self.path), open(self.path, "a", encoding="utf-8") as handle:
            handle.write(json.dumps(row, ensure_ascii=False) + "\n")
            handle.flush()
            os.fsync(handle.fileno())
        self.rows[cell] = row

    def has_further(self, cell: Cell) -> bool:
        """Whether a finished cell has Recall@k, kNN-Acc and NMI, which earlier versions did not measure."""
        return CLUSTERED in self.rows[cell]

    def per_query(self, cell: Cell) -> dict[str, np.ndarray]:
        """Metric to the values (n,) of a finished cell's queries; the counted metrics only where it has them."""
        parts = {"values": KEPT} | ({"hits": COUNTED} if self.has_further(cell) else {})
        found: dict[str, np.ndarray] = {}
        try:
            with np.load(self._file(cell), allow_pickle=False) as stored:
                for part, metrics in parts.items():
                    rows = np.asarray(stored[part], dtype=np.float64)
                    if rows.shape != (len(metrics), self.count) or not np.isfinite(rows).all():
                        raise ValueError(f"shape {rows.shape}")
                    found |= zip(metrics, rows, strict=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error) as error:
            raise RunError(
                f"{self._file(cell)} is missing or damaged: restore it, or remove the line of {cell.title} from "
                f"{self.path} to have it measured again."
            ) from error
        return found

    def _check_recipe(self, number: int, row: dict[str, Any], contents: Contents) -> None:
        """Refuse numbers of another recipe that had the name of one of the book's."""
        known = contents.recipes.get(row["recipe"])
        if known is not None and row["kind"] != "untrained" and row["hash"] != known["hash"]:
            raise RunError(
                f"Line {number} of {self.path} was measured with another recipe called '{row['recipe']}' than the one "
                f"in book.json ({row['hash']}, not {known['hash']}): restore book.json, rename the recipe, or remove "
                "its lines to have them measured again."
            )

    def _file(self, cell: Cell) -> Path:
        return self.queries / f"{cell.file}.npz"


def _read(path: Path) -> list[Any]:
    """The lines of a ledger; what a crash left of the last one is taken out of the file."""
    if not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}): restore it, or choose a new directory.") from error
    lines = [line for line in text.split("\n") if line.strip()]
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            if number < len(lines):
                raise RunError(f"Line {number} of {path} is damaged: remove it to have its cell repeated.") from error
            break
        rows.append(row)
    whole = "".join(line + "\n" for line in lines[: len(rows)])
    if whole != text:
        write_text(path, whole)
    return rows


def _is_whole(row: Any, classes: int) -> bool:
    """Whether a line says all that tables read, in the right types."""
    if not isinstance(row, dict) or not isinstance(row.get("recipe"), str) or row.get("kind") not in get_args(CellKind):
        return False
    places = all(type(row.get(key, "")) in (int, type(None)) for key in ("seed", "fold"))
    means = row.get("per_class")
    listed = isinstance(means, dict) and all(
        isinstance(means.get(metric), list) and len(means[metric]) == classes and all(map(_is_number, means[metric]))
        for metric in KEPT
    )
    further = (*COUNTED, CLUSTERED) if any(metric in row for metric in (*COUNTED, CLUSTERED)) else ()
    numbers = [*METRICS, *further, "seconds", *(["validation_MAP@R"] if row["kind"] == "separate" else [])]
    return places and listed and "hash" in row and all(_is_number(row.get(key)) for key in numbers)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
