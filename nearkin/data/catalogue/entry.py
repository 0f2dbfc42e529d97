"""One data set of the catalogue: what it is, how it is laid out, and how to open or get it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nearkin.data.dataset import Dataset
from nearkin.registry import Registry


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
    kind: Literal["image", "audio"] = "image"
    fetch: Callable[[Path, bool], None] | None = None
    find: Callable[[Path | None, bool], Dataset] | None = None
    sources: str = ""

    def candidates(self, place: Path) -> list[Path]:
        """Folders of a data directory in which the published layout may be, most specific first."""
        inside = [place / self.name / folder for folder in self.folders]
        beside = [place / folder for folder in self.folders]
        itself = [place] if place.name in (*self.folders, self.name) else []
        return list(dict.fromkeys([*inside, *beside, place / self.name, *itself]))

    def how_to_get(self) -> str:
        """How a user gets the data, in a few words."""
        if self.sources:
            return self.sources
        return "downloaded by name" if self.fetch else f"by hand from {self.homepage}"


catalogue: Registry[Entry] = Registry("data set")
"""Every data set that has a name."""


def enter(entry: Entry) -> Entry:
    """Put an entry into the catalogue."""
    return catalogue.register(entry.name)(entry)
