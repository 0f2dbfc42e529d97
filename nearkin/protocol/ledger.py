"""The ledger: one JSON line for every cell that is finished, and the values of its queries beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from nearkin.errors import RunError
from nearkin.protocol.cells import Cell
from nearkin.protocol.measuring import KEPT, Measured
from nearkin.storage import replacing, storing, write_text

DIGITS = 5
"""What numbers are rounded to: a hundredth of what any table shows, and short enough to be committed."""


class Ledger:
    """What has been measured, by cell; opening it drops a last line that a crash cut short.

    Args:
        path: the file.
        queries: the folder with the values of single queries, one file a cell.
    """

    def __init__(self, path: Path, queries: Path) -> None:
        self.path = path
        self.queries = queries
        self.rows = {Cell.of(row): row for row in _read(path)}

    def __contains__(self, cell: Cell) -> bool:
        return cell in self.rows

    def add(self, cell: Cell, measured: Measured, facts: dict[str, Any]) -> None:
        """Write a finished cell down; its queries first, so that a line in the ledger always has them."""
        with replacing(self._file(cell)) as temporary, open(temporary, "wb") as handle:
            np.savez_compressed(handle, values=measured.per_query.astype(np.float16))
        row: dict[str, Any] = {"recipe": cell.recipe, "kind": cell.kind, "seed": cell.seed, "fold": cell.fold}
        row |= {metric: round(value, DIGITS) for metric, value in measured.values.items()} | facts
        row["per_class"] = {metric: np.round(measured.per_class[metric], DIGITS).tolist() for metric in KEPT}
        with storing(self.path), open(self.path, "a", encoding="utf-8") as handle:
            handle.write(json.dumps(row, ensure_ascii=False) + "\n")
            handle.flush()
            os.fsync(handle.fileno())
        self.rows[cell] = row

    def per_query(self, cell: Cell) -> np.ndarray:
        """The values (2, n) of a finished cell's queries: MAP@R and P@1."""
        try:
            with np.load(self._file(cell), allow_pickle=False) as stored:
                return np.asarray(stored["values"], dtype=np.float64)
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise RunError(
                f"{self._file(cell)} is missing or damaged: remove the line of {cell.title} from {self.path} to have "
                "it measured again."
            ) from error

    def _file(self, cell: Cell) -> Path:
        return self.queries / f"{cell.file}.npz"


def _read(path: Path) -> list[dict[str, Any]]:
    """The lines of a ledger; what a crash left of the last one is taken out of the file."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.split("\n") if line.strip()]
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            Cell.of(row)
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines):
                raise RunError(f"Line {number} of {path} is damaged: remove it to have its cell repeated.") from error
            break
        rows.append(row)
    whole = "".join(line + "\n" for line in lines[: len(rows)])
    if whole != text:
        write_text(path, whole)
    return rows
