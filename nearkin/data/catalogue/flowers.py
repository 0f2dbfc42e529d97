"""Flowers-102: 102 flowers common in the United Kingdom; the first 51 train and the other 51 are unseen."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.fetch import published
from nearkin.data.catalogue.layout import Layout
from nearkin.data.catalogue.matlab import read_matlab
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore

_LAYOUT = Layout(
    "Flowers-102", "flowers-102/ with imagelabels.mat, setid.mat and jpg/image_00001.jpg to image_08189.jpg"
)
_TRAINING_CLASSES = 51
_ADDRESS = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"


def open_flowers102(folder: Path) -> Dataset:
    """Flowers-102 in its published folder; `published_split` is the publisher's split of the images of each class.

    The publisher's files hold class numbers only, so the labels are '001' to '102'.
    """
    numbers = read_matlab(_LAYOUT.file(folder, "imagelabels.mat"), "labels")["labels"]
    sets = read_matlab(_LAYOUT.file(folder, "setid.mat"), "trnid", "valid", "tstid")
    part_of = {
        int(image): part
        for name, part in (("trnid", "train"), ("valid", "val"), ("tstid", "test"))
        for image in sets[name]
    }
    images = range(1, len(numbers) + 1)
    unplaced = next((image for image in images if image not in part_of), None)
    if unplaced is not None:
        raise _LAYOUT.refusal(folder, f"setid.mat says nothing of image {unplaced}")
    paths = [f"jpg/image_{image:05d}.jpg" for image in images]
    _LAYOUT.all_present(folder, paths)
    manifest = Manifest.from_rows(
        paths,
        [f"{number:03d}" for number in numbers],
        split=["train" if number <= _TRAINING_CLASSES else "test" for number in numbers],
        published_split=[part_of[image] for image in images],
    )
    return Dataset(manifest, FolderStore(folder), name="flowers102")


enter(
    Entry(
        name="flowers102",
        title=_LAYOUT.title,
        classes=102,
        items=8_189,
        homepage=_ADDRESS,
        licence="not stated; images from the web, for research",
        layout=_LAYOUT.shape,
        split="classes 1-51 train, 52-102 test (unseen); published_split: the images of each class",
        tested="layout-tested",
        open=open_flowers102,
        folders=("flowers-102", "102flowers"),
        fetch=published(
            (f"{_ADDRESS}102flowers.tgz", "52808999861908f626f3c1f4e79d11fa"),
            (f"{_ADDRESS}imagelabels.mat", "e0620be6f572b9609742df49c70aed4d"),
            (f"{_ADDRESS}setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c"),
        ),
    )
)
