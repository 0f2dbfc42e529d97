"""The data sets of few-shot learning: Omniglot and mini-ImageNet."""

from __future__ import annotations

from nearkin.data.catalogue.download import download_all
from nearkin.data.catalogue.entry import published
from nearkin.data.catalogue.layout import ClassFolders, PublishedFolder, read_rows
from nearkin.data.dataset import Dataset

_OMNIGLOT_ADDRESS = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"


@published(
    "omniglot",
    title="Omniglot",
    classes=1_623,
    items=32_460,
    homepage="https://github.com/brendenlake/omniglot",
    licence="MIT",
    layout="omniglot/ with images_background/ and images_evaluation/<alphabet>/<character>/*.png",
    split="background set train (964 classes), evaluation set test (659, unseen); alphabet",
    tested="real data",
    folders=("omniglot-py", "omniglot/python"),
    fetch=download_all(
        (f"{_OMNIGLOT_ADDRESS}images_background.zip", "68d2efa1b9178cc56df9314c21c6e718"),
        (f"{_OMNIGLOT_ADDRESS}images_evaluation.zip", "6b91aef0f799c5bb55b94e3f2daec811"),
    ),
    class_folders=ClassFolders(outer="alphabet", joined=True),
)
def open_omniglot(at: PublishedFolder) -> Dataset:
    """Omniglot in its published folder; `alphabet` is the alphabet of a character."""
    parts = (("images_background", "train"), ("images_evaluation", "test"))
    found = [(path, split) for part, split in parts for path in at.images(at.directory(part), 2, "character's")]
    alphabets, characters = zip(*(path.split("/")[1:3] for path, _ in found), strict=True)
    return at.dataset(
        [path for path, _ in found],
        [f"{alphabet}/{character}" for alphabet, character in zip(alphabets, characters, strict=True)],
        split=[split for _, split in found],
        alphabet=alphabets,
    )


@published(
    "mini-imagenet",
    title="mini-ImageNet",
    classes=100,
    items=60_000,
    homepage="https://github.com/twitter-research/meta-learning-lstm (split files; the images are ImageNet's)",
    licence="ImageNet terms: non-commercial research",
    layout="mini-imagenet/ with train.csv, val.csv, test.csv (filename,label) and images/*.jpg",
    split="64 classes train, 16 val, 20 test (all disjoint)",
    tested="layout-tested",
    folders=("miniImageNet", "mini_imagenet", "miniimagenet"),
)
def open_mini_imagenet(at: PublishedFolder) -> Dataset:
    """mini-ImageNet by the split files of Ravi and Larochelle."""
    rows = [
        (f"images/{row['filename']}", row["label"], split)
        for split in ("train", "val", "test")
        for row in read_rows(at.file(f"{split}.csv"), ("filename", "label"))
    ]
    paths = [path for path, _, _ in rows]
    at.all_present(paths)
    return at.dataset(paths, [label for _, label, _ in rows], split=[split for _, _, split in rows])
