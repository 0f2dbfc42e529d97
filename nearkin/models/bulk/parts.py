"""Parts: Parquet files of embeddings that state which model made them of which rows, and all of them as one table."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nearkin._version import __version__
from nearkin.data.dataset import BadFile, Dataset
from nearkin.data.manifest import not_unicode
from nearkin.data.stores import redacted
from nearkin.errors import DataError, StorageError
from nearkin.models.bulk.folders import Folder, check_division, open_folder, parsed_part, part_name, unfinished_name

if TYPE_CHECKING:
    import pyarrow as pa

    from nearkin.models.embedder import Embedder


KEY = b"nearkin.embeddings"
FORMAT = 1


class DamagedError(Exception):
    """A part, or a chunk of one, that is not whole, or no such file at all; never seen by users."""


@dataclass(frozen=True)
class Facts:
    """What a part says of itself.

    Args:
        model: the fingerprint of the model.
        space: how its embeddings are compared, as `Space.to_dict` gives it.
        dimension: of the embeddings.
        data: what people call the data.
        listing: the fingerprint of the data's paths and labels, as `listing_hash` makes it.
        items: how many the data has in all.
        shards: how many it is divided into.
        shard: which of them this is.
        first: the first row of the data in it.
        stop: the row after the last.
        left_out: those of its items that could not be read.
        nearkin: the version that wrote it.
    """

    model: str
    space: dict[str, Any]
    dimension: int
    data: str
    listing: str
    items: int
    shards: int
    shard: int = 0
    first: int = 0
    stop: int = 0
    left_out: tuple[BadFile, ...] = ()
    nearkin: str = __version__

    @classmethod
    def of(cls, model: Embedder, dataset: Dataset, shards: int, name: str = "") -> Facts:
        """What all parts of one work have in common."""
        return cls(
            model=model.fingerprint(),
            space=model.space.to_dict(),
            dimension=model.dimension,
            data=redacted(name or dataset.name),
            listing=listing_hash(dataset),
            items=len(dataset),
            shards=shards,
        )

    @property
    def rows(self) -> int:
        """How many embeddings there must be."""
        return self.stop - self.first - len(self.left_out)

    def over(self, shard: int, rows: range, left_out: Sequence[BadFile] = ()) -> Facts:
        """The same work's facts of some rows."""
        return replace(self, shard=shard, first=rows.start, stop=rows.stop, left_out=tuple(left_out))

    def difference(self, other: Facts) -> str | None:
        """Why two parts are not of one work, to be read after "of"; None if they are."""
        if self.model != other.model:
            return f"another model ({self.model[:12]}, not {other.model[:12]})"
        if (self.listing, self.items) != (other.listing, other.items):
            return f"other data ({self.data or 'unnamed'}, {self.items} items)"
        return None if self.shards == other.shards else f"{self.shards} shards"

    def encoded(self) -> bytes:
        """As JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}).encode("ascii")

    @classmethod
    def decoded(cls, raw: bytes) -> Facts:
        """From JSON; a `DamagedError` if it is none of ours, or of a newer format."""
        try:
            told = json.loads(raw)
            if told["format"] != FORMAT:
                raise DamagedError(f"it is of format {told['format']}, but this nearkin reads {FORMAT}")
            values = {field.name: told[field.name] for field in fields(cls)}
            return cls(**{**values, "left_out": tuple(BadFile(**item) for item in values["left_out"])})
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError("what it says of itself is damaged") from error


def listing_hash(dataset: Dataset) -> str:
    """A sha256, in hex, of every row's path and label.

    Contents do not count: a copy of the data on another machine has other times of change, and asking a store far away
    about each item of other shards would cost as much as embedding them.
    """
    digest = hashlib.sha256(dataset.kind.encode())
    for row in zip(dataset.manifest.paths, dataset.manifest.labels, strict=True):
        digest.update(json.dumps(row).encode("ascii"))
    return digest.hexdigest()


Batch = tuple[list[str], list[str], np.ndarray]
"""Paths, labels and embeddings float32 (n, d) of some rows."""


def write_part(folder: Folder, name: str, facts: Facts, batches: Iterable[Batch]) -> None:
    """Write a part, whole or not at all; each batch is a row group."""
    from pyarrow import parquet

    schema = _schema(facts)
    with (
        folder.writing(name) as temporary,
        parquet.ParquetWriter(temporary, schema, use_dictionary=["label"], write_page_checksum=True) as writer,
    ):
        for paths, labels, embeddings in batches:
            if len(paths):
                writer.write_table(_table(paths, labels, embeddings, schema), row_group_size=len(paths))


def read_facts(folder: Folder, name: str) -> Facts:
    """What a part says of itself.

    Raises:
        FileNotFoundError: there is none.
        DamagedError: it is not whole, as far as its end tells.
        StorageError: it is there, and may not be read.
    """
    with _opened(folder, name) as (facts, _):
        return facts


def read_part(folder: Folder, name: str) -> Iterator[Batch]:
    """The rows of a part, one row group at a time, checked against their checksums; errors as of `read_facts`."""
    with _opened(folder, name) as (facts, file):
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, use_threads=False)
            values = table["embedding"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            yield table["path"].to_pylist(), table["label"].to_pylist(), values.reshape(-1, facts.dimension)


@contextmanager
def _opened(folder: Folder, name: str) -> Iterator[tuple[Facts, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        handle = folder.open(name)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"{folder.place(name)} cannot be read ({error.strerror or error}): check it.") from error
    try:
        with handle, parquet.ParquetFile(handle, page_checksum_verification=True) as file:
            facts = Facts.decoded((file.schema_arrow.metadata or {}).get(KEY, b""))
            if not file.schema_arrow.equals(_schema(facts)) or file.metadata.num_rows != facts.rows:
                raise DamagedError("its columns and rows do not match its metadata")
            yield facts, file
    except (OSError, pa.ArrowException) as error:
        raise DamagedError(str(error).partition("\n")[0].rstrip(".")) from error


def _schema(facts: Facts) -> pa.Schema:
    import pyarrow as pa

    columns = [("path", pa.string()), ("label", pa.string())]
    return pa.schema([*columns, ("embedding", pa.list_(pa.float32(), facts.dimension))], {KEY: facts.encoded()})


def _table(paths: list[str], labels: list[str], embeddings: np.ndarray, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    try:
        texts = [pa.array(paths, pa.string()), pa.array(labels, pa.string())]
    except UnicodeEncodeError as error:
        raise not_unicode(error) from error
    flat = pa.array(np.ascontiguousarray(embeddings, dtype=np.float32).reshape(-1))
    vectors = pa.FixedSizeListArray.from_arrays(flat, schema.field("embedding").type.list_size)
    return pa.Table.from_arrays([*texts, vectors], schema=schema)


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
    told = _complete(folder)
    return list(told.values()), _batches(folder, list(told))


def part_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The parts of a folder of this machine, in order, each a Parquet file; errors as of `read_embeddings`."""
    there = open_folder(folder)
    return [Path(there.place(name)) for name in _complete(there)]


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


def _complete(folder: Folder) -> dict[str, Facts]:
    """What each part of a folder says of itself, in order; all must be there, by one model, of one data set."""
    found = [part for part in map(parsed_part, folder.names()) if part is not None]
    if not found:
        raise DataError(f"{folder.place('')} has no shards of embeddings: make them with  nearkin embed --shards.")
    counts = sorted({shards for _, shards in found})
    if len(counts) > 1:
        raise DataError(
            f"{folder.place('')} holds parts of {counts[0]} and of {counts[1]} shards: keep only one of them."
        )
    missing = sorted(set(range(counts[0])) - {shard for shard, _ in found})
    if missing:
        named = ", ".join(map(str, missing[:_NAMED])) + (", …" if len(missing) > _NAMED else "")
        raise DataError(
            f"{folder.place('')} lacks {len(missing)} of {counts[0]} shards ({named}): embed them with the command "
            f"used for the others."
        )
    told: dict[str, Facts] = {}
    for name in (part_name(shard, counts[0]) for shard in range(counts[0])):
        with _whole(folder, name):
            told[name] = read_facts(folder, name)
        first = next(iter(told))
        difference = told[name].difference(told[first])
        if difference is not None:
            raise DataError(
                f"{folder.place(name)} is of {difference}, unlike {first}: keep each in a folder of its own."
            )
    return told


def _batches(folder: Folder, names: list[str]) -> Iterator[Batch]:
    for name in names:
        with _whole(folder, name):
            yield from read_part(folder, name)


@contextmanager
def _whole(folder: Folder, name: str) -> Iterator[None]:
    """Say what to do about a part that the block finds damaged."""
    try:
        yield
    except (FileNotFoundError, DamagedError) as error:
        raise DataError(f"{folder.place(name)} is damaged ({error}): remove it and embed that shard again.") from error
