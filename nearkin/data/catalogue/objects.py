"""Objects and characters: CIFAR-10 and CIFAR-100 in their binary versions, PACS, mini-ImageNet and Omniglot.

The Python versions of CIFAR are pickles, which can run code when read; they are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from nearkin.data.catalogue.download import download_all
from nearkin.data.catalogue.entry import published
from nearkin.data.catalogue.layout import ClassFolders, PublishedFolder, read_lines, read_rows
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError

_CIFAR_HOMEPAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_CIFAR_SIDE = 32
_CIFAR_PIXELS = 3 * _CIFAR_SIDE * _CIFAR_SIDE


@published(
    "cifar10",
    title="CIFAR-10",
    classes=10,
    items=60_000,
    homepage=_CIFAR_HOMEPAGE,
    licence="not stated; for research",
    layout="cifar-10-batches-bin/ with batches.meta.txt, data_batch_1.bin to data_batch_5.bin and test_batch.bin",
    split="published train/test (closed)",
    tested="layout-tested",
    folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
    fetch=download_all(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")),
)
def open_cifar10(at: PublishedFolder) -> Dataset:
    """CIFAR-10 in the folder of its binary version."""
    training = tuple(f"data_batch_{batch}.bin" for batch in range(1, 6))
    return _open_cifar(at, {"label": "batches.meta.txt"}, training, "test_batch.bin", "data_batch_1")


@published(
    "cifar100",
    title="CIFAR-100",
    classes=100,
    items=60_000,
    homepage=_CIFAR_HOMEPAGE,
    licence="not stated; for research",
    layout="cifar-100-binary/ with fine_label_names.txt, coarse_label_names.txt, train.bin and test.bin",
    split="published train/test (closed); superclass: the 20 coarse labels",
    tested="real data",
    folders=("cifar-100-binary", "cifar-100-python"),
    fetch=download_all(
        ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8")
    ),
)
def open_cifar100(at: PublishedFolder) -> Dataset:
    """CIFAR-100 in the folder of its binary version; `superclass` is the coarse label."""
    names = {"superclass": "coarse_label_names.txt", "label": "fine_label_names.txt"}
    return _open_cifar(at, names, ("train.bin",), "test.bin", "train")


def _open_cifar(
    at: PublishedFolder, columns: Mapping[str, str], training: Sequence[str], testing: str, pickle: str
) -> Dataset:
    """A binary version of CIFAR.

    Args:
        at: its folder.
        columns: for each of a record's bytes before the pixels, the column of the manifest and its file of names.
        training: files of training records.
        testing: file of test records.
        pickle: a file that only the Python version has.
    """
    if (at.path / pickle).is_file() and not any(at.path.glob("*.bin")):
        raise DataError(
            f"{at.path} holds the Python version of {at.title}, pickles that can run code when they are read: "
            f"get the binary version from {_CIFAR_HOMEPAGE}."
        )
    names = [read_lines(at.file(file)) for file in columns.values()]
    parts = [_read_records(at.file(file), len(columns)) for file in (*training, testing)]
    codes, images = (np.concatenate(part) for part in zip(*parts, strict=True))
    tested = len(parts[-1][0])
    sizes = {"train": len(codes) - tested, "test": tested}
    paths = [f"{split}/{index:05d}" for split, size in sizes.items() for index in range(size)]
    named = {}
    for column, known, own in zip(columns, names, codes.T, strict=True):
        if own.max() >= len(known):
            raise at.refusal(f"it has a label {own.max()} and names for {len(known)}")
        named[column] = [known[code] for code in own]
    manifest = Manifest.from_rows(paths, named.pop("label"), split=[path.partition("/")[0] for path in paths], **named)
    return Dataset(manifest, ArrayStore(images, paths), name=at.name)


def _read_records(path: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels (n, label_bytes) and images (n, 32, 32, 3), uint8, of a file of records."""
    content = np.fromfile(path, np.uint8)
    if not content.size or content.size % (label_bytes + _CIFAR_PIXELS):
        raise DataError(f"{path} is truncated: {content.size:,} bytes are not a whole number of records; get it again.")
    records = content.reshape(-1, label_bytes + _CIFAR_PIXELS)
    planes = records[:, label_bytes:].reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE)
    return records[:, :label_bytes], np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


_PACS_DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
_PACS_WRAPPERS = ("", "kfold/", "pacs_data/", "images/")


@published(
    "pacs",
    title="PACS",
    classes=7,
    items=9_991,
    homepage="https://domaingeneralization.github.io/",
    licence="not stated; for research",
    layout="PACS/ with {art_painting,cartoon,photo,sketch}/<class>/*.jpg or *.png, perhaps below kfold/",
    split="none; domain: photo, art_painting, cartoon, sketch, of which one is left out",
    tested="real data",
    folders=("PACS",),
    class_folders=ClassFolders(outer="domain"),
)
def open_pacs(at: PublishedFolder) -> Dataset:
    """PACS in its published folder; there is no split, `domain` is what one leaves out."""
    places = [at.directory(*(f"{wrapper}{domain}" for wrapper in _PACS_WRAPPERS)) for domain in _PACS_DOMAINS]
    paths = [path for place in places for path in at.images(place, 1, "class")]
    parts = [path.split("/") for path in paths]
    return at.dataset(paths, [part[-2] for part in parts], domain=[part[-3] for part in parts])


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
