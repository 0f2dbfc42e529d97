"""Import of very many items from Parquet files, a batch at a time; an interrupted import resumes where it stopped."""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.errors import DataError, ModelError, StorageError
from nearkin.gallery.checks import points_of_space, vector_rows
from nearkin.gallery.parquet import ParquetTable, open_table
from nearkin.gallery.places import check_place
from nearkin.gallery.store import GalleryStore, Record
from nearkin.gallery.values import Settings
from nearkin.progress import Progress
from nearkin.spaces import Space

_SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)\.parquet")

ParquetPaths = str | Path | Sequence[str | Path]


def parquet_files(given: ParquetPaths) -> list[Path]:
    """The files that are meant, each once, in the order given, those of a folder or pattern by name.

    Args:
        given: a file, a folder, whose files that end in .parquet are meant, a pattern such as "vectors/part-*.parquet",
            or several of these.

    Raises:
        DataError: nothing is there, or of shards that count themselves, `…-00003-of-00016.parquet`, one is missing.
    """
    files: list[Path] = []
    for one in [given] if isinstance(given, str | Path) else list(given):
        check_place(one)
        path = Path(one)
        if path.is_dir():
            found = sorted(file for file in path.glob("*.parquet") if not file.name.startswith((".", "_")))
        elif path.exists():
            found = [path]
        elif glob.has_magic(str(path)):
            found = sorted(map(Path, glob.glob(str(path))))
        else:
            raise DataError(f"There is no file or folder {one}: check the path.")
        if not found:
            raise DataError(f"There is no .parquet file in {one}: check the path.")
        _check_complete(found, one)
        files += found
    if not files:
        raise DataError("There is nothing to import: give a Parquet file, or a folder of them.")
    return list(dict.fromkeys(files))


def fingerprint(file: Path) -> str:
    """What tells the content of a file from any other."""
    try:
        with open(file, "rb") as handle:
            return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise StorageError(f"{file} cannot be read ({error.strerror or error}).") from error


def _check_complete(files: Sequence[Path], given: str | Path) -> None:
    """Of several files that are shards of one whole, none may be missing."""
    shards: dict[tuple[Path, str, int], set[int]] = {}
    for file in files if len(files) > 1 or Path(given).is_dir() else ():
        if (match := _SHARD.fullmatch(file.name)) is not None:
            shards.setdefault((file.parent, match[1], int(match[3])), set()).add(int(match[2]))
    for (_, name, count), there in shards.items():
        missing = sorted(set(range(count)) - there)
        if missing:
            raise DataError(
                f"{given} is missing {len(missing):,} of the {count:,} shards of '{name}', the first is number "
                f"{missing[0]}: create them first, or pass the files you want by name."
            )


_ROWS = 2**15
_BYTES = 64 << 20


@dataclass(frozen=True)
class Imported:
    """What an import did.

    Attributes:
        rows: how many rows the files have.
        resumed: how many of them an earlier call had written, which was cut off.
        replaced: how many of the others took the place of an item, or of a row before them, that had their id.
        items: how many items the gallery has now.
    """

    rows: int
    resumed: int
    replaced: int
    items: int


def import_files(
    store: GalleryStore, space: Space, files: Sequence[Path], *, id_column: str | None, anew: bool, progress: bool
) -> Imported:
    """Add the items of Parquet files; all files are looked at before the first is read.

    Args:
        store: where to.
        space: how vectors are compared there.
        files: Parquet files that say nothing of a model, or the same as the gallery.
        id_column: which column names the items; None: the column id, and where there is none of that the path if there
            are several files, or else what `read_items` makes.
        anew: write everything, whatever the journal says.
        progress: show a progress bar.

    Raises:
        DataError: something is wrong with a file; what was written before stays.
        StorageError: the store went away; the same call goes on where it stopped.
    """
    tables = [_opened(store, file, id_column, several=len(files) > 1) for file in files]
    rows, before = sum(table.rows for table in tables), len(store)
    done = resumed = 0
    try:
        # The journal: how far each file got, by its content; empty again when all is done.
        names = [f"import {fingerprint(table.path)} {table.id_column or ''}" for table in tables]
        with Progress("Importing", rows, progress) as bar, store.loading() as load:
            for table, name in zip(tables, names, strict=True):
                noted = None if anew else store.note(name)
                first = min(noted, table.rows) if isinstance(noted, int) else 0
                bar.advance(first)
                done, resumed = done + first, resumed + first
                for records, vectors in _batches(table, first, store.settings.dimension):
                    _check_distinct(records, table)
                    # What a gallery or its model made lies in the space already: projected again it would differ a bit.
                    ready = table.settings is not None or _is_ours(store.settings, table)
                    load(records, vectors if ready else points_of_space(space, vectors))
                    first, done = first + len(records), done + len(records)
                    if done < rows:
                        store.set_note(name, first)
                    bar.advance(len(records))
        for name in dict.fromkeys(names):
            if store.note(name) is not None:
                store.set_note(name, None)
        items = len(store)
    except StorageError as error:
        raise StorageError(
            f"The import stopped after {done:,} of {rows:,} rows ({str(error).rstrip('.')}): run the same import "
            "again, and it goes on from there."
        ) from error
    return Imported(rows, resumed, max(0, rows - resumed - (items - before)), items)


def _opened(store: GalleryStore, file: Path, id_column: str | None, *, several: bool) -> ParquetTable:
    table = open_table(file, id_column)
    _check_same(store.settings, table)
    if table.dimension is not None and table.dimension != store.settings.dimension:
        raise DataError(
            f"The vectors of {file} have {table.dimension} dimensions and those of the gallery "
            f"{store.settings.dimension}: they must agree."
        )
    if several and not table.named:
        if table.source is None:
            raise DataError(
                f"{file} has neither a column 'id' nor 'path', so items of several files cannot be told apart: name a "
                "column that tells them apart (id_column)."
            )
        return open_table(file, table.source)
    return table


def _check_distinct(records: Sequence[Record], table: ParquetTable) -> None:
    """Refuse rows that a column names alike; only those of one batch are looked at, the last of others counts."""
    seen: set[str] = set()
    for record in records if table.id_column is not None else ():
        if record.id in seen:
            told = f" ({record.source})" if record.source else ""
            raise DataError(
                f"The column '{table.id_column}' of {table.path} names two items alike{told}: name a column that tells "
                "them apart."
            )
        seen.add(record.id)


def _batches(table: ParquetTable, first: int, dimension: int) -> Iterator[tuple[list[Record], np.ndarray]]:
    """Items and vectors of a file from a row on, as many at a time as may be held in memory."""
    records: list[Record] = []
    vectors: list[np.ndarray] = []
    size = 0
    for some, rows in table.read(first):
        records += some
        vectors.append(vector_rows(rows, dimension))
        size += rows.nbytes + sum(len(one.thumbnail or b"") + len(one.original or b"") for one in some)
        if len(records) >= _ROWS or size >= _BYTES:
            yield records, np.concatenate(vectors)
            records, vectors, size = [], [], 0
    if records:
        yield records, np.concatenate(vectors)


def _is_ours(mine: Settings, table: ParquetTable) -> bool:
    """Whether a file is a shard of embeddings by the model that the gallery is tied to."""
    return table.model is not None and table.model == mine.fingerprint


def _check_same(mine: Settings, table: ParquetTable) -> None:
    """Refuse vectors that another model made."""
    path, other = table.path, table.settings
    if other is None:
        if mine.kind == "vector" or _is_ours(mine, table):
            return
        if table.model is not None:
            raise ModelError(
                f"The vectors of {path} were made by another model ({table.model[:12]}) than those of the gallery "
                f"({(mine.fingerprint or '')[:12]}): embed them with the gallery's model, or create a gallery of your "
                "own vectors, with a dimension and a name."
            )
        raise ModelError(
            f"{path} does not say which model made its vectors, and this gallery is tied to one: make it with  nearkin "
            "embed --shards  or export it from a gallery of the same model, or create a gallery of your own vectors, "
            "with a dimension and a name."
        )
    tie: tuple[Any, Any] = (mine.fingerprint or mine.name, other.fingerprint or other.name)
    unlike = mine.fingerprint is None and mine.space != other.space  # one model's vectors may be compared in two ways
    if tie[0] != tie[1] or mine.dimension != other.dimension or unlike:
        raise ModelError(
            f"The vectors of {path} were made by '{other.name}' ({other.dimension} dimensions, {other.space['name']}) "
            f"and those of the gallery by '{mine.name}' ({mine.dimension}, {mine.space['name']}), and distances "
            "between them mean nothing: take them into a gallery of their own."
        )
