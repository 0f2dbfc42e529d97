"""Omniglot: 1,623 handwritten characters of 50 alphabets; the background set trains, the evaluation set is unseen."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.fetch import published
from nearkin.data.catalogue.layout import IMAGE_SUFFIXES, Layout, files_in
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore

_LAYOUT = Layout("Omniglot", "omniglot/ with images_background/ and images_evaluation/<alphabet>/<character>/*.png")
_ADDRESS = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"


def open_omniglot(folder: Path) -> Dataset:
    """Omniglot in its published folder; `alphabet` is the alphabet of a character."""
    paths: list[str] = []
    splits: list[str] = []
    for part, split in (("images_background", "train"), ("images_evaluation", "test")):
        found = files_in(_LAYOUT.directory(folder, part), IMAGE_SUFFIXES)
        odd = next((path for path in found if path.count("/") != 2), None)
        if odd is not None or not found:
            raise _LAYOUT.refusal(
                folder, f"'{odd}' in {part} is not in a character's folder" if odd else f"{part} is empty"
            )
        paths.extend(f"{part}/{path}" for path in found)
        splits.extend([split] * len(found))
    parts = [path.split("/") for path in paths]
    manifest = Manifest.from_rows(
        paths,
        [f"{alphabet}/{character}" for _, alphabet, character, _ in parts],
        split=splits,
        alphabet=[alphabet for _, alphabet, _, _ in parts],
    )
    return Dataset(manifest, FolderStore(folder), name="omniglot")


enter(
    Entry(
        name="omniglot",
        title=_LAYOUT.title,
        classes=1_623,
        items=32_460,
        homepage="https://github.com/brendenlake/omniglot",
        licence="MIT",
        layout=_LAYOUT.shape,
        split="background set train (964 classes), evaluation set test (659, unseen); alphabet",
        tested="real data",
        open=open_omniglot,
        folders=("omniglot-py", "omniglot/python"),
        fetch=published(
            (f"{_ADDRESS}images_background.zip", "68d2efa1b9178cc56df9314c21c6e718"),
            (f"{_ADDRESS}images_evaluation.zip", "6b91aef0f799c5bb55b94e3f2daec811"),
        ),
    )
)
