"""The small handwritten digits that ship with scikit-learn: real data with no download at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import ArrayStore

_BRIGHTEST = 16


def open_digits() -> Dataset:
    """The 1,797 digits of scikit-learn, 8 x 8 grey images."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / _BRIGHTEST)).astype(np.uint8)
    paths = [f"{index:04d}" for index in range(len(images))]
    return Dataset(Manifest.from_rows(paths, digits.target), ArrayStore(images, paths), name="digits")


def _open(_folder: Path) -> Dataset:
    return open_digits()


def _find(_data_root: Path | None, _progress: bool) -> Dataset:
    return open_digits()


enter(
    Entry(
        name="digits",
        title="Digits of scikit-learn",
        classes=10,
        items=1_797,
        homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
        licence="CC BY 4.0",
        layout="none: the images are part of scikit-learn",
        split="none",
        tested="real data",
        open=_open,
        find=_find,
        sources="bundled with scikit-learn",
    )
)
