"""NABirds: North American birds, 555 visual categories in a hierarchy."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.layout import Layout, read_pairs
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore

_LAYOUT = Layout(
    "NABirds",
    "nabirds/ with images.txt, image_class_labels.txt, classes.txt, train_test_split.txt, hierarchy.txt and "
    "images/<class number>/*.jpg",
)


def open_nabirds(folder: Path) -> Dataset:
    """NABirds in its published folder; `superclass` is the parent of a class in hierarchy.txt."""
    images = read_pairs(_LAYOUT.file(folder, "images.txt"))
    class_of = read_pairs(_LAYOUT.file(folder, "image_class_labels.txt"))
    names = read_pairs(_LAYOUT.file(folder, "classes.txt"))
    training = read_pairs(_LAYOUT.file(folder, "train_test_split.txt"))
    parent_of = read_pairs(_LAYOUT.file(folder, "hierarchy.txt"))
    for image in images:
        known = class_of.get(image) in names and image in training
        if not known or parent_of.get(class_of[image]) not in names:
            raise _LAYOUT.refusal(folder, f"its lists say nothing of image {image}")
    paths = [f"images/{path}" for path in images.values()]
    _LAYOUT.all_present(folder, paths)
    manifest = Manifest.from_rows(
        paths,
        [_unique_name(class_of[image], names) for image in images],
        split=["train" if training[image] == "1" else "test" for image in images],
        superclass=[_unique_name(parent_of[class_of[image]], names) for image in images],
    )
    return Dataset(manifest, FolderStore(folder), name="nabirds")


def _unique_name(number: str, names: dict[str, str]) -> str:
    # A species and the node above it often share a name, so the number stays in front of it.
    return f"{number.zfill(4)}.{names[number]}"


enter(
    Entry(
        name="nabirds",
        title=_LAYOUT.title,
        classes=555,
        items=48_562,
        homepage="https://dl.allaboutbirds.org/nabirds",
        licence="non-commercial research; a form to sign",
        layout=_LAYOUT.shape,
        split="published train/test of the images of each class (closed); superclass: the parent in the hierarchy",
        tested="layout-tested",
        open=open_nabirds,
        folders=("nabirds", "NABirds"),
    )
)
