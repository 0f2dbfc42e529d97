"""The ledger: one JSON line for every cell that is finished, and the values of its queries beside it."""

from __future__ import annotations

import json
import math
import os
import zlib
from pathlib import Path
from typing import Any, get_args
from zipfile import BadZipFile

import numpy as np

from nearkin.errors import RunError
from nearkin.protocol.cells import Cell, Kind
from nearkin.protocol.contents import Contents
from nearkin.protocol.measuring import CLUSTERED, COUNTED, KEPT, METRICS, Measured
from nearkin.storage import replacing, storing, write_text

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

    def add(self, cell: Cell, measured: Measured, facts: dict[str, Any]) -> None:
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
    if not isinstance(row, dict) or not isinstance(row.get("recipe"), str) or row.get("kind") not in get_args(Kind):
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
