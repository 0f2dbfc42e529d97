"""Arguments of gallery commands: items to add, files to look up, NAME=VALUE pairs, vector files."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from nearkin.cli.options import split_pairs
from nearkin.errors import DataError

if TYPE_CHECKING:
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
    if labels.suffix.lower() == ".csv":
        facts = _csv(text, labels)
    else:  # only at line feeds: a label may hold characters that str.splitlines takes for the end of a line
        facts = [{"label": line.strip("\r")} for line in text.removesuffix("\n").split("\n")]
    if len(facts) != len(rows):
        raise DataError(f"{labels} has {len(facts)} rows for {len(rows)} vectors: give one row per vector, in order.")
    facts = [{name: value for name, value in row.items() if value is not None and value != ""} for row in facts]
    names = {name: [str(row[name]) if name in row else None for row in facts] for name in _NAMES}
    found: Arguments = {"items": rows, "labels": names["label"]}
    if any(names["id"]):
        found["ids"] = [id or "" for id in names["id"]]
    found["metadata"] = [{name: value for name, value in row.items() if name not in _NAMES} for row in facts]
    return found


def read_table(file: Path) -> Arguments:
    """Vectors of a Parquet file as `nearkin embed` writes it: embedding, label, id, path; others are metadata.

    A folder as `nearkin embed --shards` writes it is read as one table.
    """
    from nearkin.gallery.parquet import read_items
    from nearkin.models.bulk import part_files

    parts: list[tuple[list[Record], np.ndarray]] = []
    for one in part_files(file) if file.is_dir() else [file]:
        if one.suffix.lower() != ".parquet":
            raise DataError(
                f"This gallery contains your own vectors, not embeddings of {one}: give a .parquet file with the "
                "column 'embedding', a folder from `nearkin embed --shards`, or --vectors."
            )
        settings, batches = read_items(one)
        if settings is not None:
            raise DataError(f"{one} was exported from a gallery: use `nearkin gallery import`.")
        parts += batches
    records = [record for some, _ in parts for record in some]
    if not records:
        raise DataError(f"{file} has no rows.")
    return {
        "items": np.concatenate([rows for _, rows in parts]),
        "labels": [record.label for record in records],
        "metadata": [{**({"path": record.source} if record.source else {}), **record.metadata} for record in records],
        "ids": [record.id for record in records],
    }


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
    if not only:
        return {"items": items}
    from nearkin.data.sources import open_data

    dataset = open_data(items)
    mask = np.ones(len(dataset), dtype=bool)
    for name, value in split_pairs(only, "--only"):
        mask &= dataset.manifest.column(name) == value
    if not mask.any():
        raise DataError(f"No row of {items} has {' and '.join(only)}.")
    return {"items": dataset.select(mask)}


def embed_queries(gallery: Gallery, files: Sequence[Path]) -> tuple[list[str], np.ndarray]:
    """The name and the vector (n, d) of each query."""
    names, queries = queries_from(files, of_vectors=gallery.settings.kind == "vector")
    return names, gallery.embed(queries)


def queries_from(files: Sequence[Path], *, of_vectors: bool) -> tuple[list[str], list[Path] | np.ndarray]:
    """A name for each query, and the files to look up; of a gallery of vectors, their vectors float32 (n, d).

    Vectors are in .npy files with one (d,) or several (n, d) each.
    """
    for file in files:
        if not file.is_file():
            raise DataError(f"No such file: {file}. Check the path.")
    if not of_vectors:
        return [str(file) for file in files], list(files)
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
    return names, np.concatenate(blocks)
