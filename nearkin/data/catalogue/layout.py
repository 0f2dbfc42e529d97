"""Reading a published directory layout and its lists, with errors that say which part is missing."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearkin.data.dataset import Dataset, MediaKind
from nearkin.data.decode import IMAGE_SUFFIXES
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore
from nearkin.errors import DataError


@dataclass(frozen=True)
class PublishedFolder:
    """A folder that is read as a data set in its published layout.

    Args:
        path: the folder.
        name: of the data set.
        title: its name in the literature, for messages.
        layout: its published layout in one line, for messages.
        kind: "image" or "audio".
    """

    path: Path
    name: str
    title: str
    layout: str
    kind: MediaKind

    def file(self, *alternatives: str) -> Path:
        """The first of the alternatives that is a file of the folder."""
        return self._first(alternatives, os.path.isfile)

    def directory(self, *alternatives: str) -> Path:
        """The first of the alternatives that is a directory of the folder."""
        return self._first(alternatives, os.path.isdir)

    def images(self, part: Path, depth: int, parent: str) -> list[str]:
        """The images of one of its directories, relative to the folder, each so many folders deep."""
        found = files_in(part, IMAGE_SUFFIXES)
        odd = next((path for path in found if path.count("/") != depth), None)
        if odd is not None or not found:
            raise self.refusal(
                f"'{odd}' in {part.name} is not in a {parent} folder" if odd else f"{part.name} is empty"
            )
        return [f"{part.relative_to(self.path).as_posix()}/{path}" for path in found]

    def all_present(self, paths: Sequence[str]) -> None:
        """Refuse a folder whose own lists name no files, or files that it lacks."""
        if not paths:
            raise self.refusal("its lists are empty")
        missing = [path for path in paths if not os.path.isfile(os.path.join(self.path, path))]
        if missing:
            raise DataError(
                f"{self.path} lacks {len(missing):,} of the {len(paths):,} files that {self.title} lists, "
                f"'{missing[0]}' first: unpack the whole archive there."
            )

    def dataset(self, paths: Sequence[str], labels: Sequence[Any], **columns: Sequence[Any]) -> Dataset:
        """The data set of these files of the folder."""
        return Dataset(Manifest.from_rows(paths, labels, **columns), FolderStore(self.path), self.kind, self.name)

    def refusal(self, reason: str) -> DataError:
        """An error that says why the folder is not in this layout, and what the layout is."""
        return DataError(f"{self.path} is not {self.title} as published, {reason}: the layout is {self.layout}.")

    def _first(self, alternatives: Sequence[str], exists: Callable[[Path], bool]) -> Path:
        for name in alternatives:
            if exists(self.path / name):
                return self.path / name
        raise self.refusal(f"'{alternatives[0]}' is missing")


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
    return [name for name in FolderStore(folder).names() if name.lower().endswith(tuple(suffixes))]


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
