"""CUB-200-2011: birds, 200 species; the first 100 train and the other 100 are unseen."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.fetch import published
from nearkin.data.catalogue.layout import Layout, read_pairs
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore

_LAYOUT = Layout(
    "CUB-200-2011",
    "CUB_200_2011/ with images.txt, image_class_labels.txt, classes.txt, train_test_split.txt and images/<class>/*.jpg",
)
_TRAINING_CLASSES = 100


def open_cub200(folder: Path) -> Dataset:
    """CUB-200-2011 in its published folder; `published_split` is the publisher's split of the images of each class."""
    images = read_pairs(_LAYOUT.file(folder, "images.txt"))
    class_of = read_pairs(_LAYOUT.file(folder, "image_class_labels.txt"))
    names = read_pairs(_LAYOUT.file(folder, "classes.txt"))
    training = read_pairs(_LAYOUT.file(folder, "train_test_split.txt"))
    for image in images:
        if class_of.get(image) not in names or not class_of[image].isdigit() or image not in training:
            raise _LAYOUT.refusal(folder, f"its lists say nothing of image {image}")
    paths = [f"images/{path}" for path in images.values()]
    _LAYOUT.all_present(folder, paths)
    manifest = Manifest.from_rows(
        paths,
        [names[class_of[image]] for image in images],
        split=["train" if int(class_of[image]) <= _TRAINING_CLASSES else "test" for image in images],
        published_split=["train" if training[image] == "1" else "test" for image in images],
    )
    return Dataset(manifest, FolderStore(folder), name="cub200")


enter(
    Entry(
        name="cub200",
        title=_LAYOUT.title,
        classes=200,
        items=11_788,
        homepage="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        licence="non-commercial research and education",
        layout=_LAYOUT.shape,
        split="classes 1-100 train, 101-200 test (unseen); published_split: the images of each class",
        tested="real data",
        open=open_cub200,
        folders=("CUB_200_2011",),
        fetch=published(
            (
                "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                "97eceeb196236b17998738112f37df78",
            )
        ),
    )
)
