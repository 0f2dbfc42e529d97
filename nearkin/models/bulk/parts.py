"""Parts: Parquet files of path, label and embedding that say of themselves which model made them of which rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin._version import __version__
from nearkin.data.checking import BadFile
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import not_unicode
from nearkin.data.urls import shown
from nearkin.errors import StorageError
from nearkin.models.bulk.folders import Folder

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
        listing: the fingerprint of the data's paths and labels, as `listing_of` makes it.
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
            data=shown(name or dataset.name),
            listing=listing_of(dataset),
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
                raise DamagedError(f"it is of format {told['format']}, and this nearkin reads {FORMAT}")
            values = {field.name: told[field.name] for field in fields(cls)}
            return cls(**{**values, "left_out": tuple(BadFile(**item) for item in values["left_out"])})
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError("what it says of itself is damaged") from error


def listing_of(dataset: Dataset) -> str:
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
                raise DamagedError("its columns and rows are not what it says of itself")
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
