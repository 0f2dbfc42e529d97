"""Reading parts: all shards of a folder as one table in the data's order, and how far a folder has come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from nearkin.data.checking import BadFile
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError
from nearkin.models.bulk.folders import Folder, check_division, open_folder
from nearkin.models.bulk.parts import Batch, DamagedError, Facts, read_facts, read_part
from nearkin.models.bulk.shards import parsed_part, part_name, unfinished_name

if TYPE_CHECKING:
    from nearkin.models.embedder import Embedder

_NAMED = 5

State = Literal["finished", "unfinished", "missing", "damaged", "other"]


@dataclass(frozen=True, eq=False)
class Embeddings:
    """The embeddings of a data set.

    Args:
        vectors: float32 (n, d), in the data's order.
        labels: (n,) str.
        paths: (n,) str.
        left_out: items that could not be read.
        facts: which model made them of which data; its shard and rows are those of the first part.
    """

    vectors: np.ndarray
    labels: np.ndarray
    paths: np.ndarray
    left_out: tuple[BadFile, ...]
    facts: Facts

    def __len__(self) -> int:
        return len(self.vectors)


@dataclass(frozen=True)
class ShardState:
    """How far a shard has come.

    Args:
        shard: which one.
        state: "finished"; "unfinished": begun; "missing"; "damaged": not whole; "other": of another model or data.
        rows: embeddings in it, if it is finished.
        left_out: items that could not be read.
        reason: what is wrong with it.
    """

    shard: int
    state: State
    rows: int = 0
    left_out: tuple[BadFile, ...] = ()
    reason: str = ""


def read_embeddings(place: str | os.PathLike[str]) -> Embeddings:
    """All parts of a folder, or of its URL, as one.

    Raises:
        DataError: parts are missing, damaged, or of several models or data sets.
    """
    told, batches = embedding_batches(place)
    facts = told[0]
    vectors = np.empty((sum(part.rows for part in told), facts.dimension), dtype=np.float32)
    paths: list[str] = []
    labels: list[str] = []
    for some_paths, some_labels, rows in batches:
        vectors[len(paths) : len(paths) + len(rows)] = rows
        paths.extend(some_paths)
        labels.extend(some_labels)
    left_out = tuple(item for part in told for item in part.left_out)
    return Embeddings(vectors, np.array(labels, dtype=object), np.array(paths, dtype=object), left_out, facts)


def embedding_batches(place: str | os.PathLike[str]) -> tuple[list[Facts], Iterator[Batch]]:
    """What each part of a folder says of itself, and (paths, labels, embeddings (n, d)) of some rows at a time.

    For what is too large to be held in memory; errors as of `read_embeddings`, damage perhaps only while reading.
    """
    folder = open_folder(place)
    names = _complete(folder)
    return _of_one_work(folder, names), _batches(folder, names)


def part_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The parts of a folder of this machine, in order, each a Parquet file; errors as of `read_embeddings`."""
    there = open_folder(folder)
    names = _complete(there)
    _of_one_work(there, names)
    return [Path(there.place(name)) for name in names]


def shard_states(
    model: Embedder, dataset: Dataset, place: str | os.PathLike[str], *, shards: int
) -> Iterator[ShardState]:
    """How far each shard of a work has come; finished ones are read to the end and their checksums compared."""
    folder, wanted = open_folder(place), Facts.of(model, dataset, shards)
    there = set(check_division(folder, shards))
    for shard in range(shards):
        name = part_name(shard, shards)
        if name not in there:
            state: State = "unfinished" if unfinished_name(shard, shards) in there else "missing"
            yield ShardState(shard, state)
            continue
        try:
            facts = read_facts(folder, name)
            difference = facts.difference(wanted)
            if difference is not None:
                yield ShardState(shard, "other", reason=f"is of {difference}")
                continue
            rows = sum(len(paths) for paths, _, _ in read_part(folder, name))
            yield ShardState(shard, "finished", rows, facts.left_out)
        except (FileNotFoundError, DamagedError) as error:
            yield ShardState(shard, "damaged", reason=str(error))


def _complete(folder: Folder) -> list[str]:
    """The names of all parts of a folder, in order; none may be missing."""
    found = [part for part in map(parsed_part, folder.names()) if part is not None]
    if not found:
        raise DataError(f"{folder.place('')} holds no parts of embeddings: make some with  nearkin embed --shards.")
    counts = sorted({shards for _, shards in found})
    if len(counts) > 1:
        raise DataError(
            f"{folder.place('')} holds parts of {counts[0]} and of {counts[1]} shards: keep one of the two."
        )
    missing = sorted(set(range(counts[0])) - {shard for shard, _ in found})
    if missing:
        named = ", ".join(map(str, missing[:_NAMED])) + (", …" if len(missing) > _NAMED else "")
        raise DataError(
            f"{folder.place('')} lacks {len(missing)} of {counts[0]} shards ({named}): embed them with the command "
            "that made the others."
        )
    return [part_name(shard, counts[0]) for shard in range(counts[0])]


def _of_one_work(folder: Folder, names: list[str]) -> list[Facts]:
    """What each part says of itself; all must be by one model, of one data set."""
    told = [_facts(folder, name) for name in names]
    for name, facts in zip(names, told, strict=True):
        difference = facts.difference(told[0])
        if difference is not None:
            raise DataError(f"{folder.place(name)} is of {difference}, unlike {names[0]}: keep each work in a folder.")
    return told


def _facts(folder: Folder, name: str) -> Facts:
    try:
        return read_facts(folder, name)
    except (FileNotFoundError, DamagedError) as error:
        raise _damaged(folder, name, error) from error


def _batches(folder: Folder, names: list[str]) -> Iterator[Batch]:
    for name in names:
        try:
            yield from read_part(folder, name)
        except (FileNotFoundError, DamagedError) as error:
            raise _damaged(folder, name, error) from error


def _damaged(folder: Folder, name: str, error: Exception) -> DataError:
    return DataError(f"{folder.place(name)} is damaged ({error}): remove it and embed that shard again.")
