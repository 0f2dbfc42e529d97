"""Everyday objects: CIFAR-10 and CIFAR-100 in their binary versions, and PACS, seven classes in four domains.

The Python versions of CIFAR are pickles, which can run code when read; they are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nearkin.data.catalogue.download import download_all
from nearkin.data.catalogue.entry import Entry, add_entry
from nearkin.data.catalogue.layout import PublishedLayout, files_in, read_lines
from nearkin.data.catalogue.mirror import ClassFolders
from nearkin.data.dataset import Dataset
from nearkin.data.decode import IMAGE_SUFFIXES
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore, FolderStore
from nearkin.errors import DataError

_CIFAR_HOMEPAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_CIFAR10_LAYOUT = PublishedLayout(
    "CIFAR-10", "cifar-10-batches-bin/ with batches.meta.txt, data_batch_1.bin to data_batch_5.bin and test_batch.bin"
)
_CIFAR100_LAYOUT = PublishedLayout(
    "CIFAR-100", "cifar-100-binary/ with fine_label_names.txt, coarse_label_names.txt, train.bin and test.bin"
)
_CIFAR_SIDE = 32
_CIFAR_PIXELS = 3 * _CIFAR_SIDE * _CIFAR_SIDE


def open_cifar10(folder: Path) -> Dataset:
    """CIFAR-10 in the folder of its binary version."""
    _refuse_pickles(folder, "data_batch_1", _CIFAR10_LAYOUT)
    names = read_lines(_CIFAR10_LAYOUT.file(folder, "batches.meta.txt"))
    training = [_read_records(_CIFAR10_LAYOUT.file(folder, f"data_batch_{batch}.bin"), 1) for batch in range(1, 6)]
    labels, images = (np.concatenate(parts) for parts in zip(*training, strict=True))
    test_labels, test_images = _read_records(_CIFAR10_LAYOUT.file(folder, "test_batch.bin"), 1)
    paths = _paths(len(labels), len(test_labels))
    manifest = Manifest.from_rows(
        paths,
        _named(np.concatenate([labels, test_labels])[:, 0], names, _CIFAR10_LAYOUT, folder),
        split=[path.partition("/")[0] for path in paths],
    )
    return Dataset(manifest, ArrayStore(np.concatenate([images, test_images]), paths), name="cifar10")


def open_cifar100(folder: Path) -> Dataset:
    """CIFAR-100 in the folder of its binary version; `superclass` is the coarse label."""
    _refuse_pickles(folder, "train", _CIFAR100_LAYOUT)
    fine = read_lines(_CIFAR100_LAYOUT.file(folder, "fine_label_names.txt"))
    coarse = read_lines(_CIFAR100_LAYOUT.file(folder, "coarse_label_names.txt"))
    labels, images = _read_records(_CIFAR100_LAYOUT.file(folder, "train.bin"), 2)
    test_labels, test_images = _read_records(_CIFAR100_LAYOUT.file(folder, "test.bin"), 2)
    paths = _paths(len(labels), len(test_labels))
    codes = np.concatenate([labels, test_labels])  # (n, 2): coarse, fine
    manifest = Manifest.from_rows(
        paths,
        _named(codes[:, 1], fine, _CIFAR100_LAYOUT, folder),
        split=[path.partition("/")[0] for path in paths],
        superclass=_named(codes[:, 0], coarse, _CIFAR100_LAYOUT, folder),
    )
    return Dataset(manifest, ArrayStore(np.concatenate([images, test_images]), paths), name="cifar100")


def _refuse_pickles(folder: Path, pickle: str, layout: PublishedLayout) -> None:
    if (folder / pickle).is_file() and not any(folder.glob("*.bin")):
        raise DataError(
            f"{folder} holds the Python version of {layout.title}, pickles that can run code when they are read: "
            f"get the binary version from {_CIFAR_HOMEPAGE}."
        )


def _read_records(path: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels (n, label_bytes) and images (n, 32, 32, 3), uint8, of a file of records."""
    content = np.fromfile(path, np.uint8)
    if not content.size or content.size % (label_bytes + _CIFAR_PIXELS):
        raise DataError(f"{path} is truncated: {content.size:,} bytes are not a whole number of records; get it again.")
    records = content.reshape(-1, label_bytes + _CIFAR_PIXELS)
    planes = records[:, label_bytes:].reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE)
    return records[:, :label_bytes], np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


def _paths(training: int, testing: int) -> list[str]:
    return [f"train/{index:05d}" for index in range(training)] + [f"test/{index:05d}" for index in range(testing)]


def _named(codes: np.ndarray, names: Sequence[str], layout: PublishedLayout, folder: Path) -> list[str]:
    if codes.max() >= len(names):
        raise layout.refusal(folder, f"it has a label {codes.max()} and names for {len(names)}")
    return [names[code] for code in codes]


add_entry(
    Entry(
        name="cifar10",
        title=_CIFAR10_LAYOUT.title,
        classes=10,
        items=60_000,
        homepage=_CIFAR_HOMEPAGE,
        licence="not stated; for research",
        layout=_CIFAR10_LAYOUT.shape,
        split="published train/test (closed)",
        tested="layout-tested",
        open=open_cifar10,
        folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
        fetch=download_all(
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")
        ),
    )
)
add_entry(
    Entry(
        name="cifar100",
        title=_CIFAR100_LAYOUT.title,
        classes=100,
        items=60_000,
        homepage=_CIFAR_HOMEPAGE,
        licence="not stated; for research",
        layout=_CIFAR100_LAYOUT.shape,
        split="published train/test (closed); superclass: the 20 coarse labels",
        tested="real data",
        open=open_cifar100,
        folders=("cifar-100-binary", "cifar-100-python"),
        fetch=download_all(
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8")
        ),
    )
)


_PACS_LAYOUT = PublishedLayout(
    "PACS", "PACS/ with {art_painting,cartoon,photo,sketch}/<class>/*.jpg or *.png, perhaps below kfold/"
)
_PACS_DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
_PACS_WRAPPERS = ("", "kfold/", "pacs_data/", "images/")


def open_pacs(folder: Path) -> Dataset:
    """PACS in its published folder; there is no split, `domain` is what one leaves out."""
    paths: list[str] = []
    for domain in _PACS_DOMAINS:
        place = _PACS_LAYOUT.directory(folder, *(f"{wrapper}{domain}" for wrapper in _PACS_WRAPPERS))
        found = files_in(place, IMAGE_SUFFIXES)
        odd = next((path for path in found if path.count("/") != 1), None)
        if odd is not None or not found:
            raise _PACS_LAYOUT.refusal(
                folder, f"'{odd}' in {domain} is not in a class folder" if odd else f"{domain} is empty"
            )
        paths.extend(f"{place.relative_to(folder).as_posix()}/{path}" for path in found)
    parts = [path.split("/") for path in paths]
    manifest = Manifest.from_rows(paths, [part[-2] for part in parts], domain=[part[-3] for part in parts])
    return Dataset(manifest, FolderStore(folder), name="pacs")


add_entry(
    Entry(
        name="pacs",
        title=_PACS_LAYOUT.title,
        classes=7,
        items=9_991,
        homepage="https://domaingeneralization.github.io/",
        licence="not stated; for research",
        layout=_PACS_LAYOUT.shape,
        split="none; domain: photo, art_painting, cartoon, sketch, of which one is left out",
        tested="real data",
        open=open_pacs,
        folders=("PACS",),
        class_folders=ClassFolders(outer="domain"),
    )
)
