"""One data set of the catalogue: what it is, where it lives on this machine, and how it is opened by name."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Literal

from nearkin.data.catalogue.layout import ClassFolders, PublishedFolder, inner_folders, open_class_folders
from nearkin.data.dataset import Dataset, MediaKind
from nearkin.errors import DataError, StorageError
from nearkin.registry import Registry
from nearkin.storage import cache_directory

_ANY_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH

_ANY_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def data_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """The data directory: the one given, else `$NEARKIN_DATA`, else the user's cache."""
    chosen = given or os.environ.get("NEARKIN_DATA")
    return Path(chosen).expanduser() if chosen else cache_directory()


def reading_places(given: str | os.PathLike[str] | None = None) -> list[Path]:
    """Directories to look in, in order: what was downloaded past a read-only data directory is in the cache."""
    return list(dict.fromkeys([data_directory(given), cache_directory()]))


def writing_place(given: str | os.PathLike[str] | None = None) -> Path:
    """The first of the `reading_places` that accepts new files."""
    for place in reading_places(given):
        existing = next(folder for folder in (place, *place.absolute().parents) if folder.exists())
        # A directory without any write bit is meant to be read only, even for a user whom the system would let write.
        if existing.is_dir() and os.access(existing, os.W_OK) and existing.stat().st_mode & _ANY_WRITE:
            return place
    raise StorageError(
        f"Neither {data_directory(given)} nor {cache_directory()} is writable: choose a data directory that is."
    )


@dataclass(frozen=True)
class Entry:
    """A data set with a name.

    Args:
        name: what users type.
        title: the name in the literature.
        classes: number of classes published.
        items: number of images or recordings published.
        homepage: where its publisher describes it.
        licence: terms of use in a few words.
        layout: the published directory layout, in one line.
        split: the protocol that the `split` column follows, in one line.
        tested: "real data", or "layout-tested": tested only on miniature trees in the published layout.
        open: makes the data set of a folder in the published layout.
        folders: names under which the published folder is looked for in the data directory, besides `name`.
        kind: "image" or "audio".
        fetch: fills a new folder, given with whether to show progress, from the publisher; None if only people can.
        find: how a data set with sources of its own is found, given the data directory and whether to show progress.
        sources: those sources in words, for the table of the catalogue.
        class_folders: what the class folders of a mirror mean.
    """

    name: str
    title: str
    classes: int
    items: int
    homepage: str
    licence: str
    layout: str
    split: str
    tested: Literal["real data", "layout-tested"]
    open: Callable[[Path], Dataset]
    folders: tuple[str, ...] = ()
    kind: MediaKind = "image"
    fetch: Callable[[Path, bool], None] | None = None
    find: Callable[[Path | None, bool], Dataset] | None = None
    sources: str = ""
    class_folders: ClassFolders = field(default_factory=ClassFolders)

    def candidates(self, place: Path) -> list[Path]:
        """Folders of a data directory in which the published layout may be, most specific first."""
        inside = [place / self.name / folder for folder in self.folders]
        beside = [place / folder for folder in self.folders]
        itself = [place] if place.name in (*self.folders, self.name) else []
        return list(dict.fromkeys([*inside, *beside, place / self.name, *itself]))

    def open_anyhow(self, folder: Path) -> Dataset:
        """Open a folder in the published layout, wrapped in another folder, or in the forms that mirrors have."""
        try:
            return self.open(folder)
        except DataError as error:
            refused = error
        inner = inner_folders(folder, (self.name, *self.folders))
        for place in (folder, *inner):
            if (mirrored := self.mirrored(place)) is not None:
                return mirrored
            try:
                if place != folder:
                    return self.open(place)
            except DataError as error:
                refused = error
        raise refused

    def mirrored(self, folder: Path) -> Dataset | None:
        """The data set of train/<class>/ and test/<class>/; None if the folder has another form."""
        if self.kind != "image":
            return None
        return open_class_folders(folder, self.name, self.title, self.classes, self.class_folders)

    def how_to_get(self) -> str:
        """How a user gets the data, in a few words."""
        if self.sources:
            return self.sources
        return "downloaded by name" if self.fetch else f"by hand from {self.homepage}"


catalogue: Registry[Entry] = Registry("data set")
"""Every data set that has a name."""


def published(
    name: str, *, title: str, layout: str, kind: MediaKind = "image", **facts: Any
) -> Callable[[Callable[[PublishedFolder], Dataset]], Callable[[Path], Dataset]]:
    """Decorator that puts a data set into the catalogue, given what opens a folder in its published layout.

    Args:
        name: what users type.
        title: the name in the literature.
        layout: the published directory layout, in one line.
        kind: "image" or "audio".
        facts: the other fields of its `Entry`.
    """

    def enter(read: Callable[[PublishedFolder], Dataset]) -> Callable[[Path], Dataset]:
        @wraps(read)
        def open_folder(folder: Path) -> Dataset:
            return read(PublishedFolder(folder, name, title, layout, kind))

        entry = Entry(name=name, title=title, layout=layout, kind=kind, open=open_folder, **facts)
        catalogue.register(name)(entry)
        return open_folder

    return enter


def open_named(name: str, data_root: Path | None = None, progress: bool = True) -> Dataset:
    """Open a data set of the catalogue.

    Looks for `<name>.zip` with a manifest, then for the published layout, in the data directory and the user's cache;
    then downloads, if the publisher offers a file. Images may also be in one more folder, or in the form
    train/<class>/ and test/<class>/.

    Args:
        name: a name of the catalogue.
        data_root: the data directory; without it `$NEARKIN_DATA`, else the user's cache.
        progress: show a bar while downloading.

    Raises:
        DataError: the data is nowhere to be found; says where to get it and where to put it.
    """
    entry = catalogue.get(name)
    places = reading_places(data_root)
    for place in places:
        archive = place / f"{name}.zip"
        if archive.is_file():
            from nearkin.data.sources import open_data  # which itself falls back on this module

            found = open_data(archive)
            return Dataset(found.manifest, found.store, entry.kind, entry.name)
    folders = [folder for place in places for folder in entry.candidates(place) if folder.is_dir()]
    if entry.find is not None:
        for folder in folders:
            if (mirrored := entry.mirrored(folder)) is not None:
                return mirrored
        return entry.find(data_root, progress)
    for folder in folders:
        return entry.open_anyhow(folder)
    return _fetch(entry, data_root, progress)


def list_entries() -> list[Entry]:
    """Every entry of the catalogue, by name."""
    return [catalogue.get(name) for name in catalogue]


def catalogue_table() -> list[dict[str, str]]:
    """The catalogue as rows of text, for the command line and the docs."""
    return [
        {
            "name": entry.name,
            "title": entry.title,
            "classes": f"{entry.classes:,}",
            "items": f"{entry.items:,}",
            "split": entry.split,
            "tested": entry.tested,
            "how to get it": entry.how_to_get(),
        }
        for entry in list_entries()
    ]


def _fetch(entry: Entry, data_root: Path | None, progress: bool) -> Dataset:
    place = data_directory(data_root)
    advice = f"get it from {entry.homepage} and put it into {place} as {entry.layout}"
    if entry.kind == "image":
        advice += f", or as {entry.name}/train/<class>/ and {entry.name}/test/<class>/"
    if entry.fetch is None:
        raise DataError(f"{entry.title} is not in {place} and cannot be downloaded by a program: {advice}.")
    target = writing_place(data_root) / entry.name
    try:
        entry.fetch(target, progress)
    except DataError as error:
        reason = str(error).rstrip(".")
        raise DataError(f"{entry.title} is not in {place} and the download failed ({reason}): {advice}.") from error
    return entry.open(next(folder for folder in entry.candidates(target.parent) if folder.is_dir()))
