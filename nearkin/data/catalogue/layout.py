"""Reading a published directory layout and its lists, and the forms that mirrors give it; errors say what is missing.

Mirrors have the published folder in one more folder, or train/<class>/ and test/<class>/.
"""

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
from nearkin.data.splits import SPLIT_PARTS, number_first
from nearkin.data.stores import FolderStore, is_junk
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


_DEEPEST = 2
"""Folders that the data may be wrapped in."""


@dataclass(frozen=True)
class ClassFolders:
    """What the class folders of a mirror mean.

    Args:
        training: how many of the classes train, where the mirror divides the images of each class and the protocol
            divides the classes; None: the mirror's parts are the split.
        alphabetical: whether the publisher's order of classes is that of their names; otherwise only names that begin
            with the class's number tell which of them train.
        outer: the column that the outer one of two nested class folders is, such as the domain; empty: there is one.
        joined: whether the label is both folders' names.
    """

    training: int | None = None
    alphabetical: bool = False
    outer: str = ""
    joined: bool = False


def inner_folders(folder: Path, names: Sequence[str]) -> list[Path]:
    """Folders that the data may be in if it is not in `folder` itself, outermost first.

    Args:
        folder: where it was looked for.
        names: what the published folder may be called.
    """
    found: list[Path] = []
    for _ in range(_DEEPEST):
        children = [child for child in _visible(folder) if child.is_dir()]
        named = [child for child in children if child.name in (*names, folder.name)]
        if len(named) == 1:
            children = named
        if len(children) != 1:
            break
        folder = children[0]
        found.append(folder)
    return found


def open_class_folders(folder: Path, name: str, title: str, classes: int, meaning: ClassFolders) -> Dataset | None:
    """A data set in the form train/<class>/ and test/<class>/; None if the folder has another one.

    Args:
        folder: what holds the parts; val/, query/ and gallery/ are parts, too.
        name: of the data set.
        title: for messages.
        classes: how many classes it has.
        meaning: what its class folders mean.
    """
    parts = {
        child.name: SPLIT_PARTS[child.name.lower()] for child in _visible(folder) if child.name.lower() in SPLIT_PARTS
    }
    if not {"train", "test"} <= set(parts.values()):
        return None
    paths, splits, labels, outer, roles = [], [], [], [], []
    for part, split in sorted(parts.items()):
        for path in files_in(folder / part, IMAGE_SUFFIXES):
            *above, _ = path.split("/")
            if len(above) != (2 if meaning.outer else 1):
                where = f"<{meaning.outer}>/<class>" if meaning.outer else "<class>"
                raise DataError(f"{folder / part / path} is not in {part}/{where}/, as in other forms of {title}.")
            paths.append(f"{part}/{path}")
            splits.append(split)
            labels.append("/".join(above) if meaning.joined else above[-1])
            outer.append(above[0])
            roles.append(part.lower() if part.lower() in ("query", "gallery") else split)
    columns = {meaning.outer: outer} if meaning.outer else {}
    if {"query", "gallery"} <= set(roles):
        columns["role"] = roles
    shared = {label for label, split in zip(labels, splits, strict=True) if split == "train"} & {
        label for label, split in zip(labels, splits, strict=True) if split == "test"
    }
    if shared and meaning.training is not None:
        columns["published_split"] = splits
        training = _training_classes(folder, sorted(set(labels), key=number_first), title, classes, meaning)
        splits = ["train" if label in training else "test" for label in labels]
    return Dataset(Manifest.from_rows(paths, labels, split=splits, **columns), FolderStore(folder), name=name)


def _training_classes(folder: Path, names: list[str], title: str, classes: int, meaning: ClassFolders) -> set[str]:
    """The classes that train by the protocol; refuse folders that do not tell."""
    assert meaning.training is not None
    numbered = [name for name in names if not number_first(name)[0]]
    if len(numbered) == len(names):
        return {name for name in names if number_first(name)[1] <= meaning.training}
    if not meaning.alphabetical:
        raise DataError(
            f"{folder} has the classes of {title} without their numbers ('{names[-1]}'), which tell those that train: "
            "name the folders as published, or open it as a folder of your own by its path."
        )
    if len(names) != classes:
        raise DataError(
            f"{folder} has {len(names)} of the {classes} classes of {title}, whose order tells those that train: get "
            "all of it, or open it as a folder of your own by its path."
        )
    return set(names[: meaning.training])


def _visible(folder: Path) -> list[Path]:
    """What a folder holds, without hidden files and litter, sorted."""
    return sorted(child for child in folder.iterdir() if not is_junk(child.name)) if folder.is_dir() else []
