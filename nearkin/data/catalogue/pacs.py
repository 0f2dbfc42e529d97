"""PACS: seven classes seen in four domains, for learning that must survive a change of domain."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.layout import IMAGE_SUFFIXES, Layout, files_in
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore

_LAYOUT = Layout("PACS", "PACS/ with {art_painting,cartoon,photo,sketch}/<class>/*.jpg or *.png, perhaps below kfold/")
_DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
_WRAPPERS = ("", "kfold/", "pacs_data/", "images/")


def open_pacs(folder: Path) -> Dataset:
    """PACS in its published folder; there is no split, `domain` is what one leaves out."""
    paths: list[str] = []
    for domain in _DOMAINS:
        place = _LAYOUT.directory(folder, *(f"{wrapper}{domain}" for wrapper in _WRAPPERS))
        found = files_in(place, IMAGE_SUFFIXES)
        odd = next((path for path in found if path.count("/") != 1), None)
        if odd is not None or not found:
            raise _LAYOUT.refusal(
                folder, f"'{odd}' in {domain} is not in a class folder" if odd else f"{domain} is empty"
            )
        paths.extend(f"{place.relative_to(folder).as_posix()}/{path}" for path in found)
    parts = [path.split("/") for path in paths]
    manifest = Manifest.from_rows(paths, [part[-2] for part in parts], domain=[part[-3] for part in parts])
    return Dataset(manifest, FolderStore(folder), name="pacs")


enter(
    Entry(
        name="pacs",
        title=_LAYOUT.title,
        classes=7,
        items=9_991,
        homepage="https://domaingeneralization.github.io/",
        licence="not stated; for research",
        layout=_LAYOUT.shape,
        split="none; domain: photo, art_painting, cartoon, sketch, of which one is left out",
        tested="real data",
        open=open_pacs,
        folders=("PACS",),
    )
)
