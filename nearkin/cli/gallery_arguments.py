"""What is written at the prompt, as the gallery takes it: what to enrol, what to ask, under which names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from nearkin.cli.own_vectors import read_labelled, read_table, read_vectors, value_of
from nearkin.errors import DataError

if TYPE_CHECKING:
    from nearkin.data.dataset import Dataset
    from nearkin.gallery import Gallery


@dataclass(frozen=True, eq=False)
class Queries:
    """What is asked.

    Attributes:
        names: how to call each query.
        items: files, for a gallery with a model; empty else.
        vectors: float32 (n, d), for a gallery of vectors; None else.
    """

    names: list[str]
    items: list[Path] = field(default_factory=list)
    vectors: np.ndarray | None = None


def open_gallery(path: str, model: str | None = None, engine: str = "torch") -> Gallery:
    """The gallery at a path or address; a model only where its store keeps none."""
    from nearkin.gallery import Gallery

    return Gallery.open(path, model, engine=engine)


def values_of(assignments: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Names to values from texts such as `price=20`; values are JSON where they can be read so, text else."""
    found = {}
    for assignment in assignments or ():
        name, sign, value = assignment.partition("=")
        if not (sign and name.strip()):
            raise typer.BadParameter(f"'{assignment}' sets nothing: write name=value.", param_hint=option)
        found[name.strip()] = value_of(value)
    return found


def to_enrol(
    items: str | None, vectors: Path | None, labels: Path | None, only: Sequence[str] | None, *, of_vectors: bool
) -> dict[str, Any]:
    """Arguments of `Gallery.add` for what a command is to enrol; empty for nothing.

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
        raise typer.BadParameter("It says what the --vectors are: give these too.", param_hint="--labels")
    if only and (of_vectors or items is None):
        raise typer.BadParameter("It chooses among the files of ITEMS.", param_hint="--only")
    if vectors is not None and not of_vectors:
        raise DataError(
            f"This gallery makes its vectors with its model, and {vectors} brings others: give ITEMS for the model, or "
            "create a gallery of vectors, with a dimension and a name."
        )
    if vectors is not None:
        return read_labelled(vectors, labels)
    if items is None:
        return {}
    if of_vectors:
        return read_table(Path(items))
    return {"items": _chosen(items, only) if only else items}


def to_ask(files: Sequence[Path], *, of_vectors: bool) -> Queries:
    """Files to ask about; for a gallery of vectors .npy files with a vector (d,) or several (n, d) each."""
    for file in files:
        if not file.is_file():
            raise DataError(f"There is no file {file}: check the path.")
    if not of_vectors:
        return Queries([str(file) for file in files], list(files))
    blocks = [read_vectors(file) for file in files]
    for file, block in zip(files, blocks, strict=True):
        if not block.size:
            raise DataError(f"{file} holds no vectors: give at least one.")
    widths = sorted({block.shape[1] for block in blocks})
    if len(widths) > 1:
        raise DataError(f"The queries have {' and '.join(map(str, widths))} dimensions: give vectors of one kind.")
    names = [
        str(file) if len(block) == 1 else f"{file}[{row}]"
        for file, block in zip(files, blocks, strict=True)
        for row in range(len(block))
    ]
    return Queries(names, vectors=np.concatenate(blocks))


def _chosen(items: str, only: Sequence[str]) -> Dataset:
    """A data source cut down to the rows whose columns have the values asked for."""
    from nearkin.data.sources import open_data

    dataset = open_data(items)
    mask = np.ones(len(dataset), dtype=bool)
    for assignment in only:
        name, sign, value = assignment.partition("=")
        if not (name and sign):
            raise typer.BadParameter(f"'{assignment}' chooses nothing: write name=value.", param_hint="--only")
        mask &= dataset.manifest.column(name) == value
    if not mask.any():
        raise DataError(f"No row of {items} has {' and '.join(only)}.")
    return dataset.select(mask)
