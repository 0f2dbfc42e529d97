"""CIFAR-10 and CIFAR-100 in their binary versions: label bytes, then 32 x 32 red, green and blue bytes.

The Python versions are pickles, which can run code when read; they are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.fetch import published
from nearkin.data.catalogue.layout import Layout, read_lines
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError

_HOMEPAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_TEN = Layout(
    "CIFAR-10", "cifar-10-batches-bin/ with batches.meta.txt, data_batch_1.bin to data_batch_5.bin and test_batch.bin"
)
_HUNDRED = Layout(
    "CIFAR-100", "cifar-100-binary/ with fine_label_names.txt, coarse_label_names.txt, train.bin and test.bin"
)
_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


def open_cifar10(folder: Path) -> Dataset:
    """CIFAR-10 in the folder of its binary version."""
    _refuse_pickles(folder, "data_batch_1", _TEN)
    names = read_lines(_TEN.file(folder, "batches.meta.txt"))
    training = [_read_records(_TEN.file(folder, f"data_batch_{batch}.bin"), 1) for batch in range(1, 6)]
    labels, images = (np.concatenate(parts) for parts in zip(*training, strict=True))
    test_labels, test_images = _read_records(_TEN.file(folder, "test_batch.bin"), 1)
    paths = _paths(len(labels), len(test_labels))
    manifest = Manifest.from_rows(
        paths,
        _named(np.concatenate([labels, test_labels])[:, 0], names, _TEN, folder),
        split=[path.partition("/")[0] for path in paths],
    )
    return Dataset(manifest, ArrayStore(np.concatenate([images, test_images]), paths), name="cifar10")


def open_cifar100(folder: Path) -> Dataset:
    """CIFAR-100 in the folder of its binary version; `superclass` is the coarse label."""
    _refuse_pickles(folder, "train", _HUNDRED)
    fine = read_lines(_HUNDRED.file(folder, "fine_label_names.txt"))
    coarse = read_lines(_HUNDRED.file(folder, "coarse_label_names.txt"))
    labels, images = _read_records(_HUNDRED.file(folder, "train.bin"), 2)
    test_labels, test_images = _read_records(_HUNDRED.file(folder, "test.bin"), 2)
    paths = _paths(len(labels), len(test_labels))
    codes = np.concatenate([labels, test_labels])  # (n, 2): coarse, fine
    manifest = Manifest.from_rows(
        paths,
        _named(codes[:, 1], fine, _HUNDRED, folder),
        split=[path.partition("/")[0] for path in paths],
        superclass=_named(codes[:, 0], coarse, _HUNDRED, folder),
    )
    return Dataset(manifest, ArrayStore(np.concatenate([images, test_images]), paths), name="cifar100")


def _refuse_pickles(folder: Path, pickle: str, layout: Layout) -> None:
    if (folder / pickle).is_file() and not any(folder.glob("*.bin")):
        raise DataError(
            f"{folder} holds the Python version of {layout.title}, pickles that can run code when they are read: "
            f"get the binary version from {_HOMEPAGE}."
        )


def _read_records(path: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels (n, label_bytes) and images (n, 32, 32, 3), uint8, of a file of records."""
    content = np.fromfile(path, np.uint8)
    if not content.size or content.size % (label_bytes + _PIXELS):
        raise DataError(f"{path} is truncated: {content.size:,} bytes are not a whole number of records; get it again.")
    records = content.reshape(-1, label_bytes + _PIXELS)
    planes = records[:, label_bytes:].reshape(-1, 3, _SIDE, _SIDE)
    return records[:, :label_bytes], np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


def _paths(training: int, testing: int) -> list[str]:
    return [f"train/{index:05d}" for index in range(training)] + [f"test/{index:05d}" for index in range(testing)]


def _named(codes: np.ndarray, names: Sequence[str], layout: Layout, folder: Path) -> list[str]:
    if codes.max() >= len(names):
        raise layout.refusal(folder, f"it has a label {codes.max()} and names for {len(names)}")
    return [names[code] for code in codes]


enter(
    Entry(
        name="cifar10",
        title=_TEN.title,
        classes=10,
        items=60_000,
        homepage=_HOMEPAGE,
        licence="not stated; for research",
        layout=_TEN.shape,
        split="published train/test (closed)",
        tested="layout-tested",
        open=open_cifar10,
        folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
        fetch=published(
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")
        ),
    )
)
enter(
    Entry(
        name="cifar100",
        title=_HUNDRED.title,
        classes=100,
        items=60_000,
        homepage=_HOMEPAGE,
        licence="not stated; for research",
        layout=_HUNDRED.shape,
        split="published train/test (closed); superclass: the 20 coarse labels",
        tested="real data",
        open=open_cifar100,
        folders=("cifar-100-binary", "cifar-100-python"),
        fetch=published(
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8")
        ),
    )
)
