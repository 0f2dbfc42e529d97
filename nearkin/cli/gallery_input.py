"""Arguments of gallery commands: items to add, files to look up, NAME=VALUE pairs, vector files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from nearkin.errors import DataError

if TYPE_CHECKING:
    from nearkin.data.dataset import Dataset
    from nearkin.gallery import Gallery
    from nearkin.gallery.store import Record


_NAMES = ("label", "id")

Arguments = dict[str, Any]
"""Arguments of `Gallery.add`: items (vectors float32 (n, d)), labels, ids, metadata."""


def read_vectors(file: Path) -> np.ndarray:
    """Vectors float32 (n, d) of a .npy file; a single one (d,) is one row."""
    try:
        rows = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = "not a .npy file of numbers" if file.is_file() else "no such file"
        raise DataError(f"Cannot read the vectors {file}: {reason}.") from error
    if not isinstance(rows, np.ndarray) or rows.ndim not in (1, 2) or rows.dtype.kind not in "fiu":
        raise DataError(f"{file} must contain numbers of shape (n, d), or (d,) for one vector.")
    with np.errstate(over="ignore"):
        rows = np.atleast_2d(rows).astype(np.float32)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise DataError(
            f"The vector in row {int(np.argmin(finite))} of {file} contains NaN or a value too large for float32: "
            "remove it."
        )
    return rows


def read_labelled(vectors: Path, labels: Path | None) -> Arguments:
    """Vectors of a .npy file, with labels, ids and metadata from a second file.

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
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "not UTF-8 text"
        raise DataError(f"Cannot read the labels {labels}: {reason}.") from error
    facts = _csv(text, labels) if labels.suffix.lower() == ".csv" else _lines(text)
    if len(facts) != len(rows):
        raise DataError(f"{labels} has {len(facts)} rows for {len(rows)} vectors: give one row per vector, in order.")
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
            f"This gallery contains your own vectors, not embeddings of {file}: give a .parquet file with the column "
            "'embedding', a folder from `nearkin embed --shards`, or --vectors."
        )
    settings, batches = read_items(file)
    if settings is not None:
        raise DataError(f"{file} was exported from a gallery: use `nearkin gallery import`.")
    return batches


def read_tables(source: str) -> tuple[np.ndarray, list[str | None]]:
    """Vectors float32 (n, d) and labels of Parquet files, or of a folder or pattern of them."""
    from nearkin.gallery.bulk_import import parquet_files
    from nearkin.gallery.parquet import read_items

    parts = [part for file in parquet_files(source) for part in read_items(file)[1]]
    widths = sorted({rows.shape[1] for _, rows in parts})
    if len(widths) != 1:
        told = f"vectors of {' and '.join(map(str, widths))} dimensions" if widths else "no rows"
        raise DataError(f"{source} has {told}: give vectors of one dimension.")
    labels = [record.label for records, _ in parts for record in records]
    return np.concatenate([rows for _, rows in parts]), labels


def parse_value(text: str) -> Any:
    """A text parsed as JSON if possible, else the text itself; NaN and infinities are not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _lines(text: str) -> list[dict[str, Any]]:
    # Only at line feeds: a label may hold characters that str.splitlines takes for the end of a line.
    return [{"label": line.strip("\r")} for line in text.removesuffix("\n").split("\n")]


def _csv(text: str, file: Path) -> list[dict[str, Any]]:
    from nearkin.gallery.items import typed_column

    reader = csv.DictReader(io.StringIO(text, newline=""), restkey="", restval="")
    try:
        names, rows = [name for name in reader.fieldnames or () if name], list(reader)
    except csv.Error as error:
        raise DataError(f"Cannot read {file} as CSV ({error}).") from error
    if "label" not in names:
        raise DataError(f"{file} has no column 'label': the first line must name the columns.")
    columns = [
        [row[name] for row in rows] if name in _NAMES else typed_column([row[name] for row in rows]) for name in names
    ]
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


@dataclass(frozen=True, eq=False)
class Queries:
    """What to look up.

    Attributes:
        names: a name for each query.
        items: files, for a gallery with a model; otherwise empty.
        vectors: float32 (n, d), for a gallery of vectors; otherwise None.
    """

    names: list[str]
    items: list[Path] = field(default_factory=list)
    vectors: np.ndarray | None = None


def open_gallery(path: str, model: str | None = None, engine: str = "torch") -> Gallery:
    """Open the gallery at a path or address; a model is needed only if the gallery does not store it."""
    from nearkin.gallery import Gallery

    return Gallery.open(path, model, engine=engine)


def parse_assignments(assignments: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Names and values from texts such as `price=20`; values are parsed as JSON if possible."""
    found = {}
    for assignment in assignments or ():
        name, sign, value = assignment.partition("=")
        if not (sign and name.strip()):
            raise typer.BadParameter(f"Write name=value, not '{assignment}'.", param_hint=option)
        found[name.strip()] = parse_value(value)
    return found


def items_to_add(
    items: str | None, vectors: Path | None, labels: Path | None, only: Sequence[str] | None, *, of_vectors: bool
) -> dict[str, Any]:
    """Arguments of `Gallery.add` for what a command adds; empty if nothing.

    Args:
        items: a data source; for a gallery of vectors a Parquet file with a column of vectors.
        vectors: a .npy file (n, d), instead of items.
        labels: what the vectors are.
        only: take only rows whose columns have these values, such as `split=test`.
        of_vectors: whether the gallery holds vectors that the user brings.
    """
    if items is not None and vectors is not None:
        raise typer.BadParameter("Give ITEMS or --vectors, not both.", param_hint="--vectors")
    if labels is not None and vectors is None:
        raise typer.BadParameter("--labels requires --vectors.", param_hint="--labels")
    if only and (of_vectors or items is None):
        raise typer.BadParameter("--only requires ITEMS that are files.", param_hint="--only")
    if vectors is not None and not of_vectors:
        raise DataError(
            f"This gallery embeds items with its model and cannot take the vectors {vectors}: give ITEMS, or create "
            "a gallery of your own vectors with --dimension and --name."
        )
    if vectors is not None:
        return read_labelled(vectors, labels)
    if items is None:
        return {}
    if of_vectors:
        return read_table(Path(items))
    return {"items": _chosen(items, only) if only else items}


def queries_from(files: Sequence[Path], *, of_vectors: bool) -> Queries:
    """Files to look up; for a gallery of vectors, .npy files with one vector (d,) or several (n, d) each."""
    for file in files:
        if not file.is_file():
            raise DataError(f"No such file: {file}. Check the path.")
    if not of_vectors:
        return Queries([str(file) for file in files], list(files))
    blocks = [read_vectors(file) for file in files]
    for file, block in zip(files, blocks, strict=True):
        if not block.size:
            raise DataError(f"{file} contains no vectors: give at least one.")
    widths = sorted({block.shape[1] for block in blocks})
    if len(widths) > 1:
        raise DataError(f"The queries have {' and '.join(map(str, widths))} dimensions: give vectors of one dimension.")
    names = [
        str(file) if len(block) == 1 else f"{file}[{row}]"
        for file, block in zip(files, blocks, strict=True)
        for row in range(len(block))
    ]
    return Queries(names, vectors=np.concatenate(blocks))


def _chosen(items: str, only: Sequence[str]) -> Dataset:
    """The rows of a data source whose columns have the given values."""
    from nearkin.data.sources import open_data

    dataset = open_data(items)
    mask = np.ones(len(dataset), dtype=bool)
    for assignment in only:
        name, sign, value = assignment.partition("=")
        if not (name and sign):
            raise typer.BadParameter(f"Write name=value, not '{assignment}'.", param_hint="--only")
        mask &= dataset.manifest.column(name) == value
    if not mask.any():
        raise DataError(f"No row of {items} has {' and '.join(only)}.")
    return dataset.select(mask)
