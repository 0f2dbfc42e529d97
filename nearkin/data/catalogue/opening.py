"""Opening a data set by name: our own zip, else the published layout, else a download."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.catalogue.entry import Entry, catalogue
from nearkin.data.catalogue.places import data_directory, reading_places, writing_place
from nearkin.data.dataset import Dataset
from nearkin.errors import DataError


def open_named(name: str, data_root: Path | None = None, progress: bool = True) -> Dataset:
    """Open a data set of the catalogue.

    Looks for `<name>.zip` with a manifest, then for the published layout, in the data directory and the user's cache;
    then downloads, if the publisher offers a file.

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
            return _open_zip(archive, entry)
    if entry.find is not None:
        return entry.find(data_root, progress)
    for folder in (folder for place in places for folder in entry.candidates(place)):
        if folder.is_dir():
            return entry.open(folder)
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


def _open_zip(archive: Path, entry: Entry) -> Dataset:
    from nearkin.data.sources import open_data  # which itself falls back on this module

    found = open_data(archive)
    return Dataset(found.manifest, found.store, entry.kind, entry.name)


def _fetch(entry: Entry, data_root: Path | None, progress: bool) -> Dataset:
    place = data_directory(data_root)
    advice = f"get it from {entry.homepage} and put it into {place} as {entry.layout}"
    if entry.fetch is None:
        raise DataError(f"{entry.title} is not in {place} and cannot be downloaded by a program: {advice}.")
    target = writing_place(data_root) / entry.name
    try:
        entry.fetch(target, progress)
    except DataError as error:
        reason = str(error).rstrip(".")
        raise DataError(f"{entry.title} is not in {place} and the download failed ({reason}): {advice}.") from error
    return entry.open(next(folder for folder in entry.candidates(target.parent) if folder.is_dir()))
