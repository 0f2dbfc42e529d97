"""Vectors that the user brings: .npy files with their labels, or Parquet tables as `nearkin embed` writes them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.errors import DataError

if TYPE_CHECKING:
    from nearkin.gallery.store import Record

_NAMES = ("label", "id")

Arguments = dict[str, Any]
"""What `Gallery.add` is given, by its names: items (vectors float32 (n, d)), labels, ids, metadata."""


def read_vectors(file: Path) -> np.ndarray:
    """Vectors float32 (n, d) of a .npy file; a single one (d,) is one row."""
    try:
        rows = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = "it is no .npy file of numbers" if file.is_file() else "there is no such file"
        raise DataError(f"The vectors {file} cannot be read: {reason}.") from error
    if not isinstance(rows, np.ndarray) or rows.ndim not in (1, 2) or rows.dtype.kind not in "fiu":
        raise DataError(f"{file} must hold numbers of the shape (n, d), or (d,) for one vector.")
    with np.errstate(over="ignore"):
        rows = np.atleast_2d(rows).astype(np.float32)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise DataError(
            f"The vector in row {int(np.argmin(finite))} of {file} holds NaN, or a value too large for float32: leave "
            "it out."
        )
    return rows


def read_labelled(vectors: Path, labels: Path | None) -> Arguments:
    """Vectors of a .npy file with what a second file says of them.

    Args:
        vectors: numbers (n, d).
        labels: a text file with a label a line, empty for none; or a CSV file with the column `label`, whose column
            `id` names the items and whose other columns become metadata.
    """
    rows = read_vectors(vectors)
    if labels is None:
        return {"items": rows}
    try:
        text = labels.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is no UTF-8 text"
        raise DataError(f"The labels {labels} cannot be read: {reason}.") from error
    facts = _csv(text, labels) if labels.suffix.lower() == ".csv" else _lines(text)
    if len(facts) != len(rows):
        raise DataError(f"{labels} has {len(facts)} rows for {len(rows)} vectors: give one for each, in order.")
    return {"items": rows, **_arguments(facts)}


def read_table(file: Path) -> Arguments:
    """Vectors of a Parquet file as `nearkin embed` writes it: embedding, label, id, path; others are metadata.

    A folder as `nearkin embed --shards` writes it is read as one table.
    """
    from nearkin.models.bulk import part_files

    files = part_files(file) if file.is_dir() else [file]
    parts = [part for one in files for part in _batches(one)]
    records = [record for some, _ in parts for record in some]
    if not records:
        raise DataError(f"{file} has no rows.")
    return {
        "items": np.concatenate([rows for _, rows in parts]),
        "labels": [record.label for record in records],
        "metadata": [{**({"path": record.source} if record.source else {}), **record.metadata} for record in records],
        "ids": [record.id for record in records],
    }


def _batches(file: Path) -> Iterator[tuple[list[Record], np.ndarray]]:
    """Items with vectors float32 (n, d) of one Parquet file, some at a time."""
    from nearkin.gallery.parquet import read_items

    if file.suffix.lower() != ".parquet":
        raise DataError(
            f"This gallery holds vectors, which cannot be made from {file}: give a .parquet file with the column "
            "'embedding', a folder of such from  nearkin embed --shards, or --vectors."
        )
    settings, batches = read_items(file)
    if settings is not None:
        raise DataError(f"{file} is the export of a gallery: take it in with  nearkin gallery import.")
    return batches


def read_tables(source: str) -> tuple[np.ndarray, list[str | None]]:
    """Vectors float32 (n, d) and labels of Parquet files, or of a folder or pattern of them."""
    from nearkin.gallery.parquet import read_items
    from nearkin.gallery.shards import parquet_files

    parts = [part for file in parquet_files(source) for part in read_items(file)[1]]
    widths = sorted({rows.shape[1] for _, rows in parts})
    if len(widths) != 1:
        told = f"vectors of {' and '.join(map(str, widths))} dimensions" if widths else "no rows"
        raise DataError(f"{source} has {told}: give vectors of one kind.")
    labels = [record.label for records, _ in parts for record in records]
    return np.concatenate([rows for _, rows in parts]), labels


def value_of(text: str) -> Any:
    """The JSON value that a text is, or the text itself; NaN and infinities are no JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _lines(text: str) -> list[dict[str, Any]]:
    # Only at line feeds: a label may hold characters that str.splitlines takes for the end of a line.
    return [{"label": line.strip("\r")} for line in text.removesuffix("\n").split("\n")]


def _csv(text: str, file: Path) -> list[dict[str, Any]]:
    from nearkin.gallery.columns import typed

    reader = csv.DictReader(io.StringIO(text, newline=""), restkey="", restval="")
    try:
        names, rows = [name for name in reader.fieldnames or () if name], list(reader)
    except csv.Error as error:
        raise DataError(f"{file} is no readable CSV file ({error}).") from error
    if "label" not in names:
        raise DataError(f"{file} has no column 'label': its first line must name the columns.")
    columns = [[row[name] for row in rows] if name in _NAMES else typed([row[name] for row in rows]) for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _arguments(rows: list[dict[str, Any]]) -> Arguments:
    """Rows of a table as labels, ids and metadata; empty cells are left out."""
    rows = [{name: value for name, value in row.items() if value is not None and value != ""} for row in rows]
    found: Arguments = {"labels": [_text(row, "label") for row in rows]}
    if any("id" in row for row in rows):
        found["ids"] = [_text(row, "id") or "" for row in rows]
    found["metadata"] = [{name: value for name, value in row.items() if name not in _NAMES} for row in rows]
    return found


def _text(row: Mapping[str, Any], name: str) -> str | None:
    return str(row[name]) if name in row else None


def _refuse(text: str) -> Any:
    raise ValueError(text)
