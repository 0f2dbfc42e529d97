"""Data sets as mirrors have them: the published folder in one more folder, or train/<class>/ and test/<class>/."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nearkin.data.catalogue.layout import files_in
from nearkin.data.dataset import Dataset
from nearkin.data.decode import IMAGE_SUFFIXES
from nearkin.data.manifest import Manifest
from nearkin.data.splits import SPLIT_PARTS, number_first
from nearkin.data.stores import FolderStore, is_junk
from nearkin.errors import DataError

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
