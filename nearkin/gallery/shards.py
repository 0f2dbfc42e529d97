"""Which Parquet files an import reads: files, folders of shards, patterns."""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from nearkin.errors import DataError, StorageError
from nearkin.gallery.places import check_place

_SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)\.parquet")
_CHUNK = 2**22

Given = str | Path | Sequence[str | Path]


def parquet_files(given: Given) -> list[Path]:
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
        else:
            found = (
                [path] if path.exists() or not glob.has_magic(str(path)) else sorted(map(Path, glob.glob(str(path))))
            )
        if found == [path] and not path.exists():
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
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open(file, "rb") as handle:
            while chunk := handle.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise StorageError(f"{file} cannot be read ({error.strerror or error}).") from error
    return digest.hexdigest()


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
                f"{given} lacks {len(missing):,} of the {count:,} shards '{name}', the first is number {missing[0]}: "
                "make them first, or give the files that you want by name."
            )
