"""Reading a published directory layout and its lists, with errors that say which part is missing."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearkin.errors import DataError


@dataclass(frozen=True)
class PublishedLayout:
    """The shape of a published folder.

    Args:
        title: name of the data set, for messages.
        shape: the layout in one line, for messages and the catalogue.
    """

    title: str
    shape: str

    def file(self, folder: Path, *alternatives: str) -> Path:
        """The first of the alternatives that is a file of the folder."""
        return self._first(folder, alternatives, os.path.isfile)

    def directory(self, folder: Path, *alternatives: str) -> Path:
        """The first of the alternatives that is a directory of the folder."""
        return self._first(folder, alternatives, os.path.isdir)

    def all_present(self, folder: Path, paths: Sequence[str]) -> None:
        """Refuse a folder whose own lists name no files, or files that it lacks."""
        if not paths:
            raise self.refusal(folder, "its lists are empty")
        missing = [path for path in paths if not os.path.isfile(os.path.join(folder, path))]
        if missing:
            raise DataError(
                f"{folder} lacks {len(missing):,} of the {len(paths):,} files that {self.title} lists, "
                f"'{missing[0]}' first: unpack the whole archive there."
            )

    def refusal(self, folder: Path, reason: str) -> DataError:
        """An error that says why a folder is not in this layout, and what the layout is."""
        return DataError(f"{folder} is not {self.title} as published, {reason}: the layout is {self.shape}.")

    def _first(self, folder: Path, alternatives: Sequence[str], exists: Callable[[Path], bool]) -> Path:
        for name in alternatives:
            if exists(folder / name):
                return folder / name
        raise self.refusal(folder, f"'{alternatives[0]}' is missing")


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank."""
    with open(path, encoding="utf-8-sig", errors="replace") as handle:
        return [line.strip() for line in handle if line.strip()]


def read_pairs(path: Path) -> dict[str, str]:
    """A list of lines `key value`, whose value may hold spaces, in order."""
    pairs: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        key, _, value = line.partition(" ")
        if not value or key in pairs:
            raise DataError(f"{path} has a bad line {number}, '{line}': expected 'key value' with each key once.")
        pairs[key] = value.strip()
    return pairs


def read_fields(lines: Sequence[str], count: int, path: Path) -> Iterator[list[str]]:
    """The fields between white space of lines that have `count` of them; the last may hold spaces."""
    for line in lines:
        fields = line.split(maxsplit=count - 1)
        if len(fields) != count:
            raise DataError(f"{path} has a bad line '{line}': expected {count} fields.")
        yield fields


def read_rows(path: Path, needed: Sequence[str], separator: str = ",") -> list[dict[str, str]]:
    """The rows of a table with a header, gzipped or not; names and values are stripped of white space."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, delimiter=separator)
            header = [name.strip() for name in next(reader, [])]
            rows = [dict(zip(header, (value.strip() for value in row), strict=False)) for row in reader if row]
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} could not be read as a table ({error}): download it again.") from error
    for name in needed:
        if name not in header:
            raise DataError(f"{path} has no column '{name}' but {', '.join(header) or 'nothing'}: download it again.")
    short = next((number for number, row in enumerate(rows, start=2) if len(row) < len(header)), None)
    if short is not None:
        raise DataError(f"{path} has too few values in line {short}: download it again.")
    return rows


def files_in(folder: Path, suffixes: Iterable[str]) -> list[str]:
    """Files with these suffixes below a folder, relative to it with '/' and sorted; hidden ones are left out."""
    found: list[str] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        link = next((name for name in folders if os.path.islink(os.path.join(parent, name))), None)
        if link is not None:
            raise DataError(
                f"{os.path.join(parent, link)} is a link to a folder, which is not followed: copy it instead."
            )
        relative = os.path.relpath(parent, folder).replace(os.sep, "/")
        prefix = "" if relative == "." else f"{relative}/"
        found.extend(
            f"{prefix}{name}" for name in names if name.lower().endswith(tuple(suffixes)) and not name.startswith(".")
        )
    return sorted(found)


def read_matlab(path: Path, *names: str) -> dict[str, Any]:
    """The named variables of a `.mat` file as arrays of at least one dimension, without singleton axes."""
    import numpy as np
    from scipy.io import loadmat

    try:
        content = loadmat(path, squeeze_me=True, variable_names=list(names))
    except Exception as error:  # scipy raises whatever its parser runs into
        raise DataError(f"{path} could not be read as a MATLAB file ({error}): download it again.") from error
    for name in names:
        if name not in content:
            raise DataError(f"{path} has no variable '{name}': download it again.")
    return {name: np.atleast_1d(content[name]) for name in names}
